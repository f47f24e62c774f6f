"""Announces corrections, each at least once: to local applications over MQTT, and to the fleet if it asks for them.

Corrections from before a restart or a reconnection are announced too. Each receiver has a task of its own, so that one
that hangs or fails delays neither a correction nor the other receiver. The outbox marks an answer as announced to a
receiver after this receiver has acknowledged it. An application that misses an announcement can still ask for the
answer by its id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, FirstlineError, LinkDownError, RemoteTimeoutError, UnauthorizedError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse
from firstline_edge.outbox.database import Receiver
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.requests.deadline import within

log = logger(__name__)

# Errors after which a retry may succeed. The operator can correct a missing right; other refusals are final.
_PASSING = (LinkDownError, RemoteTimeoutError, CapacityError, UnauthorizedError)


Announce = Callable[[Sequence[InferResponse]], Awaitable[None]]
"""Announces answers to one receiver; raises FirstlineError if the announcement did not arrive."""


_TIMEOUT_S = 10.0  # for one acknowledgement
CONCURRENCY = 16
"""Answers that are announced at the same time."""
_BACKOFF_S, _BACKOFF_MAX_S = 1.0, 30.0  # nominal wait after a failure, doubled with each further one in a row; its cap


@dataclass(eq=False)
class Announcer:
    """Announces the outbox's answers to one receiver, oldest first.

    Args:
        outbox: opened with this receiver in `announcing`.
        receiver: whose answers these are.
        announce: sends answers to the receiver.
        reachable: returns once the receiver may be reached.
        clock: for waits.
        rng: for jitter.
        together: number of answers in one announcement, at most `CONCURRENCY`.
        timeout_s: wait for one acknowledgement.
    """

    outbox: Outbox
    receiver: Receiver
    announce: Announce
    reachable: Callable[[], Awaitable[None]]
    clock: Clock
    rng: random.Random
    _: KW_ONLY
    together: int = 1
    timeout_s: float = _TIMEOUT_S

    async def run(self) -> None:
        """Works until it is cancelled."""
        failures = 0
        while True:
            await self.outbox.wait_unannounced(self.receiver)
            await self.reachable()
            succeeded = False
            try:
                succeeded = await self._announce_oldest()
            except FirstlineError as error:
                log.warning("announcements not noted", error=error.message)
            except Exception:  # the outermost loop of a task that must never end
                log.exception("announcing failed")
            failures = 0 if succeeded else failures + 1
            if failures:
                pause_s = full_jitter_s(self.rng, failures - 1, base_s=_BACKOFF_S, max_s=_BACKOFF_MAX_S)
                await self.clock.sleep(pause_s)

    async def _announce_oldest(self) -> bool:
        """Announces the oldest answers; returns False if any of them must be announced again."""
        answers = await self.outbox.unannounced(self.receiver, CONCURRENCY)
        groups = [dict(answers[first : first + self.together]) for first in range(0, len(answers), self.together)]
        are_done = await asyncio.gather(*map(self._is_done, groups))
        done = [request_id for group, is_done in zip(groups, are_done, strict=True) if is_done for request_id in group]
        if done:
            await self.outbox.mark_announced(self.receiver, done)
        return all(are_done)

    async def _is_done(self, answers: dict[str, InferResponse]) -> bool:
        """Makes one announcement; returns whether it was acknowledged or is refused for good."""
        deadline_s = self.clock.monotonic_s() + self.timeout_s
        announcing = self.announce(list(answers.values()))
        noted = {"receiver": self.receiver.name, "request_ids": list(answers)}
        try:
            await within(self.clock, deadline_s, announcing, "The receiver did not acknowledge the announcement.")
        except _PASSING as error:
            log.info("correction not announced yet", **noted, error=error.message)
            return False
        except FirstlineError as error:
            log.warning("correction never announced", **noted, error=error.message)
        return True
