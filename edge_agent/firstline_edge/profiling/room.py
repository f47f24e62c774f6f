"""The fleet's profiles on one agent, put together: which bundle, with what settings, whither."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.fleet.profiles import own_profile_path
from firstline_core.fleet.profiling import DesiredProfile
from firstline_core.profile.measure import QUICK_BATCHES, QUICK_S, TOTAL_S
from firstline_core.profile.profile import Profile, encode
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.profiling.gate import Gate, bounds_of
from firstline_edge.profiling.measuring import measured
from firstline_edge.profiling.process import Order
from firstline_edge.profiling.profiler import Profiler
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import device_profile_path

if TYPE_CHECKING:
    from firstline_edge.parts import Parts

SPARE_BYTES = 32 << 20
"""Free room below which nothing is measured: a profile has at most 4 MiB, and the outbox goes first."""


def open_profiler(
    settings: EdgeSettings,
    parts: Parts,
    path: Path,
    http: FleetHttp | None,
    *,
    clock: Clock,
    rng: random.Random,
    changed: Callable[[], None],
) -> Profiler:
    """The agent's profiler.

    Args:
        settings: the agent's own.
        parts: of the agent, its models among them.
        path: of the ledger.
        http: to the gateway; None where there is no such link.
        clock: the agent's.
        rng: jitter.
        changed: told whenever a request stands otherwise.
    """

    def order(asked: DesiredProfile) -> Order:
        return order_of(settings, parts, asked, has_http=http is not None)

    async def upload(profile: Profile) -> None:
        assert http is not None  # noqa: S101 (else nothing was measured)
        await http.send(own_profile_path(profile.bundle, profile.version), encode(profile))

    gate = Gate(lambda: parts.hardware.sampler.latest, bounds_of(settings), clock)
    measure = partial(measured, gate=gate)
    return Profiler(path, order, upload, clock=clock, rng=rng, measure=measure, changed=changed)


def order_of(settings: EdgeSettings, parts: Parts, asked: DesiredProfile, *, has_http: bool) -> Order:
    """What is run for a request.

    Raises:
        ConfigError: nothing is, and why.
    """
    if not settings.fleet.profiling:
        raise ConfigError("This device measures nothing for the fleet: its settings say fleet.profiling = false.")
    if not has_http:
        raise ConfigError(
            "Profiles go to the gateway over HTTP, and this device has no HTTP link; add [[links]] with kind = "
            '"http" below the MQTT one.'
        )
    held = parts.models.find(asked.bundle, str(asked.version) if asked.version else "")
    if held is None:
        there = ", ".join(f"{one.manifest.name} {one.version}" for one in parts.models.all) or "none"
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
