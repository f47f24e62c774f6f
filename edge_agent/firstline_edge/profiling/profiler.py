"""Works through the profiles that the fleet asks this device to measure, as long as each is wanted.

Points are written one by one, so that neither a restart nor a cancelled request loses a point that is measured: a
request that is begun again measures what is missing. The gateway removes a request when it has the profile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from firstline_core.bundle.store import open_bundle
from firstline_core.clock import Clock, end_tasks, first_of
from firstline_core.errors import CapacityError, ConfigError, FirstlineError, LinkError, UnauthorizedError
from firstline_core.fleet.twin import SENTENCE_CHARACTERS, DesiredProfile, Profiling, ProfilingState
from firstline_core.hardware.readings import Snapshot
from firstline_core.profile.measure import ProfileOptions, measure_profile
from firstline_core.profile.profile import Profile
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.runtime.threads import in_stoppable_thread
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.logs import logger
from firstline_edge.models.models import Models
from firstline_edge.profiling.gate import DeviceGate, bounds_of
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths

log = logger(__name__)

_S = ProfilingState
_TEMPORARY = (LinkError, CapacityError, UnauthorizedError)  # a key or a certificate may be renewed meanwhile
_RETRY_S, _RETRY_MAX_S = 5.0, 600.0
_REPORT_S = 10.0
"""Shortest time between two reports of progress: a report contains everything that the device says about itself."""
SPARE_BYTES = 32 << 20
"""Free disk space that is needed: a profile has at most 4 MiB, and the outbox has priority."""


def profile_options(settings: EdgeSettings) -> ProfileOptions:
    """Returns how this device measures: as its agent runs models, with the stated costs and sensors."""
    return ProfileOptions(
        own_threads=settings.models.threads,
        providers=tuple(settings.models.providers),
        joules_per_core_s=settings.costs.joules_per_core_second,
        power_rails=settings.hardware.power_rails,
        root=settings.hardware.root,
    )


class _Stopped(Exception):  # noqa: N818 (not a fault)
    """Raised in a measurement that was cancelled."""


@dataclass(eq=False)
class BundleMeasurement:
    """Measures one bundle of this device in a thread.

    Args:
        settings: of the agent.
        models: of this device.
        latest: returns the latest sensor readings.
        has_http: whether a link to the gateway takes profiles.
    """

    settings: EdgeSettings
    models: Models
    latest: Callable[[], Snapshot]
    _: KW_ONLY
    has_http: bool

    async def measure(self, request: DesiredProfile, on_progress: Callable[..., None]) -> Profile:
        """Measures what is missing; cancelling ends the process that measures.

        Args:
            request: of the fleet.
            on_progress: receives fields of `Profiling`, on the event loop.

        Raises:
            ConfigError: this device does not measure it; the sentence says why.
            IntegrityError: the bundle is not what its manifest says.
        """
        path, settings = self._checked_path(request), self.settings
        loop = asyncio.get_running_loop()

        def tell(**fields: Any) -> None:
            loop.call_soon_threadsafe(partial(on_progress, **fields))

        def run(stopped: threading.Event) -> Profile:
            def pause(seconds: float) -> None:
                if stopped.wait(seconds):
                    raise _Stopped

            gate = DeviceGate(self.latest, bounds_of(settings), lambda why: tell(message=why), pause)
            bundle = open_bundle(path)
            present = tuple(model.id for model in bundle.manifest.models if bundle.has(model))  # often not the full one
            return measure_profile(
                bundle,
                StatePaths(settings.state_dir).device_profile_path(request.bundle),
                dataclasses.replace(profile_options(settings), variants=present, quick=request.quick),
                machine=settings.device_id,
                gate=gate,
                progress=lambda done, total, _: tell(done=done, total=total),
            )

        profile = await in_stoppable_thread(run)
        if not profile.points:
            reason = profile.refused[-1].reason if profile.refused else "it has no model here."
            raise ConfigError(f"No point of {profile.bundle} could be measured: {reason}")
        return profile

    def _checked_path(self, request: DesiredProfile) -> Path:
        """Returns the folder of the bundle; raises ConfigError if this device does not measure it."""
        settings = self.settings
        if not settings.fleet.profiling:
            raise ConfigError("This device measures nothing for the fleet: its settings say fleet.profiling = false.")
        if not self.has_http:
            raise ConfigError(
                "Profiles go to the gateway over HTTP, and this device has no HTTP link; add [[links]] with kind = "
                '"http" below the MQTT one.'
            )
        found = self.models.find(request.bundle, str(request.version) if request.version else "")
        if found is None:
            bundles = ", ".join(f"{one.manifest.name} {one.version}" for one in self.models.all) or "none"
            version = f" version {request.version}" if request.version else ""
            raise ConfigError(f"This device does not have the bundle {request.bundle}{version}; it has: {bundles}.")
        try:
            free_bytes = shutil.disk_usage(settings.state_dir).free
        except OSError as error:
            raise ConfigError(f"{settings.state_dir} cannot be used: {system_reason(error)}.") from error
        if free_bytes < SPARE_BYTES:
            raise ConfigError(
                f"{free_bytes >> 20} MiB are free on this device's disk, and profiles leave {SPARE_BYTES >> 20} MiB "
                "alone; make room, then ask again."
            )
        return found.bundle.path


@dataclass(eq=False)
class Profiler:
    """Works through the requests of one device.

    Args:
        measure: measures a request, see `BundleMeasurement.measure`.
        upload: sends a profile to the gateway.
        clock: the agent's clock.
        rng: jitter.
        on_change: called when the progress of a request changes.
    """

    measure: Callable[[DesiredProfile, Callable[..., None]], Awaitable[Profile]]
    upload: Callable[[Profile], Awaitable[None]]
    _: KW_ONLY
    clock: Clock
    rng: random.Random
    on_change: Callable[[], None] = lambda: None
    _requests: dict[str, DesiredProfile] = field(default_factory=dict, init=False)
    _progress: dict[str, Profiling] = field(default_factory=dict, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _reported_s: float = field(default=float("-inf"), init=False)

    def receive(self, requests: tuple[DesiredProfile, ...]) -> None:
        """Sets the requests that the fleet makes now."""
        self._requests = {one.id: one for one in requests}
        self._progress = {
            one.id: self._progress.get(one.id) or Profiling(one.id, one.bundle, _S.WAITING) for one in requests
        }
        self._news.set()

    def progress(self) -> tuple[Profiling, ...]:
        """Returns the progress of each request, in their order."""
        return tuple(self._progress.values())

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            self._news.clear()
            id_ = next((one.id for one in self._progress.values() if not one.state.ended), "")
            if not id_:
                await self._news.wait()
                continue
            task = asyncio.create_task(self._work(self._requests[id_]))
            try:
                while not task.done() and id_ in self._requests:
                    self._news.clear()
                    await first_of(asyncio.wait({task}), self._news.wait())
            finally:
                await end_tasks(task)

    async def _work(self, request: DesiredProfile) -> None:
        note = partial(self._note, request.id)
        note(state=_S.MEASURING)
        try:
            profile = await self.measure(request, note)
            note(state=_S.UPLOADING, version=profile.version, message="")
            await self._deliver(note, profile)
            note(state=_S.DONE, message="")
        except FirstlineError as error:
            note(state=_S.REFUSED, message=error.message)
        except Exception:  # the outermost loop of a task that must never end
            log.exception("profile failed", bundle=request.bundle)
            note(state=_S.REFUSED, message="Measuring failed unexpectedly; the agent's log says more.")

    async def _deliver(self, note: Callable[..., None], profile: Profile) -> None:
        """Retries until the gateway has it."""
        failures = 0
        while True:
            try:
                return await self.upload(profile)
            except _TEMPORARY as error:
                if not failures:
                    log.warning("profile not delivered yet", bundle=profile.bundle, error=error.message)
                note(message=error.message)
                failures += 1
                pause_s = full_jitter_s(self.rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                await self.clock.sleep(max(pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S)))

    def _note(self, id_: str, **fields: Any) -> None:
        """Notes progress; a new state or message is reported at once, the number of points now and then."""
        before = self._progress.get(id_)
        if before is None:  # no longer wanted
            return
        after = replace(before, **fields)
        after = self._progress[id_] = replace(after, message=after.message[:SENTENCE_CHARACTERS])
        now_s = self.clock.monotonic_s()
        if after.state is not before.state:
            log.info("profile state changed", bundle=after.bundle, state=after.state.value, why=after.message or None)
        elif after.message == before.message and before.total and now_s < self._reported_s + _REPORT_S:
            return
        self._reported_s = now_s
        self.on_change()
