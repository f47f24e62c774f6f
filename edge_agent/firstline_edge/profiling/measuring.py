"""Measures the points of one request while the agent serves, each in a process of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError, listed
from firstline_core.fleet.twin import DesiredProfile
from firstline_core.profile.measure import Need, ProfileOptions, ProfileSession
from firstline_core.profile.measure_point import Job
from firstline_core.profile.point_process import PointProcess
from firstline_core.profile.profile import Point, Profile, Refused
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.logs import logger
from firstline_edge.models.models import Models
from firstline_edge.profiling.gate import Gate, Report
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths

log = logger(__name__)

SPARE_BYTES = 32 << 20
"""Free disk space that is needed: a profile has at most 4 MiB, and the outbox has priority."""
_TRIES = 3
"""Of a point that has to end."""


class Order(NamedTuple):
    """What to measure.

    Attributes:
        bundle: its folder.
        path: of the profile.
        machine: name of this device.
        options: which points; without variants, all models whose files are here.
    """

    bundle: Path
    path: Path
    machine: str
    options: ProfileOptions


class Progress(NamedTuple):
    """Progress of a measurement.

    Attributes:
        done: measured points, of `total`.
        waits: why the next point waits, in a sentence; "" if it does not.
    """

    done: int
    total: int
    waits: str = ""


OnProgress = Callable[[Progress], Awaitable[None]]


def order_of(settings: EdgeSettings, models: Models, request: DesiredProfile, *, has_http: bool) -> Order:
    """Returns the measurement that a request asks for.

    Raises:
        ConfigError: this device does not make it; the sentence says why.
    """
    if not settings.fleet.profiling:
        raise ConfigError("This device measures nothing for the fleet: its settings say fleet.profiling = false.")
    if not has_http:
        raise ConfigError(
            "Profiles go to the gateway over HTTP, and this device has no HTTP link; add [[links]] with kind = "
            '"http" below the MQTT one.'
        )
    held = models.find(request.bundle, str(request.version) if request.version else "")
    if held is None:
        known = ", ".join(f"{one.manifest.name} {one.version}" for one in models.all) or "none"
        version = f" version {request.version}" if request.version else ""
        raise ConfigError(f"This device does not have the bundle {request.bundle}{version}; it has: {known}.")
    _check_free_space(settings.state_dir)
    options = ProfileOptions(
        threads=request.threads,
        batches=request.batches,
        providers=request.providers or tuple(settings.models.providers),
        variants=request.variants,
        quick=request.quick,
        again=request.anew,
        joules_per_core_s=settings.costs.joules_per_core_second,
        root=Path(settings.hardware.root),
    )
    path = StatePaths(settings.state_dir).device_profile_path(request.bundle)
    return Order(held.bundle.path, path, settings.device_id, options)


class Measured(NamedTuple):
    """A finished measurement.

    Attributes:
        profile: the profile, with all points that it has.
        points: number of points that were ordered and are in it.
    """

    profile: Profile
    points: int


async def measure_order(order: Order, on_progress: OnProgress, gate: Gate) -> Measured:
    """Measures what is missing.

    A point that has to end is measured once more when there is room; after the third time it is left out with the
    reason. Cancelling ends the process that measures.

    Raises:
        ConfigError: nothing can be measured here; the sentence says why.
    """
    session = await asyncio.to_thread(_session, order)
    total = len(session.jobs)
    await on_progress(Progress(0, total))
    for done, (job, needed) in enumerate(session.jobs):

        async def report(sentence: str, done: int = done) -> None:
            await on_progress(Progress(done, total, sentence))

        result = await _measured(job, needed, gate, report)
        if isinstance(result, str):
            await asyncio.to_thread(session.refuse, job, result)
        else:
            await asyncio.to_thread(session.record, result)
        await on_progress(Progress(done + 1, total))
    keys = set(session.keys) - set(session.profile.outdated)
    points = sum(point.key in keys for point in session.profile.points)
    if not points:
        reasons = (one.reason for one in reversed(session.profile.refused) if one.key in keys)
        raise ConfigError(
            f"No point of {session.profile.bundle} could be measured: {next(reasons, 'it has no model here.')}"
        )
    return Measured(session.profile, points)


async def _measured(job: Job, needed: Need, gate: Gate, report: Report) -> Point | Refused | str:
    """Returns the result of a point, or why it is left out."""
    for _ in range(_TRIES):
        if why_not := await gate.admit(needed, report):
            return why_not
        process = PointProcess(job)
        running = asyncio.create_task(asyncio.to_thread(process.run))
        ending = asyncio.create_task(gate.must_end(needed))
        try:
            await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            cause = ending.result()
        finally:
            process.kill()
            ending.cancel()
            await asyncio.shield(asyncio.gather(running, ending, return_exceptions=True))
        log.info("profile point interrupted", point=needed.point, why=cause.sentence)
    return f"It was ended {_TRIES} times: {cause.sentence}."


def _session(order: Order) -> ProfileSession:
    bundle = open_bundle(order.bundle)
    options = replace(order.options, variants=_present(bundle, tuple(order.options.variants)))
    return ProfileSession(bundle, order.path, options, machine=order.machine)


def _present(bundle: Bundle, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The wanted models, or all whose files are here; those of the full model often are not.

    Raises:
        ConfigError: a wanted model is not here.
    """
    present = tuple(model.id for model in bundle.manifest.models if bundle.has(model))
    if absent := [id_ for id_ in wanted if id_ not in present]:
        raise ConfigError(
            f"This device has no model '{absent[0]}' of {bundle.manifest.name}{listed(absent[0], present, 'it has:')}"
        )
    return wanted or present


def _check_free_space(folder: Path) -> None:
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {system_reason(error)}.") from error
    if free_bytes < SPARE_BYTES:
        raise ConfigError(
            f"{free_bytes >> 20} MiB are free on this device's disk, and profiles leave {SPARE_BYTES >> 20} MiB alone; "
            "make room, then ask again."
        )
