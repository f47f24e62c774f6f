"""Doctor's look at the machine and at the installed packages. Imports nothing beyond the standard library by itself."""

from __future__ import annotations

import platform
import struct
import sys
from importlib import import_module
from importlib.metadata import version

from firstline_edge.cli.findings import Finding, State

_PYTHONS = ((3, 11), (3, 13))
# Every one of them comes without a runtime: a Jetson keeps its own onnxruntime-gpu.
_INSTALL = "pip install 'firstline[edge-core]'"
_NEEDED = {
    "numpy": "numpy",
    "PIL": "pillow",
    "msgspec": "msgspec",
    "orjson": "orjson",
    "httpx": "httpx",
    "httptools": "httptools",
    "uvicorn": "uvicorn",
    "diskcache": "diskcache",
    "paho.mqtt": "paho-mqtt",
    "structlog": "structlog",
    "prometheus_client": "prometheus-client",
}


def machine_findings() -> list[Finding]:
    """The processor first: on a 32-bit system everything after it is bound to fail."""
    bits = struct.calcsize("P") * 8
    machine = platform.machine()
    findings = []
    if bits == 32:
        findings.append(
            Finding(
                "processor",
                State.SLOW,  # it can work with the distribution's packages; whether it does is seen next
                f"{machine}, a 32-bit system: PyPI has no numpy, Pillow or ONNX Runtime wheels for it",
                "install a 64-bit system (on a Raspberry Pi: Raspberry Pi OS 64-bit), or the packages of your "
                "distribution: apt install python3-numpy python3-pil",
            )
        )
    else:
        findings.append(Finding("processor", State.OK, f"{machine}, {bits} bits"))
    current = sys.version_info[:2]
    known = _PYTHONS[0] <= current <= _PYTHONS[1]
    findings.append(
        Finding(
            "python",
            State.OK if known else State.MISSING,
            f"{platform.python_version()} ({platform.python_implementation()})",
            "" if known else "install Python 3.11, 3.12 or 3.13",
        )
    )
    return findings


def package_findings() -> list[Finding]:
    """Whether each package that the agent imports can be imported here, which an installed one may still refuse."""
    found: list[str] = []
    findings: list[Finding] = []
    for module, distribution in _NEEDED.items():
        try:
            import_module(module)
        except (ImportError, OSError) as error:  # OSError: a wheel for another C library or processor
            findings.append(Finding(distribution, State.MISSING, f"cannot be imported: {error}", _INSTALL))
        else:
            found.append(f"{distribution} {version(distribution)}")
    if found:
        findings.append(Finding("packages", State.OK, ", ".join(found)))
    return findings
