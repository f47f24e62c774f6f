"""The states of one update, of a model or of the configuration: each step is stored before it is taken.

`UpdateStateMachine` decides what to do next; its subclasses say how a model (`model_updates`) or a configuration
(`configuration.configurator`) is installed, tried and rolled back. Only one task runs the steps, so that they need no
locks: it takes up the fleet's desired state and rollback requests from `UpdateRequests`. A step that is interrupted
leaves the record of the last finished step, and the test of a model also leaves the try that it used.
"""

from __future__ import annotations

import asyncio
import errno
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from firstline_core.clock import Clock, end_tasks, first_of
from firstline_core.errors import (
    CapacityError,
    FirstlineError,
    LinkDownError,
    LinkError,
    MetadataExpiredError,
    NoRoomError,
    NotReadyError,
    UnauthorizedError,
    UpdateError,
)
from firstline_core.fleet.twin import DesiredVersion, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.installed import BY_REQUEST, Installed, InstalledFile, Target, UpdateRecord, Version
from firstline_edge.settings.settings import FleetSection

log = logger(__name__)

TEMPORARY = (LinkError, CapacityError, UnauthorizedError)
"""Errors after which a retry may succeed; an operator can restore a refused right."""
CHECK_S = 60.0
"""Longest wait for a wall time in seconds, because the wall clock may be set meanwhile."""

_S = UpdateState
COMPLETE = frozenset({_S.VERIFIED, _S.STAGED})
_IDLE_S = 3600.0
_TRIAL_CHECK_S = 5.0
_RETRY_S, _RETRY_MAX_S = 30.0, 3600.0

_LIMITS = FleetSection()

_T = TypeVar("_T")


@dataclass(frozen=True)
class UpdateServices:
    """The parts that all updates of a device share.

    Args:
        clock: for durations.
        now_s: returns the wall time in seconds, for windows and expiry.
        rng: for jitter.
        limits: of trials (`trial_tries` starts, and `trial_s` seconds in one process) and of downloads (average speed,
            longest random delay, which prevents a thundering herd).
        changed: called whenever the state of an update changes.
        off_loop: runs a blocking call; `asyncio.to_thread` except in simulations.
    """

    clock: Clock
    now_s: Callable[[], float]
    rng: random.Random
    limits: FleetSection = _LIMITS
    changed: Callable[[], None] = lambda: None
    off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread


class SupersededError(LinkDownError):
    """Raised when something else is desired; the work in progress stays as it is."""

    def __init__(self) -> None:
        super().__init__("The fleet desires something else now.")


class UpdateRequests(Generic[Target]):
    """The desired version and rollback requests, until the task of the update takes them up.

    Args:
        clock: for waits.
        now_s: returns the wall time in seconds, for expiry.

    Attributes:
        desired: by the fleet; None if it names no version, or was not received since the start.
        received: whether the desired state was received since the start.
        rollback: done after the rollback; None if no rollback was requested.
    """

    def __init__(self, clock: Clock, now_s: Callable[[], float]) -> None:
        self._clock = clock
        self._now_s = now_s
        self._changed = asyncio.Event()
        self.desired: Target | None = None
        self.received = False
        self.rollback: asyncio.Future[None] | None = None

    def receive(self, desired: Target | None) -> None:
        """Takes the version that the fleet desires now; None if it no longer names one."""
        self.desired, self.received = desired, True
        self._changed.set()

    async def roll_back(self) -> None:
        """Returns after the rollback; raises the error that prevented it."""
        if self.rollback is None:
            self.rollback = asyncio.get_running_loop().create_future()
        self._changed.set()
        await asyncio.shield(self.rollback)

    def clear(self) -> None:
        """Notes that the task has seen all changes so far."""
        self._changed.clear()

    async def wait(self, wait_s: float) -> None:
        """Waits for a change since `clear`, at most this many seconds."""
        await first_of(self._changed.wait(), self._clock.sleep(wait_s))

    def close(self) -> None:
        """Fails requests that are still waiting."""
        if self.rollback is not None and not self.rollback.done():
            self.rollback.set_exception(NotReadyError("The agent stops; roll back again."))

    async def while_desired(self, work: Coroutine[Any, Any, _T], desired: Target) -> _T:
        """Returns the result of the work; the work is cancelled when its result is not needed any more.

        Raises:
            SupersededError: the fleet desires something else, a rollback was requested, or the update has expired.
        """
        task = asyncio.create_task(work)
        try:
            while not task.done():
                self.clear()
                if not self._is_current(desired):
                    raise SupersededError
                waits: list[Awaitable[Any]] = [asyncio.wait({task}), self._changed.wait()]
                if self.desired is not None and self.desired.expires_s:
                    left_s = self.desired.expires_s - self._now_s()
                    waits.append(self._clock.sleep(min(CHECK_S, left_s)))
                await first_of(*waits)
            return task.result()
        finally:
            await end_tasks(task)

    def _is_current(self, desired: Target) -> bool:
        now = self.desired
        return (
            self.rollback is None
            and now is not None
            and not now.undone
            and is_same(now, desired)
            and not has_expired(now, self._now_s())
        )


