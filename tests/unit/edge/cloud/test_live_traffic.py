"""Audits wait while escalations are in progress, and no longer."""

import asyncio

import pytest

from firstline_core.errors import LinkDownError
from firstline_edge.cloud.client import LiveTraffic


async def test_audits_wait_until_fewer_escalations_are_in_progress() -> None:
    traffic = LiveTraffic(limit=2)
    with traffic.escalating():
        assert not traffic.busy
        with traffic.escalating():
            assert traffic.busy
            waiting = asyncio.create_task(traffic.wait_quiet())
            await asyncio.sleep(0)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 10)


async def test_a_failed_escalation_is_no_longer_counted() -> None:
    traffic = LiveTraffic(limit=1)
    with pytest.raises(LinkDownError), traffic.escalating():
        raise LinkDownError("The link is down.")
    assert not traffic.busy
    await asyncio.wait_for(traffic.wait_quiet(), 10)
