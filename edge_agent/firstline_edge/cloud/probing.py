"""Probes, sent in the background and never by a request.

A half-open breaker that lets the next user's request through makes that user pay for the finding, up to a whole
deadline, again and again while the link stays dead. So a request only ever meets a breaker that is closed, or passes
it by in no time.
"""

from __future__ import annotations

from collections.abc import Callable

from firstline_core.clock import Clock, first_of
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_edge.cloud.link_state import LinkState

log = logger(__name__)


async def keep_probing(way: LinkState, clock: Clock, timeout_s: float, note_states: Callable[[], None]) -> None:
    """Finds out whether a link works, whenever it is woken or its breaker lets it, until cancelled.

    Args:
        way: the link.
        clock: for waits and times.
        timeout_s: of a probe.
        note_states: told whenever the breaker may have changed.
    """
    while True:
        if way.breaker.allows_requests:
            await way.wake.wait()
        way.wake.clear()
        if not way.breaker.allows_requests:
            await first_of(clock.sleep(way.breaker.retry_in_s), way.hurry.wait())
            way.hurry.clear()
        if way.breaker.try_probe():
            note_states()
            await _probe(way, clock, timeout_s)
            note_states()


async def _probe(way: LinkState, clock: Clock, timeout_s: float) -> None:
    started_s = clock.monotonic_s()
    try:
        await way.link.probe(timeout_s)
    except FirstlineError as error:
        log.debug("link probe failed", link=way.link.name, error=error.message)
        way.failed(error)
        way.breaker.probe_failed()
    except Exception:  # this task's outermost loop: without it the link would never come back
        log.exception("link probe broke", link=way.link.name)
        way.heard, way.problem = True, "Its probe broke; the agent's log has the trace."
        way.breaker.probe_failed()
    else:
        # A gateway takes probes without credentials; where a probe was refused, the next one proves them.
        if not way.refused or not way.breaker.allows_requests:
            way.worked()
        now_s = clock.monotonic_s()
        way.timing.probed(now_s - started_s, now_s)
        if not way.breaker.allows_requests:
            way.timing.returned()
        way.breaker.probe_succeeded()