class UpdateStateMachine(ABC, Generic[Version, Target]):
    """All updates of one model, or of the configuration, one after the other.

    Args:
        subject: name of the updated model or configuration, for messages: "Model digits".
        file: of the installed version and the state of the latest update.
        services: of the device.
    """

    def __init__(self, subject: str, file: InstalledFile[Version, Target], services: UpdateServices) -> None:
        self._subject = subject
        self._file: InstalledFile[Version, Target] = file
        self._services = services
        self._clock = services.clock
        self._now_s = services.now_s
        self._limits = services.limits
        self._requests: UpdateRequests[Target] = UpdateRequests(services.clock, services.now_s)
        self._failures = 0
        self._trial_began_s: float | None = None  # in this process (monotonic)

    @property
    def record(self) -> UpdateRecord[Target] | None:
        """The state of the latest update; None if there was none."""
        record: UpdateRecord[Target] | None = self._file.state.record
        return record

    def update(self) -> Update | None:
        """Returns the latest update as it is reported to the fleet; None if there was none."""
        return self.record.update() if self.record is not None else None

    def receive(self, desired: Target | None) -> None:
        """Takes the version that the fleet desires now; None leaves the running one."""
        self._requests.receive(desired)

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            while True:
                self._requests.clear()
                pause_s = await self.step()
                if pause_s > 0:
                    await self._requests.wait(pause_s)
        finally:
            self._requests.close()

    async def step(self) -> float:
        """Goes as far as possible now; returns the seconds until the next step."""
        try:
            return await self._advance()
        except OSError as error:  # the stored state stays valid
            log.error("update not stored", subject=self._subject, error=str(error))
            self._report_disk_error(error)
            return _RETRY_S
        except Exception:  # the outermost loop of a task that must never end
            log.exception("update failed unexpectedly", subject=self._subject)
            return _RETRY_MAX_S

    async def roll_back(self) -> None:
        """Rolls back on request; the agent does not retry what the fleet desires now by itself.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is no previous version.
        """
        await self._requests.roll_back()

    async def _advance(self) -> float:
        """Takes the first step that is due; returns the seconds until the next one.

        A request on the device comes first, then what the fleet withdrew, a trial in progress, and what it desires.
        """
        record, desired = self.record, self._requests.desired
        if self._requests.rollback is not None:
            await self._roll_back_on_request(self._requests.rollback)
            return 0.0
        if desired is not None and await self._must_roll_back(desired):
            await self._roll_back("undone", "The fleet withdrew it.")
            return 0.0
        if desired is not None and desired.undone:
            if record is not None and is_withdrawn(record.target, desired):
                await self._retry_write()
                if not record.ended:
                    await self._end(_S.CANCELLED, "undone", "The fleet withdrew it.")
                return _IDLE_S
            desired = None  # another update's, which never reached the device
        if record is not None and record.state is _S.TRIAL:
            return await self._check_trial()
        await self._retry_write()
        if desired is not None:
            return await self._follow(record, desired)
        if self._requests.received and record is not None and not record.ended:
            await self._end(_S.CANCELLED, "superseded", "The fleet desires something else now.")
        return _IDLE_S

    async def _must_roll_back(self, desired: Target) -> bool:
        """Returns whether the fleet withdrew the version that runs, whichever update the latest record is about."""
        withdrawn = (*desired.withdrawn, desired.sha256) if desired.undone else desired.withdrawn
        return bool(withdrawn) and await self._installed_sha256() in withdrawn

    async def _follow(self, record: UpdateRecord[Target] | None, desired: Target) -> float:
        """Takes the next step towards the desired version; returns the seconds until the next one."""
        if record is None or not is_same(record.target, desired):
            record = await self._offer(desired)
        if record.ended:
            return _IDLE_S
        if has_expired(desired, self._now_s()):
            await self._end(_S.EXPIRED, "expired", "It expired before it was tried.")
            return 0.0
        try:
            if record.state in COMPLETE:
                return await self._stage(record, desired)
            await self._install(record, desired)
        except SupersededError:
            return 0.0
        except (MetadataExpiredError, *TEMPORARY) as error:  # the operator renews expired metadata
            return await self._retry_later(error)
        except (FirstlineError, OSError) as error:
            if isinstance(error, OSError) and not self._ends_on_disk_error(record):
                raise
            await self._end(*self._outcome(error))
        return 0.0

    async def _roll_back_on_request(self, request: asyncio.Future[None]) -> None:
        self._requests.rollback = None
        try:
            self._file.state.check_rollback(self._subject)
            await self._roll_back(BY_REQUEST, "Rolled back on the device.")
            request.set_result(None)
        except FirstlineError as error:
            request.set_exception(error)
        finally:
            if not request.done():
                request.set_exception(NotReadyError("The rollback was interrupted; see `edge-agent update list`."))

    async def _offer(self, desired: Target) -> UpdateRecord[Target]:
        """Begins an update; one to the version that runs already is committed at once."""
        record: UpdateRecord[Target] = UpdateRecord(desired, _S.OFFERED, since_s=self._now_s())
        if await self._runs(desired):
            record = replace(record, state=_S.COMMITTED, reason="already")
        self._failures = 0
        await self._write(record)
        return record

    async def _stage(self, record: UpdateRecord[Target], desired: Target) -> float:
        """Waits for the time window; then begins the trial."""
        if record.state is _S.VERIFIED:
            await self._note(_S.STAGED)
        elif record.reason:  # the disk refused, and accepts writes again
            await self._write(replace(record, reason="", message=""))
        pause_s = wait_s(desired, self._now_s())
        if pause_s > 0:
            return pause_s
        self._trial_began_s = None  # an earlier trial's start, if the disk refused the record of its commit
        await self._begin_trial()
        return 0.0  # `_check_trial` starts to count

    async def _check_trial(self) -> float:
        """Commits a version that has answered long enough, and rolls back one that fails.

        Returns:
            Seconds until the next check.

        Raises:
            OSError: the disk refuses; the trial continues.
        """
        if self._trial_failed():
            await self._roll_back("errors", "Too many requests got no answer while it was being tried.")
            return 0.0
        if self._trial_began_s is None:
            self._trial_began_s = self._clock.monotonic_s()
        left_s = self._trial_began_s + self._limits.trial_s - self._clock.monotonic_s()
        if left_s > 0:
            return min(left_s, _TRIAL_CHECK_S)
        await self._store(self._file.state.committed(self._now_s()))
        return 0.0

    async def _roll_back(self, reason: str, message: str) -> None:
        """Rolls back, also if the disk refuses."""
        self._trial_began_s = None
        await self._services.off_loop(self._file.roll_back, reason, message, self._now_s())
        self._report()
        await self._run_previous()

    async def _retry_later(self, error: FirstlineError) -> float:
        """Notes a temporary error; returns the seconds until the next attempt."""
        record = self.record
        if record is not None and (record.reason, record.message) != (error.code, error.message):
            await self._write(replace(record, reason=error.code, message=error.message))
        self._failures += 1
        pause_s = full_jitter_s(self._services.rng, self._failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
        return max(1.0, pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S))

    def _report_disk_error(self, error: OSError) -> None:
        """Reports the disk's refusal to the fleet, although it cannot be stored.

        An incomplete download of a model has failed; everything else continues when the disk accepts writes.
        """
        record, desired = self.record, self._requests.desired
        if desired is None or desired.undone or (record is not None and record.state is _S.TRIAL):
            return
        if record is None or not is_same(record.target, desired):
            record = UpdateRecord(desired, _S.OFFERED, since_s=self._now_s())
        if record.ended:
            return
        state, reason, message = self._outcome(error)
        if not self._ends_on_disk_error(record):
            state = record.state
        if (record.state, record.reason, record.message) != (state, reason, message):
            since_s = record.since_s if state is record.state else self._now_s()
            record = replace(record, state=state, reason=reason, message=message, since_s=since_s)
            self._file.set_in_memory(self._file.state.with_record(record))
            self._report()

    async def _note(self, state: UpdateState, reason: str = "", message: str = "") -> None:
        """Stores the next state of the update.

        Raises:
            OSError: the disk refuses; the previous state stays valid.
        """
        record = self.record
        assert record is not None  # noqa: S101 (`_offer` wrote it)
        await self._write(record.after(state, self._now_s(), reason, message))

    async def _end(self, state: UpdateState, reason: str, message: str) -> None:
        """Ends an update that was not tried."""
        await self._note(state, reason, message)

    async def _write(self, record: UpdateRecord[Target]) -> None:
        """Stores the record; raises OSError if the disk refuses."""
        await self._store(self._file.state.with_record(record))

    async def _store(self, state: Installed[Version, Target]) -> None:
        """Stores the state of the update; raises OSError if the disk refuses."""
        await self._services.off_loop(self._file.write, state)
        self._report()

    async def _retry_write(self) -> None:
        """Stores the valid state if an earlier write was refused; raises OSError if the disk still refuses."""
        await self._services.off_loop(self._file.retry_write)

    def _report(self) -> None:
        """Logs the state of the update, and reports it to the fleet."""
        record = self.record
        if record is not None:
            log.info(
                "update state changed",
                subject=self._subject,
                name=record.target.name,
                version=record.target.version,
                state=record.state.value,
                reason=record.reason,
            )
        self._services.changed()

    @abstractmethod
    async def _runs(self, desired: Target) -> bool:
        """Returns whether the desired version runs already."""

    @abstractmethod
    async def _installed_sha256(self) -> str:
        """Returns the digest of the running version; "" for what the device was set up with."""

    @abstractmethod
    async def _install(self, record: UpdateRecord[Target], desired: Target) -> None:
        """Downloads, verifies and stores the desired version; it does not run yet."""

    @abstractmethod
    async def _begin_trial(self) -> None:
        """Stores that the installed version is on trial, and makes it run."""

    @abstractmethod
    def _trial_failed(self) -> bool:
        """Returns whether the trial must end, because too many requests have failed since it began."""

    @abstractmethod
    async def _run_previous(self) -> None:
        """Makes what the state says run, after a rollback."""

    @abstractmethod
    def _ends_on_disk_error(self, record: UpdateRecord[Target]) -> bool:
        """Returns whether a disk error ends the update; otherwise it continues when the disk accepts writes."""

    def _outcome(self, error: FirstlineError | OSError) -> tuple[UpdateState, str, str]:
        """Returns the final state, reason and message of an update that could not be installed or must not run."""
        if isinstance(error, OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = f"The disk has no room ({system_reason(error)}); make some in the state directory."
                return _S.FAILED, NoRoomError.code, message
            return _S.FAILED, "disk", f"The disk refuses: {system_reason(error)}."
        local = isinstance(error, NoRoomError) or type(error) is UpdateError  # not one of its more precise subclasses
        return _S.FAILED if local else _S.REJECTED, error.code, error.message


def is_same(one: DesiredVersion, other: DesiredVersion) -> bool:
    """Returns whether both are the same update; its times may change on the way."""
    return _identity(one) == _identity(other)


def is_withdrawn(target: DesiredVersion, desired: DesiredVersion) -> bool:
    """Returns whether the desired state withdraws the update to `target`, or the version that it installed."""
    return desired.undone if is_same(target, desired) else target.sha256 in desired.withdrawn


def has_expired(desired: DesiredVersion, now_s: float) -> bool:
    """Returns whether it is too late to begin the update."""
    return 0 < desired.expires_s <= now_s


def wait_s(desired: DesiredVersion, now_s: float) -> float:
    """Returns the seconds until the next check whether the update may be tried; 0 if it may be tried now."""
    left_s = max(0.0, desired.not_before_s - now_s)
    if left_s == 0 and desired.window is not None:
        left_s = desired.window.wait_s(now_s)
    expires_in_s = max(desired.expires_s - now_s, 0.1) if desired.expires_s else CHECK_S
    return min(left_s, expires_in_s, CHECK_S)


def _identity(desired: DesiredVersion) -> tuple[str, int, str, str, int]:
    return desired.name, desired.version, desired.sha256, desired.rollout, desired.attempt
