"""The time for requests in flight at the end of an agent."""

import pytest

from firstline_core.clock import SimulatedClock
from firstline_edge.api.server import Drain


async def test_servers_that_stop_in_turn_share_the_time() -> None:
    clock = SimulatedClock()
    drain = Drain(clock)
    await clock.advance(60)  # the time begins with the first stop
    assert drain.left_s() == pytest.approx(10)
    await clock.advance(4)
    assert drain.left_s() == pytest.approx(6)
    await clock.advance(7)
    assert drain.left_s() == 0
