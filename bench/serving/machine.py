"""What measured: processor, cores, kernel, Python, versions, and whether anybody else was at work."""

from __future__ import annotations

import os
import platform
import sysconfig
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.serving import wrk

_PACKAGES = ("firstline", "onnxruntime", "numpy", "uvicorn", "uvloop", "httptools", "orjson", "msgspec", "paho-mqtt")


def described() -> dict[str, Any]:
    """As JSON takes it."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _of("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _of("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "system": _of("/etc/os-release", "PRETTY_NAME", "="),
        "virtual": "hypervisor" in (_of("/proc/cpuinfo", "flags") or ""),
        "python": platform.python_version() + ("" if _is_optimised() else " (built without optimisation)"),
        "client": wrk.version() if wrk.available() else None,
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
    }


def _is_optimised() -> bool:
    """Whether Python was built with profile-guided optimisation; it is slower without."""
    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")


def _of(file: str, name: str, between: str = ":") -> str | None:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    found = (line.partition(between) for line in lines)
    return next((value.strip().strip('"') for key, _, value in found if key.strip() == name), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
