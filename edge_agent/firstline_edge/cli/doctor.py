"""`edge-agent doctor`: reports errors, warnings and hints, and what to type. Needs no wheel to start."""

from __future__ import annotations

import argparse
import asyncio
import platform
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from firstline_core.command_line import EXIT_FAILED, EXIT_USAGE
from firstline_edge.cli.findings import Finding, Severity, ok, problem, warning
from firstline_edge.cli.output import print_error, show
from firstline_edge.cli.parser import OK, load_settings

if TYPE_CHECKING:
    from firstline_edge.settings.settings import EdgeSettings

_PYTHONS = ((3, 11), (3, 13))
# Without a runtime, because a Jetson has its own onnxruntime-gpu.
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


def command(arguments: argparse.Namespace) -> int:
    """Checks the machine first, then runs the checks that need installed packages."""
    findings, invalid = [*machine_findings(), *package_findings()], ""
    if not any(finding.severity is Severity.ERROR for finding in findings):
        from firstline_core.errors import ConfigError

        try:
            settings = load_settings(arguments)
        except ConfigError as error:
            invalid = error.message
            findings.append(problem("configuration", invalid))
        else:
            findings += _package_dependent_findings(settings)
    show(arguments, [asdict(finding) for finding in findings], _lines(findings))
    if invalid:
        print_error(invalid)
        return EXIT_USAGE
    return EXIT_FAILED if any(finding.severity is Severity.ERROR for finding in findings) else OK


def _package_dependent_findings(settings: EdgeSettings) -> Iterator[Finding]:
    """Yields the findings of the checks that need installed packages."""
    from firstline_core.clock import SYSTEM_CLOCK
    from firstline_edge.cli import doctor_device, doctor_links, doctor_models
    from firstline_edge.identity.credentials import DeviceIdentity

    identity = DeviceIdentity(settings, SYSTEM_CLOCK)
    bundles, unusable = doctor_models.bundles_in_use(settings)
    links, clock_offset_s = asyncio.run(doctor_links.link_findings(settings, bundles, identity.credentials))
    yield from doctor_device.hardware_findings(settings)
    yield from doctor_models.model_findings(settings, bundles)
    yield from unusable
    yield from doctor_models.contract_findings(settings, bundles)
    yield from doctor_device.identity_findings(identity)
    yield from links
    yield from doctor_device.budget_findings(settings)
    yield from doctor_device.fleet_findings(settings)
    yield from doctor_device.state_findings(settings)
    yield from doctor_device.outbox_findings(settings)
    yield doctor_device.clock_finding(clock_offset_s)
    yield from doctor_device.secret_findings(settings)


def _lines(findings: list[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.severity:7}  {finding.subject}: {finding.detail}"
        if finding.advice:
            yield f"         {finding.advice}"
    counts = Counter(finding.severity for finding in findings)
    yield ", ".join(f"{counts[severity]} {severity}" for severity in Severity)


def machine_findings() -> Iterator[Finding]:
    """Checks the processor first: on a 32-bit system the other checks fail."""
    bits = struct.calcsize("P") * 8
    machine = platform.machine()
    if bits == 32:
        yield warning(
            "processor",
            f"{machine}, a 32-bit system: PyPI has no numpy, Pillow or ONNX Runtime wheels for it",
            "install a 64-bit system (on a Raspberry Pi: Raspberry Pi OS 64-bit), or the packages of your "
            "distribution: apt install python3-numpy python3-pil",
        )
    else:
        yield ok("processor", f"{machine}, {bits} bits")
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        yield ok("python", python)
    else:
        yield problem("python", python, "install Python 3.11, 3.12 or 3.13")


def package_findings() -> Iterator[Finding]:
    """Checks whether each package can be imported; an installed one may still fail on this device."""
    installed: list[str] = []
    for module, distribution in _NEEDED.items():
        try:
            import_module(module)
        except (ImportError, OSError) as error:  # OSError: a wheel for another C library or processor
            yield problem(distribution, f"cannot be imported: {error}", _INSTALL)
        else:
            installed.append(f"{distribution} {version(distribution)}")
    if installed:
        yield ok("packages", ", ".join(installed))
