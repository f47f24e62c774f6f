"""Probes links in the background, never within a request.

A half-open breaker that lets the next request through costs that request up to its whole deadline, again and again
while the link stays dead. Here a request either meets a closed breaker, or skips the link at once.
"""

from __future__ import annotations

from collections.abc import Callable

from firstline_core.clock import Clock, first_of
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_edge.cloud.link_state import LinkState

log = logger(__name__)


async def keep_probing(state: LinkState, clock: Clock, timeout_s: float, note_states: Callable[[], None]) -> None:
    """Probes a link whenever it is woken or its breaker allows it, until cancelled.

    Args:
        state: the link.
        clock: for waits and times.
        timeout_s: of a probe.
        note_states: called whenever the breaker may have changed.
    """
    while True:
        if state.breaker.allows_requests:
            await state.wake.wait()
        state.wake.clear()
        if not state.breaker.allows_requests:
            await first_of(clock.sleep(state.breaker.retry_in_s), state.hurry.wait())
            state.hurry.clear()
        if state.breaker.try_probe():
            note_states()
            await _probe(state, clock, timeout_s)
            note_states()


async def _probe(state: LinkState, clock: Clock, timeout_s: float) -> None:
    started_s = clock.monotonic_s()
    try:
        await state.link.probe(timeout_s)
    except FirstlineError as error:
        log.debug("link probe failed", link=state.link.name, error=error.message)
        state.failed(error)
        state.breaker.probe_failed()
    except Exception:  # the outermost loop of this task: without it the link would never recover
        log.exception("link probe broke", link=state.link.name)
        state.heard, state.problem = True, "Its probe broke; the agent's log has the trace."
        state.breaker.probe_failed()
    else:
        # A gateway answers probes without credentials, so a probe does not end a refusal.
        if not state.refused or not state.breaker.allows_requests:
            state.worked()
        now_s = clock.monotonic_s()
        state.timing.probed(now_s - started_s, now_s)
        if not state.breaker.allows_requests:
            state.timing.returned()
        state.breaker.probe_succeeded()
