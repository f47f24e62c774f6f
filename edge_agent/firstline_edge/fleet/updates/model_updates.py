"""The updates of one model, one after the other: each step is stored before it is taken.

Only one task changes the state, so that it needs no locks: it takes up the fleet's desired state and rollback requests
    from `wishes`. A step that is interrupted leaves the record of the last finished step.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from firstline_core.errors import (
    FirstlineError,
    MetadataExpiredError,
    NoRoomError,
    NotReadyError,
    UpdateError,
)
from firstline_core.fleet.twin import DesiredModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.installation import PASSING, Installation, needed, refusal
from firstline_edge.fleet.updates.means import Means
from firstline_edge.fleet.updates.record import Record
from firstline_edge.fleet.updates.slots import manifest_sha256
from firstline_edge.fleet.updates.trial import Trial
from firstline_edge.fleet.updates.wanted import is_over, is_same, is_taken_back, wait_s
from firstline_edge.fleet.updates.wishes import SupersededError, Wishes

log = logger(__name__)

_S = UpdateState
_WHOLE = (_S.VERIFIED, _S.STAGED)
_IDLE_S = 3600.0
_RETRY_S, _RETRY_MAX_S = 30.0, 3600.0


class ModelUpdates:
    """Of one device's model.

    Args:
        name: of the model.
        means: of this device.
    """

    def __init__(self, name: str, means: Means) -> None:
        self._name = name
        self._means = means
        self._history = means.history
        self._trial = Trial(name, means)
        self._wishes = Wishes(means.clock)
        self._installation: Installation | None = None
        self._failures = 0

    def desire(self, wanted: DesiredModel | None) -> None:
        """Takes the version that the fleet desires now; None if it no longer names this model."""
        self._wishes.desire(wanted)

    def update(self) -> Update | None:
        """How the latest update stands; None where there never was one."""
        record = self._history.records.get(self._name)
        if record is None or self._installation is None:
            return None if record is None else record.update()
        return replace(record, message=self._installation.problem).update(self._installation.received_bytes)

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            while True:
                self._wishes.taken_in()
                pause_s = await self.step()
                if pause_s > 0:
                    await self._wishes.wait(pause_s)
        finally:
            self._wishes.close()

    async def step(self) -> float:
        """Goes as far as it comes now; seconds after which to look again."""
        try:
            return await self._advance()
        except OSError as error:  # of the pointer or the record; what is there holds
            log.error("the disk refuses an update", model=self._name, error=str(error))
            self._tell_refusal(error)
            return _RETRY_S
        except Exception:  # the outermost loop of a task that must never end
            log.exception("an update failed unexpectedly", model=self._name)
            return _RETRY_MAX_S

    async def roll_back(self) -> None:
        """Rolls back on request; the agent does not retry what the fleet desires now by itself.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is nothing to go back to.
        """
        await self._wishes.roll_back()

    async def _advance(self) -> float:
        record, wanted = self._history.records.get(self._name), self._wishes.wanted
        if self._wishes.asked is not None:
            await self._answer(self._wishes.asked)
            return 0.0
        if wanted is not None and wanted.undone:
            if record is not None and is_taken_back(record.target, wanted):
                return await self._undo(record)
            wanted = None  # another update's, which never reached the device
        if record is not None and wanted is not None and self._was_withdrawn(record, wanted):
            await self._trial.give_up("undone", "The fleet took it back.")
            return 0.0
        if record is not None and record.state is _S.TRIAL:
            return await self._trial.look()
        await self._means.off_loop(self._history.settle, self._name)
        if wanted is not None:
            return await self._follow(record, wanted)
        if self._wishes.heard and record is not None and not record.ended:
            await self._end(_S.CANCELLED, "superseded", "The fleet wants something else by now.")
        return _IDLE_S

    async def _follow(self, record: Record | None, wanted: DesiredModel) -> float:
        """The next step of what the fleet wants; seconds after which to look again."""
        if record is None or not is_same(record.target, wanted) or self._has_lost_its_slot(record):
            record = await self._take_up(wanted)
        if record.ended:
            return _IDLE_S
        if is_over(wanted, self._means.now_s()):
            await self._end(_S.EXPIRED, "expired", "Its time was over before it was tried.")
            return 0.0
        try:
            if record.state in _WHOLE:
                return await self._stage(record, wanted)
            await self._install(record, wanted)
        except SupersededError:
            return 0.0
        except (MetadataExpiredError, *PASSING) as error:  # what has expired is somebody's to renew
            return await self._later(error)
        except (FirstlineError, OSError) as error:
            if isinstance(error, OSError) and record.state in _WHOLE:
                raise  # of a small file alone: what lies here is tried once there is room for that
            await self._end(*_verdict(error))
        return 0.0

    def _has_lost_its_slot(self, record: Record) -> bool:
        """Whether what runs was given up meanwhile, so that another slot is the spare one now."""
        return record.state in _WHOLE and record.slot != self._history.pointer(self._name).spare

    def _was_withdrawn(self, record: Record, wanted: DesiredModel) -> bool:
        """Whether what runs was taken back while this device was away, and would be what a new update goes back to."""
        pointer = self._history.pointer(self._name)
        return is_taken_back(record.target, wanted) and self._runs(record) and pointer.slot != pointer.previous

    @staticmethod
    def _runs(record: Record) -> bool:
        """Whether it is this update that brought what runs."""
        return record.state is _S.TRIAL or (record.state is _S.COMMITTED and record.reason != "already")

    async def _answer(self, asked: asyncio.Future[None]) -> None:
        """Rolls back on request, and reports the result."""
        self._wishes.asked = None
        try:
            await self._trial.roll_back()
            asked.set_result(None)
        except FirstlineError as error:
            asked.set_exception(error)
        finally:
            if not asked.done():
                asked.set_exception(NotReadyError("Going back was cut off; see `edge-agent updates`."))

    async def _undo(self, record: Record) -> float:
        """Undoes an update that the fleet withdrew: stops it if it is in progress, and rolls back."""
        pointer = self._history.pointer(self._name)
        if self._runs(record) and pointer.slot != pointer.previous:
            await self._trial.give_up("undone", "The fleet took it back.")
            return 0.0
        await self._means.off_loop(self._history.settle, self._name)
        if not record.ended:
            await self._end(_S.CANCELLED, "undone", "The fleet took it back.")
        return _IDLE_S

    async def _take_up(self, wanted: DesiredModel) -> Record:
        """A word of the fleet begins an update, unless that very bundle runs already."""
        means, pointer = self._means, self._history.pointer(self._name)
        place = self._history.path(self._name, pointer.slot) or means.serving.place(self._name)
        runs = place is not None and await means.off_loop(manifest_sha256, place) == wanted.sha256
        record = Record(wanted, _S.OFFERED, since_s=means.now_s())
        if runs:
            record = replace(record, state=_S.COMMITTED, slot=pointer.slot, reason="already")
        self._failures = 0
        await means.write(self._name, record)
        return record

    async def _install(self, record: Record, wanted: DesiredModel) -> None:
        """Fills the other slot, until it is verified; given up where the fleet wants something else meanwhile."""
        means, name = self._means, self._name
        bundle = await self._wishes.while_wanted(means.catalogue.listed(name, wanted.version), wanted)
        device = await means.serving.hardware()
        what = needed(bundle, wanted, device)
        pointer = self._history.pointer(name)
        slot = pointer.spare
        if pointer.cleared() != pointer:
            await means.off_loop(self._history.point, name, pointer.cleared())
        if record.state is not _S.DOWNLOADING or record.slot != slot:
            now = replace(record, state=_S.DOWNLOADING, slot=slot, total_bytes=what.size_bytes, reason="", message="")
            await means.write(name, replace(now, since_s=means.now_s()))
        setup = means.serving.place(name)
        other = self._history.path(name, "a" if slot == "b" else "b")
        self._installation = installation = Installation(
            self._history.slots(name),
            slot,
            what,
            means.source,
            elsewhere=[path for path in (other, setup) if path is not None],
            free_bytes=device.free_bytes,
            pace=means.pace,
            jitter_s=means.patience.jitter_s,
            clock=means.clock,
            rng=means.rng,
            off_loop=means.off_loop,
        )
        try:
            await self._wishes.while_wanted(installation.run(), wanted)
        finally:
            self._installation = None
        await means.note(name, _S.VERIFIED)

    async def _stage(self, record: Record, wanted: DesiredModel) -> float:
        """Waits for its time; then begins its trial."""
        if record.state is _S.VERIFIED:
            await self._means.note(self._name, _S.STAGED)
        elif record.reason:  # the disk refused, and does no more
            await self._means.write(self._name, replace(record, reason="", message=""))
        pause_s = wait_s(wanted, self._means.now_s())
        if pause_s > 0:
            return pause_s
        await self._trial.begin()
        return 0.0

    async def _later(self, error: FirstlineError) -> float:
        """It may go better later: told once, and tried again."""
        record = self._history.records[self._name]
        if (record.reason, record.message) != (error.code, error.message):
            await self._means.write(self._name, replace(record, reason=error.code, message=error.message))
        self._failures += 1
        pause_s = full_jitter_s(self._means.rng, self._failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
        return max(1.0, pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S))

    def _tell_refusal(self, error: OSError) -> None:
        """Reports the disk's refusal to the fleet, although it cannot be stored.

        An incomplete download has failed; a complete one waits for the disk.
        """
        record, wanted = self._history.records.get(self._name), self._wishes.wanted
        if wanted is None or wanted.undone or (record is not None and record.state is _S.TRIAL):
            return
        if record is None or not is_same(record.target, wanted):
            record = Record(wanted, _S.OFFERED)
        if record.ended:
            return
        state, reason, message = _verdict(error)
        if record.state in _WHOLE:
            state = record.state
        if (record.state, record.reason, record.message) != (state, reason, message):
            told = replace(record, state=state, reason=reason, message=message, since_s=self._means.now_s())
            self._history.hold(self._name, told)
            self._means.tell(self._name)

    async def _end(self, state: UpdateState, reason: str, message: str) -> None:
        """It ends without having been tried; the room that it took is free again."""
        record, slots = self._history.records[self._name], self._history.slots(self._name)
        pointer = self._history.pointer(self._name)
        await self._means.off_loop(slots.forget_partial)
        if state is _S.FAILED and record.slot and record.slot not in (pointer.slot, pointer.previous):
            await self._means.off_loop(slots.clear, record.slot)
        await self._means.note(self._name, state, reason, message)


def _verdict(error: FirstlineError | OSError) -> tuple[UpdateState, str, str]:
    """How an update ends that could not be brought here, or must not run here."""
    if isinstance(error, OSError):
        return _S.FAILED, *refusal(error)
    here = isinstance(error, NoRoomError) or type(error) is UpdateError  # and none of what it may be more exactly
    return _S.FAILED if here else _S.REJECTED, error.code, error.message
