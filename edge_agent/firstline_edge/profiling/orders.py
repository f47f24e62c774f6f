"""The measurement that a request for a profile asks for, or why this device does not make it."""

from __future__ import annotations

import shutil
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.fleet.profiling import DesiredProfile
from firstline_core.profile.measure import QUICK_BATCHES, QUICK_S, TOTAL_S
from firstline_edge.models.held import Models
from firstline_edge.profiling.process import Order
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import device_profile_path

SPARE_BYTES = 32 << 20
"""Free room below which nothing is measured: a profile has at most 4 MiB, and the outbox goes first."""


def order_of(settings: EdgeSettings, models: Models, asked: DesiredProfile, *, has_http: bool) -> Order:
    """Returns the measurement that a request asks for.

    Raises:
        ConfigError: this device does not measure it; the sentence says why.
    """
    if not settings.fleet.profiling:
        raise ConfigError("This device measures nothing for the fleet: its settings say fleet.profiling = false.")
    if not has_http:
        raise ConfigError(
            "Profiles go to the gateway over HTTP, and this device has no HTTP link; add [[links]] with kind = "
            '"http" below the MQTT one.'
        )
    held = models.find(asked.bundle, str(asked.version) if asked.version else "")
    if held is None:
        there = ", ".join(f"{one.manifest.name} {one.version}" for one in models.all) or "none"
        version = f" version {asked.version}" if asked.version else ""
        raise ConfigError(f"This device does not have the bundle {asked.bundle}{version}; it has: {there}.")
    path = device_profile_path(settings.state_dir, asked.bundle)
    _check_room(settings.state_dir)
    return Order(
        str(held.bundle.path),
        str(path),
        settings.device_id,
        providers=asked.providers or tuple(settings.models.providers),
        threads=asked.threads,
        batches=asked.batches or (QUICK_BATCHES if asked.quick else ()),
        total_s=QUICK_S if asked.quick else TOTAL_S,
        anew=asked.anew,
        joules_per_core_s=settings.costs.joules_per_core_second,
        root=settings.hardware.root,
        variants=asked.variants,
        throttled_share=asked.throttled_share,
    )


def _check_room(folder: Path) -> None:
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}.") from error
    if free_bytes < SPARE_BYTES:
        raise ConfigError(
            f"{free_bytes >> 20} MiB are free on this device's disk, and profiles leave {SPARE_BYTES >> 20} MiB alone; "
            "make room, then ask again."
        )
