"""The states of an update of this device's configuration: every step is on the disk before it is done.

The same states as a model's (`updater/model_updates.py`), with less to do in each: a configuration is one small file,
and what proves it is that this device's own settings allow it, that the agent starts with it, and that it answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from firstline_core.backoff import full_jitter_s
from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, FirstlineError, IntegrityError, MetadataExpiredError, RequestError
from firstline_core.fleet.configuration import LIMIT_BYTES
from firstline_core.fleet.target import SignedFile
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.fleet.update import UpdateState
from firstline_core.telemetry.logs import logger
from firstline_core.waiting import first_of
from firstline_edge.configuration.beginning import configured
from firstline_edge.configuration.kept import Held, Kept, Record, settle_kept, write_kept
from firstline_edge.settings import EdgeSettings
from firstline_edge.updater.installation import PASSING
from firstline_edge.updater.means import Trials

log = logger(__name__)

_S = UpdateState
_IDLE_S = 3600.0
_LOOK_S = 5.0
# The wall clock may be set meanwhile.
_WALL_LOOK_S = 60.0
_RETRY_S, _RETRY_MAX_S = 30.0, 3600.0


class Configurations(Protocol):
    """What is signed, and its bytes."""

    async def configuration(self, name: str, version: int) -> SignedFile:
        """A configuration as signed metadata lists it now.

        Raises:
            NotFoundError: it is not listed.
            UpdateError: the metadata must not be believed.
            LinkError: it cannot be had now.
        """
        ...

    def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """See `updater.ports.ByteSource`."""
        ...


class Configurator:
    """All updates of one device's configuration.

    Args:
        path: of the file.
        kept: what is in it.
        own: the device's settings, which bound what may come.
        source: of what is signed.
        adopt: has the agent go on with other settings, at once.
        failed: whether the agent fails so often since then that they cannot stay.
        clock: windows are by the wall.
        rng: jitter.
        trials: of trying.
        jitter_s: the metadata is asked for up to so much later, lest a fleet asks together.
        changed: told whenever the update stands otherwise.
        off_loop: has a blocking call made elsewhere.
    """

    def __init__(
        self,
        path: Path,
        kept: Kept,
        own: EdgeSettings,
        source: Configurations,
        *,
        adopt: Callable[[EdgeSettings], None],
        failed: Callable[[], bool] = lambda: False,
        clock: Clock,
        rng: random.Random,
        trials: Trials,
        jitter_s: float = 0.0,
        changed: Callable[[], None] = lambda: None,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._path = path
        self.kept = kept
        self._own = own
        self._source = source
        self._adopt = adopt
        self._failed = failed
        self._clock = clock
        self._rng = rng
        self._trials = trials
        self._jitter_s = jitter_s
        self._changed = changed
        self._off_loop = off_loop
        self._wanted: DesiredConfiguration | None = None
        self._heard = False
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()  # who has the agent go on with something else
        self._writing = asyncio.Lock()
        self._settled = False  # whether the disk has what holds
        self._since_s: float | None = None  # the trial in this process
        self._failures = 0

    def desire(self, wanted: DesiredConfiguration | None) -> None:
        """What the fleet wants now; None leaves what runs."""
        self._wanted, self._heard = wanted, True
        self._news.set()

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            self._news.clear()
            wait_s = await self.step()
            if wait_s > 0:
                await first_of(self._news.wait(), self._clock.sleep(wait_s))

    async def step(self) -> float:
        """As far as it comes now; seconds after which to look again."""
        try:
            return await self._advance()
        except OSError as error:  # what is on the disk holds
            log.error("the disk refuses a configuration", error=str(error))
            return _RETRY_S
        except Exception:  # the outermost loop of a task that must never end
            log.exception("a configuration failed unexpectedly")
            return _RETRY_MAX_S

    async def roll_back(self) -> None:
        """What ran before runs again, at somebody's word; what the fleet wants now is not tried again by itself.

        Raises:
            RequestError: there is nothing to go back to.
        """
        async with self._turn:
            if not self.kept.can_go_back:
                raise RequestError("There is no configuration to go back from; see `edge-agent updates`.")
            record = self.kept.record
            if record is not None and not record.ended and record.state is not _S.TRIAL:
                await self._note(_S.CANCELLED, "asked", "Rolled back on the device.")
            await self._go_back("asked", "Rolled back on the device.")

    async def _advance(self) -> float:
        record, wanted = self.kept.record, self._wanted
        if wanted is not None and wanted.undone:
            if record is not None and _same(record.target, wanted):
                await self._undo(record)
                return _IDLE_S if self._settled else _RETRY_S
            wanted = None  # another update's, which never reached the device
        if record is not None and record.state is _S.TRIAL:
            return await self._try()
        await self._settle()
        if wanted is None:
            if self._heard and record is not None and not record.ended:
                await self._note(_S.CANCELLED, "superseded", "The fleet wants something else by now.")
            return _IDLE_S
        if record is None or not _same(record.target, wanted):
            record = await self._take_up(wanted)
        if record.ended:
            return _IDLE_S
        if 0 < wanted.expires_s <= self._clock.wall_s():
            await self._note(_S.EXPIRED, "expired", "Its time was over before it was tried.")
            return 0.0
        try:
            if record.state is _S.STAGED:
                return await self._stage(wanted)
            await self._fetch(wanted)
        except (MetadataExpiredError, *PASSING) as error:
            return await self._later(error)
        except FirstlineError as error:
            if self.kept.record is not None and not self.kept.record.ended:  # else somebody rolled back meanwhile
                await self._note(_S.REJECTED, error.code, error.message)
        return 0.0

    async def _undo(self, record: Record) -> None:
        """The fleet takes its word back: what is under way stops, and what ran before runs again."""
        async with self._turn:
            runs = record.state is _S.TRIAL or (record.state is _S.COMMITTED and record.reason != "already")
            if runs and self.kept.can_go_back:
                await self._go_back("undone", "The fleet took it back.")
            elif not record.ended:
                await self._note(_S.CANCELLED, "undone", "The fleet took it back.")
            else:
                await self._settle()

    async def _take_up(self, wanted: DesiredConfiguration) -> Record:
        """A word of the fleet begins an update, unless that very configuration runs already."""
        record = Record(wanted, _S.OFFERED, since_s=self._clock.wall_s())
        running = self.kept.running
        if running is not None and _named(running, wanted):
            record = replace(record, state=_S.COMMITTED, reason="already")
        self._failures = 0
        await self._write(lambda kept: replace(kept, record=record, staged=None))
        return record

    async def _fetch(self, wanted: DesiredConfiguration) -> None:
        """Brings it here, verified, and allowed by this device's own settings."""
        if self.kept.record is not None and self.kept.record.state is _S.OFFERED and self._jitter_s:
            await self._clock.sleep(self._rng.uniform(0, self._jitter_s))
        file = await self._source.configuration(wanted.name, wanted.version)
        if file.sha256 != wanted.sha256 or file.size_bytes > LIMIT_BYTES:
            raise IntegrityError(
                f"Configuration {wanted.name} version {wanted.version} is signed as {file.sha256[:12]} of "
                f"{file.size_bytes} bytes, and {wanted.sha256[:12]} is desired; start the rollout anew."
            )
        if (record := self.kept.record) is not None and record.state is _S.OFFERED:
            await self._note(_S.DOWNLOADING)
        content = b""
        async for part in self._source.read(file.sha256, 0, file.size_bytes):
            content += part
            if len(content) > file.size_bytes:
                break
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise IntegrityError(f"{file.path} came with other bytes than were signed; is this the registry?")
        try:
            held = Held(wanted.name, wanted.version, content.decode())
        except UnicodeDecodeError as error:
            raise ConfigError(f"Configuration {wanted.name} version {wanted.version} is no text.") from error
        configured(self._own, held)
        await self._write(lambda kept: kept.fetched(held, self._clock.wall_s()))

    async def _stage(self, wanted: DesiredConfiguration) -> float:
        """Waits for its time, and has the agent go on with it."""
        now_s = self._clock.wall_s()
        wait_s = max(0.0, wanted.not_before_s - now_s)
        if wait_s == 0 and wanted.window is not None:
            wait_s = wanted.window.wait_s(now_s)
        if wait_s > 0:
            left_s = max(wanted.expires_s - now_s, 0.1) if wanted.expires_s else wait_s
            return min(wait_s, left_s, _WALL_LOOK_S)
        async with self._turn:
            if self.kept.staged is None or self._wanted is None or not _same(self._wanted, wanted):
                return 0.0  # somebody rolled back, or the fleet wants something else by now
            settings = configured(self._own, self.kept.staged)
            await self._write(lambda kept: kept.begin_trial(self._trials.tries, now_s))
            self._since_s = self._clock.monotonic_s()
            self._adopt(settings)
        return 0.0

    async def _try(self) -> float:
        """Commits what the agent has answered with long enough; goes back where it cannot."""
        async with self._turn:
            if not self.kept.in_trial:
                return 0.0
            if self._since_s is None:
                self._since_s = self._clock.monotonic_s()
            left_s = self._since_s + self._trials.trial_s - self._clock.monotonic_s()
            if self._failed():
                await self._go_back("errors", "Too many requests got no answer while it was being tried.")
            elif left_s > 0:
                return min(left_s, _LOOK_S)
            else:
                await self._write(lambda kept: kept.committed(self._clock.wall_s()))
                self._since_s = None
        return 0.0

    async def _go_back(self, reason: str, message: str) -> None:
        """What ran before runs again, whatever the disk says; where it may not any more, the device's own settings."""
        now_s = self._clock.wall_s()
        kept = self.kept.given_up(reason, message, now_s)
        try:
            settings = configured(self._own, kept.running)
        except ConfigError as error:
            log.error("what ran before cannot run", error=error.message)
            kept, settings = replace(kept, running=None, previous=None), self._own
        await self._write(lambda _: kept, at_once=True)
        self._since_s = None
        self._adopt(settings)

    async def _later(self, error: FirstlineError) -> float:
        """It may go better later: told once, and tried again."""
        record = self.kept.record
        if record is not None and record.reason != error.code:
            told = replace(record, reason=error.code, message=error.message)
            await self._write(lambda kept: replace(kept, record=told) if kept.record is record else kept)
        self._failures += 1
        pause_s = full_jitter_s(self._rng, self._failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
        return max(1.0, pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S))

    async def _note(self, state: UpdateState, reason: str = "", message: str = "") -> None:
        await self._write(lambda kept: kept.noted(state, self._clock.wall_s(), reason, message))

    async def _write(self, change: Callable[[Kept], Kept], *, at_once: bool = False) -> None:
        """One change after the other, each on the disk before it counts; or, at once, as soon as the disk takes it."""
        async with self._writing:
            kept = change(self.kept)
            if at_once:
                self.kept = kept
            self._settled = False  # a write that fails may have come to the disk all the same
            try:
                await self._off_loop(write_kept, self._path, kept)
            except OSError as error:
                if not at_once:
                    raise
                log.error("going back from a configuration is not on the disk yet", error=str(error))
            else:
                self.kept, self._settled = kept, True
        record = kept.record
        if record is not None:
            log.info("configuration", name=record.target.name, version=record.target.version, state=record.state.value)
        self._changed()

    async def _settle(self) -> None:
        """Has on the disk what holds, where an earlier refusal left that open."""
        if not self._settled:
            async with self._writing:
                await self._off_loop(settle_kept, self._path, self.kept)
                self._settled = True


def _named(held: Held, wanted: DesiredConfiguration) -> bool:
    return (held.name, held.version, held.sha256) == (wanted.name, wanted.version, wanted.sha256)


def _same(one: DesiredConfiguration, other: DesiredConfiguration) -> bool:
    """Whether it is one update: when it is to be tried may change on the way."""
    return (one.name, one.version, one.sha256, one.rollout, one.attempt) == (
        other.name,
        other.version,
        other.sha256,
        other.rollout,
        other.attempt,
    )
