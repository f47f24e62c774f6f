"""Tells local applications of corrections: each at least once, also those of before a restart or a reconnection.

A task of its own, so that a broker that hangs delays no correction; that an answer was announced is noted beside it,
after the broker has acknowledged. Whoever misses it all the same can ask for the answer by its id.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Protocol

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, FirstlineError, LinkDownError, RemoteTimeoutError, UnauthorizedError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.requests.deadline import within

log = logger(__name__)

# What may go better later; what else a broker refuses it will refuse again. A refused right is the operator's to mend.
_PASSING = (LinkDownError, RemoteTimeoutError, CapacityError, UnauthorizedError)


class CorrectionPublisher(Protocol):
    """Where corrections are announced; `wiring.Links` is it."""

    async def wait_connected(self) -> None:
        """Returns once somebody could hear; at once if so already."""
        ...

    async def publish(self, correction: InferResponse) -> None:
        """Returns when it was acknowledged.

        Raises:
            FirstlineError: it was not.
        """
        ...


@dataclass(frozen=True, slots=True)
class AnnouncerSettings:
    """Patience with the broker.

    Args:
        timeout_s: for one acknowledgement.
        concurrency: announcements at once.
        backoff_s: nominal wait after a failure, doubled with each further one in a row.
        backoff_max_s: cap of that.
    """

    timeout_s: float = 10.0
    concurrency: int = 16
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0


class Announcer:
    """Announces the outbox's answers, oldest first.

    Args:
        outbox: opened with `announcing`.
        voice: where to.
        clock: for waits.
        rng: for jitter.
        settings: patience.
    """

    def __init__(
        self,
        outbox: Outbox,
        voice: CorrectionPublisher,
        clock: Clock,
        rng: random.Random,
        settings: AnnouncerSettings = AnnouncerSettings(),
    ) -> None:
        self._outbox = outbox
        self._voice = voice
        self._clock = clock
        self._rng = rng
        self._settings = settings

    async def run(self) -> None:
        """Works until it is cancelled."""
        failures = 0
        while True:
            await self._outbox.wait_unannounced()
            await self._voice.wait_connected()
            try:
                well = await self._announce()
            except FirstlineError as error:
                log.warning("announcements not noted", error=error.message)
                well = False
            except Exception:  # the outermost loop of a task that must never end
                log.exception("announcing failed")
                well = False
            failures = 0 if well else failures + 1
            if failures:
                base_s, max_s = self._settings.backoff_s, self._settings.backoff_max_s
                await self._clock.sleep(full_jitter_s(self._rng, failures - 1, base_s=base_s, max_s=max_s))

    async def _announce(self) -> bool:
        """Whether all of a first few are settled."""
        found = await self._outbox.unannounced(self._settings.concurrency)
        settled = await asyncio.gather(*(self._told(request_id, answer) for request_id, answer in found))
        done = [request_id for (request_id, _), told in zip(found, settled, strict=True) if told]
        if done:
            await self._outbox.note_announced(done)
        return all(settled)

    async def _told(self, request_id: str, answer: InferResponse) -> bool:
        deadline_s = self._clock.monotonic_s() + self._settings.timeout_s
        try:
            await within(self._clock, deadline_s, self._voice.publish(answer), "The broker is silent.")
        except _PASSING as error:
            log.info("correction not announced yet", request_id=request_id, error=error.message)
            return False
        except FirstlineError as error:
            log.warning("correction never announced", request_id=request_id, error=error.message)
        return True
