"""The states of an update of this device's configuration: each step is stored before it is taken.

The states are those of a model's update (`fleet/updates/model_updates.py`), with less to do in each: a configuration is
one small file. It is accepted if the device's settings allow it, the agent starts with it, and the agent answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from msgspec.structs import replace

from firstline_core.clock import Clock, first_of
from firstline_core.errors import ConfigError, FirstlineError, MetadataExpiredError, RequestError
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.fleet.update import UpdateState
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.configuration.beginning import configured
from firstline_edge.fleet.configuration.fetching import Configurations, fetch, find
from firstline_edge.fleet.configuration.kept import Held, Kept, Record
from firstline_edge.fleet.configuration.ledger import Ledger
from firstline_edge.fleet.updates.installation import PASSING, refusal
from firstline_edge.fleet.updates.means import Trials
from firstline_edge.fleet.updates.wanted import is_over, is_same, is_taken_back, wait_s
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)

_S = UpdateState
_IDLE_S = 3600.0
_LOOK_S = 5.0
_RETRY_S, _RETRY_MAX_S = 30.0, 3600.0


class Configurator:
    """All updates of one device's configuration.

    Args:
        ledger: which configuration runs, and how the latest update stands.
        own: the device's settings, which bound what may come.
        source: of what is signed.
        adopt: exchanges the agent's settings at once.
        failed: whether the agent fails so often since then that they cannot stay.
        clock: windows are by the wall.
        rng: jitter.
        trials: of trying.
        jitter_s: longest random delay before the metadata is fetched; it prevents a thundering herd.
    """

    def __init__(
        self,
        ledger: Ledger,
        own: EdgeSettings,
        source: Configurations,
        *,
        adopt: Callable[[EdgeSettings], None],
        failed: Callable[[], bool] = lambda: False,
        clock: Clock,
        rng: random.Random,
        trials: Trials,
        jitter_s: float = 0.0,
    ) -> None:
        self._ledger = ledger
        self._own = own
        self._source = source
        self._adopt = adopt
        self._failed = failed
        self._clock = clock
        self._rng = rng
        self._trials = trials
        self._jitter_s = jitter_s
        self._wanted: DesiredConfiguration | None = None
        self._heard = False
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()  # who has the agent go on with something else
        self._since_s: float | None = None  # the trial in this process
        self._failures = 0

    @property
    def kept(self) -> Kept:
        """The state that holds."""
        return self._ledger.kept

    def desire(self, wanted: DesiredConfiguration | None) -> None:
        """Takes the configuration that the fleet desires now; None leaves the running one."""
        self._wanted, self._heard = wanted, True
        self._news.set()

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            self._news.clear()
            pause_s = await self.step()
            if pause_s > 0:
                await first_of(self._news.wait(), self._clock.sleep(pause_s))

    async def step(self) -> float:
        """As far as it comes now; seconds after which to look again."""
        try:
            return await self._advance()
        except OSError as error:  # what is on the disk holds
            log.error("the disk refuses a configuration", error=str(error))
            self._tell_refusal(error)
            return _RETRY_S
        except Exception:  # the outermost loop of a task that must never end
            log.exception("a configuration failed unexpectedly")
            return _RETRY_MAX_S

    async def roll_back(self) -> None:
        """Rolls back on request; the agent does not retry what the fleet desires now by itself.

        Raises:
            RequestError: there is nothing to go back to.
        """
        async with self._turn:
            if not self.kept.can_go_back:
                raise RequestError("There is no configuration to go back from; see `edge-agent updates`.")
            record = self.kept.record
            if record is not None and not record.ended and record.state is not _S.TRIAL:
                await self._ledger.note(_S.CANCELLED, "asked", "Rolled back on the device.")
            await self._go_back("asked", "Rolled back on the device.")

    async def _advance(self) -> float:
        record, wanted = self.kept.record, self._wanted
        if wanted is not None and wanted.undone:
            if record is not None and is_taken_back(record.target, wanted):
                await self._undo(record)
                return _IDLE_S if self._ledger.settled else _RETRY_S
            wanted = None  # another update's, which never reached the device
        if record is not None and wanted is not None and self._was_withdrawn(record, wanted):
            await self._undo(record)
            return 0.0
        if record is not None and record.state is _S.TRIAL:
            return await self._try()
        await self._ledger.settle()
        if wanted is None:
            if self._heard and record is not None and not record.ended:
                await self._ledger.note(_S.CANCELLED, "superseded", "The fleet wants something else by now.")
            return _IDLE_S
        return await self._follow(record, wanted)

    async def _follow(self, record: Record | None, wanted: DesiredConfiguration) -> float:
        """The next step of what the fleet wants; seconds after which to look again."""
        if record is None or not is_same(record.target, wanted):
            record = await self._take_up(wanted)
        if record.ended:
            return _IDLE_S
        if is_over(wanted, self._clock.wall_s()):
            await self._ledger.note(_S.EXPIRED, "expired", "Its time was over before it was tried.")
            return 0.0
        try:
            if record.state is _S.STAGED:
                return await self._stage(wanted)
            await self._fetch(wanted)
        except (MetadataExpiredError, *PASSING) as error:
            return await self._later(error)
        except FirstlineError as error:
            if self.kept.record is not None and not self.kept.record.ended:  # else somebody rolled back meanwhile
                await self._ledger.note(_S.REJECTED, error.code, error.message)
        return 0.0

    def _was_withdrawn(self, record: Record, wanted: DesiredConfiguration) -> bool:
        """Whether what runs was taken back while this device was away; see `ModelUpdates`."""
        return is_taken_back(record.target, wanted) and self._runs(record) and self.kept.can_go_back

    @staticmethod
    def _runs(record: Record) -> bool:
        """Whether it is this update that brought what runs."""
        return record.state is _S.TRIAL or (record.state is _S.COMMITTED and record.reason != "already")

    async def _undo(self, record: Record) -> None:
        """Undoes an update that the fleet withdrew: stops it if it is in progress, and rolls back."""
        async with self._turn:
            if self._runs(record) and self.kept.can_go_back:
                await self._go_back("undone", "The fleet took it back.")
            elif not record.ended:
                await self._ledger.note(_S.CANCELLED, "undone", "The fleet took it back.")
            else:
                await self._ledger.settle()

    async def _take_up(self, wanted: DesiredConfiguration) -> Record:
        """A word of the fleet begins an update, unless that very configuration runs already."""
        record = Record(wanted, _S.OFFERED, since_s=self._clock.wall_s())
        running = self.kept.running
        if running is not None and _named(running, wanted):
            record = replace(record, state=_S.COMMITTED, reason="already")
        self._failures = 0
        await self._ledger.write(lambda kept: replace(kept, record=record, staged=None))
        return record

    async def _fetch(self, wanted: DesiredConfiguration) -> None:
        """Brings it here, verified, and allowed by this device's own settings."""
        if self.kept.record is not None and self.kept.record.state is _S.OFFERED and self._jitter_s:
            await self._clock.sleep(self._rng.uniform(0, self._jitter_s))
        file = await find(self._source, wanted)
        if (record := self.kept.record) is not None and record.state is _S.OFFERED:
            await self._ledger.note(_S.DOWNLOADING)
        held = await fetch(self._source, file, wanted)
        configured(self._own, held)
        await self._ledger.write(lambda kept: kept.fetched(held, self._clock.wall_s()))

    async def _stage(self, wanted: DesiredConfiguration) -> float:
        """Waits for the time window, and exchanges the agent's settings."""
        now_s = self._clock.wall_s()
        pause_s = wait_s(wanted, now_s)
        if pause_s > 0:
            return pause_s
        async with self._turn:
            if self.kept.staged is None or self._wanted is None or not is_same(self._wanted, wanted):
                return 0.0  # somebody rolled back, or the fleet wants something else by now
            settings = configured(self._own, self.kept.staged)
            await self._ledger.write(lambda kept: kept.begin_trial(self._trials.tries, now_s))
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
                await self._ledger.write(lambda kept: kept.committed(self._clock.wall_s()))
                self._since_s = None
        return 0.0

    async def _go_back(self, reason: str, message: str) -> None:
        """Rolls back, also if the disk refuses.

        Uses the device's own settings if the previous configuration is not allowed any more.
        """
        now_s = self._clock.wall_s()
        kept = self.kept.given_up(reason, message, now_s)
        try:
            settings = configured(self._own, kept.running)
        except ConfigError as error:
            log.error("what ran before cannot run", error=error.message)
            kept, settings = replace(kept, running=None, previous=None), self._own
        await self._ledger.write(lambda _: kept, at_once=True)
        self._since_s = None
        self._adopt(settings)

    def _tell_refusal(self, error: OSError) -> None:
        """Reports the disk's refusal to the fleet, although it cannot be stored.

        The update resumes when the disk accepts writes.
        """
        kept, wanted = self.kept, self._wanted
        if wanted is None or wanted.undone:
            return
        if kept.record is None or not is_same(kept.record.target, wanted):
            kept = replace(kept, record=Record(wanted, _S.OFFERED, since_s=self._clock.wall_s()), staged=None)
        assert kept.record is not None  # noqa: S101 (put there above)
        if kept.record.ended or kept.record.state is _S.TRIAL:
            return
        reason, message = refusal(error)
        if (kept.record.reason, kept.record.message) != (reason, message):
            told = replace(kept.record, reason=reason, message=message)
            self._ledger.hold(lambda _: replace(kept, record=told))

    async def _later(self, error: FirstlineError) -> float:
        """It may go better later: told once, and tried again."""
        record = self.kept.record
        if record is not None and record.reason != error.code:
            told = replace(record, reason=error.code, message=error.message)
            await self._ledger.write(lambda kept: replace(kept, record=told) if kept.record is record else kept)
        self._failures += 1
        pause_s = full_jitter_s(self._rng, self._failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
        return max(1.0, pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S))


def _named(held: Held, wanted: DesiredConfiguration) -> bool:
    return (held.name, held.version, held.sha256) == (wanted.name, wanted.version, wanted.sha256)
