"""The expected wait for a thread, by the expected times of earlier calls."""

import asyncio
import threading

from support.escalations import settle

from firstline_edge.models.workers import Workers


async def test_the_wait_is_that_of_running_and_queued_calls() -> None:
    workers, go = Workers(2, 8), threading.Event()
    calls = []
    assert workers.wait_s == 0.0
    for expected_s, then_s in ((3.0, 0.0), (1.0, 2.0), (2.0, 3.0)):
        calls.append(asyncio.create_task(workers.run(lambda _: go.wait(), None, expected_s=expected_s)))
        await settle()
        assert workers.wait_s == then_s
    go.set()
    await asyncio.gather(*calls)
    await settle()
    assert workers.wait_s == 0.0
    workers.close()
