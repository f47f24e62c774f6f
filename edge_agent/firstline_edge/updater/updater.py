"""The states of a device's updates, one at a time: every step is on the disk before it is done.

Which slot runs, and whether it is being tried, says the pointer alone (`pointer.py`). The record says what people and
the fleet are told, and follows it: where a power cut came between the two, the next start finds the record behind,
and brings it up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from firstline_core.backoff import full_jitter_s
from firstline_core.clock import Clock
from firstline_core.errors import (
    FirstlineError,
    LinkDownError,
    MetadataExpiredError,
    NoRoomError,
    RequestError,
    UnknownModelError,
)
from firstline_core.fleet.twin import DesiredModel, Update
from firstline_core.fleet.update import UpdateState, may_follow
from firstline_core.telemetry.logs import logger
from firstline_core.waiting import first_of
from firstline_edge.updater.history import History
from firstline_edge.updater.installation import PASSING, Installation, Patience, needed
from firstline_edge.updater.ports import ByteSource, Catalogue, Serving
from firstline_edge.updater.record import Record
from firstline_edge.updater.slots import manifest_sha256

log = logger(__name__)

_S = UpdateState
_IDLE_S = 3600.0
_LOOK_S = 5.0
_RETRY_S, _RETRY_MAX_S = 30.0, 3600.0


@dataclass(frozen=True)
class Trials:
    """How a bundle proves itself.

    Args:
        tries: starts of the agent that a trial may take.
        trial_s: so long it must answer, in one process, before it stays.
    """

    tries: int = 3
    trial_s: float = 300.0


_PATIENCE, _TRIALS = Patience(), Trials()


class Updater:
    """All updates of one device.

    Args:
        history: of each model: pointer, record and slots.
        catalogue: what is signed.
        source: of bytes.
        serving: what answers.
        clock: windows are by the wall.
        rng: jitter.
        patience: of fetching.
        trials: of trying.
        changed: told whenever an update stands otherwise.
        off_loop: has a blocking call made elsewhere; `asyncio.to_thread` but in simulations.
    """

    def __init__(
        self,
        history: History,
        catalogue: Catalogue,
        source: ByteSource,
        serving: Serving,
        *,
        clock: Clock,
        rng: random.Random,
        patience: Patience = _PATIENCE,
        trials: Trials = _TRIALS,
        changed: Callable[[], None] = lambda: None,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._history = history
        self._catalogue = catalogue
        self._source = source
        self._serving = serving
        self._clock = clock
        self._rng = rng
        self._patience = patience
        self._trials = trials
        self._changed = changed
        self._off_loop = off_loop
        self._wanted: dict[str, DesiredModel] | None = None
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()  # who reads the pointer to change it
        self._installation: tuple[str, Installation, asyncio.Task[None]] | None = None
        self._since_s: dict[str, float] = {}  # trials of this process
        self._failures: dict[str, int] = {}

    def desire(self, models: Sequence[DesiredModel]) -> None:
        """What the fleet wants now; a model that is not named stays as it is."""
        self._wanted = {model.name: model for model in models}
        self._news.set()

    def updates(self) -> tuple[Update, ...]:
        """How the latest update of each model stands."""
        found = []
        for name, record in sorted(self._history.records.items()):
            if self._installation is not None and self._installation[0] == name:
                installation = self._installation[1]
                found.append(replace(record, message=installation.problem).update(installation.received_bytes))
            else:
                found.append(record.update())
        return tuple(found)

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            self._news.clear()
            wait_s = await self.step()
            if wait_s > 0:
                await first_of(self._news.wait(), self._clock.sleep(wait_s))

    async def step(self) -> float:
        """Brings every model as far as it comes now; seconds after which to look again."""
        waits_s = [_IDLE_S]
        for name in sorted({*(self._wanted or ()), *self._history.records}):
            try:
                waits_s.append(await self._advance(name))
            except OSError as error:  # of the pointer or the record; what is there holds
                log.error("the disk refuses an update", model=name, error=str(error))
                waits_s.append(_RETRY_S)
            except Exception:  # the outermost loop of a task that must never end
                log.exception("an update failed unexpectedly", model=name)
                waits_s.append(_RETRY_MAX_S)
        return min(waits_s)

    async def roll_back(self, name: str) -> None:
        """What ran before runs again, at somebody's word; what the fleet desires now is not tried again by itself.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is nothing to go back to.
        """
        record = self._history.records.get(name)
        if record is None:
            raise UnknownModelError(f"No update of a model {name!a} is known on this device; see `edge-agent updates`.")
        async with self._turn:
            pointer = self._history.pointer(name)
            if pointer.slot == pointer.previous:
                raise RequestError(f"Model {name}: there is nothing to go back to; its update is {record.state.value}.")
            if self._installation is not None and self._installation[0] == name:
                self._installation[2].cancel()
            if not record.ended and record.state is not _S.TRIAL:
                await self._note(name, _S.CANCELLED, "asked", "Rolled back on the device.")
            await self._go_back(name, "asked", "Rolled back on the device.")

    async def _advance(self, name: str) -> float:
        """One model as far as it comes now; seconds after which to look again."""
        record = self._history.records.get(name)
        wanted = self._wanted.get(name) if self._wanted is not None else None
        if wanted is not None and wanted.undone:
            await self._undo(name, wanted)
            return _IDLE_S
        if record is not None and record.state is _S.TRIAL:
            return await self._try(name)
        if self._wanted is None:
            return _IDLE_S
        if wanted is None:
            if record is not None and not record.ended:
                await self._note(name, _S.CANCELLED, "superseded", "The fleet wants something else by now.")
            return _IDLE_S
        if record is None or not _same(record.target, wanted):
            record = await self._take_up(name, wanted)
        if record.ended:
            return _IDLE_S
        if 0 < wanted.expires_s <= self._clock.wall_s():
            await self._note(name, _S.EXPIRED, "expired", "Its time was over before it was tried.")
            return 0.0
        try:
            if record.state not in (_S.VERIFIED, _S.STAGED):
                await self._install(name, wanted)
            return await self._stage(name, wanted)
        except _SupersededError:
            return 0.0
        except (MetadataExpiredError, *PASSING) as error:  # what has expired is somebody's to renew
            return await self._later(name, error)
        except (FirstlineError, OSError) as error:
            await self._note(name, *_verdict(error))
        return 0.0

    async def _undo(self, name: str, wanted: DesiredModel) -> None:
        """The fleet takes its word back: what is under way stops, and what ran before runs again."""
        record = self._history.records.get(name)
        if record is None or not _same(record.target, wanted):
            return  # another update's; this one never reached the device
        async with self._turn:
            pointer = self._history.pointer(name)
            runs = record.state is _S.TRIAL or (record.state is _S.COMMITTED and record.reason != "already")
            if runs and pointer.slot != pointer.previous:
                await self._go_back(name, "undone", "The fleet took it back.")
                self._since_s.pop(name, None)
            elif not record.ended:
                await self._note(name, _S.CANCELLED, "undone", "The fleet took it back.")

    async def _take_up(self, name: str, wanted: DesiredModel) -> Record:
        """A word of the fleet begins an update, unless that very bundle runs already."""
        pointer = self._history.pointer(name)
        place = self._history.path(name, pointer.slot) or self._serving.place(name)
        runs = place is not None and await self._off_loop(manifest_sha256, place) == wanted.manifest_sha256
        record = Record(wanted, _S.OFFERED, since_s=self._clock.wall_s())
        if runs:
            record = replace(record, state=_S.COMMITTED, slot=pointer.slot, reason="already")
        self._failures.pop(name, None)
        await self._write(name, record)
        return record

    async def _install(self, name: str, wanted: DesiredModel) -> None:
        """Fills the other slot, until it is staged; given up where the fleet wants something else meanwhile."""
        bundle = await self._catalogue.listed(name, wanted.version)
        device = await self._serving.hardware()
        what = needed(bundle, wanted, device)
        async with self._turn:
            pointer = self._history.pointer(name)
            slot = pointer.spare
            if pointer.cleared() != pointer:
                await self._off_loop(self._history.point, name, pointer.cleared())
            record = self._history.records[name]
            if record.state is _S.OFFERED or record.slot != slot:
                now = replace(
                    record, state=_S.DOWNLOADING, slot=slot, total_bytes=what.size_bytes, reason="", message=""
                )
                await self._write(name, replace(now, since_s=self._clock.wall_s()))
        setup = self._serving.place(name)
        elsewhere = [path for path in (self._history.path(name, pointer.slot), setup) if path is not None]
        installation = Installation(
            self._history.slots(name),
            slot,
            what,
            self._source,
            elsewhere=elsewhere,
            free_bytes=device.free_bytes,
            patience=self._patience,
            clock=self._clock,
            rng=self._rng,
            off_loop=self._off_loop,
        )
        task = asyncio.create_task(installation.run())
        self._installation = name, installation, task
        try:
            await self._while_wanted(task, wanted)
        finally:
            self._installation = None
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._note(name, _S.VERIFIED)

    async def _while_wanted(self, task: asyncio.Task[None], wanted: DesiredModel) -> None:
        """Waits for the task, as long as the fleet wants that.

        Raises:
            LinkDownError: it does not any more; the loop looks again at once.
        """
        while not task.done():
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            if not task.done():
                self._news.clear()
                now = (self._wanted or {}).get(wanted.name)
                expired = now is not None and 0 < now.expires_s <= self._clock.wall_s()
                if now is None or now.undone or not _same(now, wanted) or expired:
                    self._news.set()
                    raise _SupersededError
        if task.cancelled():
            raise _SupersededError
        task.result()

    async def _stage(self, name: str, wanted: DesiredModel) -> float:
        """Waits for its time, has it test itself, and puts it before requests."""
        if self._history.records[name].state is _S.VERIFIED:
            await self._note(name, _S.STAGED)
        now_s = self._clock.wall_s()
        wait_s = max(0.0, wanted.not_before_s - now_s)
        if wait_s == 0 and wanted.window is not None:
            wait_s = wanted.window.wait_s(now_s)
        if wait_s > 0:
            return min(wait_s, max(wanted.expires_s - now_s, 0.1) if wanted.expires_s else wait_s)
        async with self._turn:
            record, pointer = self._history.records[name], self._history.pointer(name)
            if record.state is not _S.STAGED or record.slot != pointer.spare:
                return 0.0  # somebody rolled back meanwhile
            path = self._history.slots(name).path(record.slot)
            prepared = await self._serving.prepare(path, trial=True)
            await self._off_loop(self._history.point, name, pointer.begin_trial(self._trials.tries))
            try:
                await self._note(name, _S.TRIAL)
            except OSError:
                await self._off_loop(self._history.point, name, pointer)
                raise
            self._since_s[name] = self._clock.monotonic_s()
            await self._serving.exchange(name, prepared)
        return 0.0

    async def _try(self, name: str) -> float:
        """Commits what has answered long enough; goes back where it cannot."""
        async with self._turn:
            pointer = self._history.pointer(name)
            if not pointer.in_trial:  # the disk refused the record
                await self._off_loop(self._history.bring_up, name, self._clock.wall_s())
                return 0.0
            left_s = self._since_s.setdefault(name, self._clock.monotonic_s()) + self._trials.trial_s
            left_s -= self._clock.monotonic_s()
            if self._serving.failed(name):
                await self._go_back(name, "errors", "Too many requests got no answer while it was being tried.")
            elif left_s > 0:
                return min(left_s, _LOOK_S)
            else:
                await self._off_loop(self._history.point, name, pointer.committed())
                await self._note(name, _S.COMMITTED)
            self._since_s.pop(name, None)
        return 0.0

    async def _go_back(self, name: str, reason: str, message: str) -> None:
        """What ran before runs again, on the disk first."""
        await self._off_loop(self._history.give_up, name, reason, message, self._clock.wall_s())
        self._changed()
        prepared = None
        for place in (self._history.path(name, self._history.pointer(name).slot), self._serving.place(name)):
            if place is None or prepared is not None:
                continue
            try:
                prepared = await self._serving.prepare(place, trial=False)
            except (FirstlineError, OSError) as error:
                log.error("what ran before cannot run", model=name, error=str(error))
        await self._serving.exchange(name, prepared)

    async def _later(self, name: str, error: FirstlineError) -> float:
        """It may go better later: told once, and tried again."""
        record = self._history.records[name]
        if record.reason != error.code:
            await self._write(name, replace(record, reason=error.code, message=error.message))
        self._failures[name] = failures = self._failures.get(name, 0) + 1
        pause_s = full_jitter_s(self._rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
        return max(1.0, pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S))

    async def _note(self, name: str, state: UpdateState, reason: str = "", message: str = "") -> None:
        record = self._history.records[name]
        if not may_follow(record.state, state):
            raise ValueError(f"{state} does not follow {record.state}")
        now = replace(record, state=state, reason=reason, message=message, since_s=self._clock.wall_s())
        await self._write(name, now)

    async def _write(self, name: str, record: Record) -> None:
        await self._off_loop(self._history.write, name, record)
        log.info("update", model=name, version=record.target.version, state=record.state.value, reason=record.reason)
        self._changed()


class _SupersededError(LinkDownError):
    """The fleet wants something else: what is under way is left as it is."""

    def __init__(self) -> None:
        super().__init__("The fleet wants something else by now.")


def _verdict(error: FirstlineError | OSError) -> tuple[UpdateState, str, str]:
    """How an update ends that could not be brought here, or must not run here."""
    if isinstance(error, OSError):
        return _S.FAILED, "disk", f"The disk refuses: {error.strerror or error}."
    return _S.FAILED if isinstance(error, NoRoomError) else _S.REJECTED, error.code, error.message


def _same(one: DesiredModel, other: DesiredModel) -> bool:
    """Whether it is one update: when it is to be tried may change on the way."""
    return (one.name, one.version, one.manifest_sha256, one.rollout, one.attempt) == (
        other.name,
        other.version,
        other.manifest_sha256,
        other.rollout,
        other.attempt,
    )
