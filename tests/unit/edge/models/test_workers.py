"""The expected wait for a thread, by the expected times of earlier calls."""

import asyncio
import threading

import pytest
from support.escalations import settle

from firstline_edge.models import workers as module
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


async def test_closing_does_not_wait_for_an_endless_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END_S", 0.01)
    workers, began, go = Workers(1, 8), threading.Event(), threading.Event()
    running, waiting = (asyncio.create_task(workers.run(lambda _: (began.set(), go.wait()), None)) for _ in range(2))
    await asyncio.to_thread(began.wait)
    workers.close()
    assert not workers.ended
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    assert await running and workers.ended
