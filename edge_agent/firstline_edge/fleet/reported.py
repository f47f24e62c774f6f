"""The report to the fleet: digests of the loaded models, and the capacity that bundles' needs are compared with."""

from __future__ import annotations

import platform
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from firstline_core.fleet.target import Hardware
from firstline_core.fleet.twin import RunningModel
from firstline_core.hardware.catalogue import Catalogue
from firstline_edge.models.held import HeldModel, Models

_LIMIT = 64
_MIB = 1 << 20
# As a bundle's manifest names them, with the packages that run them.
_RUNTIMES = {"onnx": ("onnxruntime",), "tflite": ("ai_edge_litert", "tflite_runtime")}


def running(models: Models) -> tuple[RunningModel, ...]:
    """Returns each bundle that answers."""
    return tuple(_running(held) for held in models.all[:_LIMIT])


def _running(held: HeldModel) -> RunningModel:
    edge = held.edge
    return RunningModel(
        held.manifest.name,
        held.manifest.version,
        variant=edge.loaded.model.id if edge is not None else "",
        edge_digest=edge.loaded.digest if edge is not None else "",
        full_digest=held.manifest.full_digest,
        certified=edge is not None and edge.certificate is not None,
    )


def hardware(state_dir: Path, *, several: bool = False) -> Hardware:
    """Returns the runtimes and the capacity of this device; blocks for milliseconds.

    Args:
        state_dir: on the disk that bundles come to.
        several: see `Hardware`.
    """
    runtimes = frozenset(name for name, packages in _RUNTIMES.items() if any(map(find_spec, packages)))
    try:
        free_bytes: int | None = shutil.disk_usage(state_dir).free
    except OSError:
        free_bytes = None
    return Hardware(runtimes, platform.machine(), _memory_mb(), free_bytes, several)


def capabilities(found: Hardware) -> dict[str, Any]:
    """The same for `Reported`; free bytes in whole GiB, for it is reported again whenever it differs."""
    told: dict[str, Any] = {"runtimes": tuple(sorted(found.runtimes)), "architecture": found.architecture}
    if found.memory_mb is not None:
        told["memory_mb"] = found.memory_mb
    if found.free_bytes is not None:
        told["free_gib"] = found.free_bytes >> 30
    return told


def catalogue(found: Catalogue | None) -> Catalogue | None:
    """Returns the hardware catalogue for `Reported`, without values that change by themselves."""
    if found is None or found.storage is None:
        return found
    return replace(found, storage=replace(found.storage, free_bytes=found.storage.free_bytes >> 30 << 30))


def _memory_mb() -> int | None:
    try:
        with Path("/proc/meminfo").open() as lines:
            total = next(line for line in lines if line.startswith("MemTotal:"))
        return int(total.split()[1]) * 1024 // _MIB
    except (OSError, StopIteration, ValueError, IndexError):
        return None
