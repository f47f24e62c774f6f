"""Announces corrections, each at least once: to local applications over MQTT, and to the fleet if it asks for them.

Corrections from before a restart or a reconnection are announced too. Announcing is a task of its own, so that a broker
that hangs delays no correction. The outbox marks an answer as announced after all receivers have acknowledged it. An
application that misses an announcement can still ask for the answer by its id.
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
from firstline_edge.cloud.links import Links
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.requests.deadline import within

log = logger(__name__)

# Errors after which a retry may succeed. The operator can correct a missing right; other refusals are final.
_PASSING = (LinkDownError, RemoteTimeoutError, CapacityError, UnauthorizedError)


Report = Callable[[Sequence[InferResponse]], Awaitable[None]]
"""Reports answers to the fleet; raises FirstlineError if the report did not arrive."""


_TIMEOUT_S = 10.0  # for one acknowledgement
_CONCURRENCY = 16
_BACKOFF_S, _BACKOFF_MAX_S = 1.0, 30.0  # nominal wait after a failure, doubled with each further one in a row; its cap


@dataclass(eq=False)
class Announcer:
    """Announces the outbox's answers, oldest first.

    Args:
        outbox: opened with `announcing`.
        publisher: publishes them.
        clock: for waits.
        rng: for jitter.
        report: to the fleet; None for a device without a fleet.
        timeout_s: wait for one acknowledgement.
    """

    outbox: Outbox
    publisher: Links
    clock: Clock
    rng: random.Random
    _: KW_ONLY
    report: Report | None = None
    timeout_s: float = _TIMEOUT_S

    async def run(self) -> None:
        """Works until it is cancelled."""
        failures = 0
        while True:
            await self.outbox.wait_unannounced()
            await self.publisher.wait_connected()
            try:
                succeeded = await self._announce()
            except FirstlineError as error:
                log.warning("announcements not noted", error=error.message)
                succeeded = False
            except Exception:  # the outermost loop of a task that must never end
                log.exception("announcing failed")
                succeeded = False
            failures = 0 if succeeded else failures + 1
            if failures:
                pause_s = full_jitter_s(self.rng, failures - 1, base_s=_BACKOFF_S, max_s=_BACKOFF_MAX_S)
                await self.clock.sleep(pause_s)

    async def _announce(self) -> bool:
        """Announces the oldest answers; returns whether none of them must be retried."""
        answers = await self.outbox.unannounced(_CONCURRENCY)
        are_done = await asyncio.gather(*(self._publish(request_id, answer) for request_id, answer in answers))
        done = {request_id: answer for (request_id, answer), is_done in zip(answers, are_done, strict=True) if is_done}
        if done and self.report is not None and not await self._is_done(self.report(list(done.values())), *done):
            return False
        if done:
            await self.outbox.mark_announced(done)
        return all(are_done)

    async def _publish(self, request_id: str, answer: InferResponse) -> bool:
        """Publishes one answer; returns whether it was acknowledged or is refused for good."""
        return await self._is_done(self.publisher.publish(answer), request_id)

    async def _is_done(self, announcing: Awaitable[None], *request_ids: str) -> bool:
        """Returns whether an announcement was acknowledged or is refused for good."""
        deadline_s = self.clock.monotonic_s() + self.timeout_s
        try:
            await within(self.clock, deadline_s, announcing, "No receiver acknowledged the announcement.")
        except _PASSING as error:
            log.info("correction not announced yet", request_ids=request_ids, error=error.message)
            return False
        except FirstlineError as error:
            log.warning("correction never announced", request_ids=request_ids, error=error.message)
        return True
