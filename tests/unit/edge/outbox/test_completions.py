"""Whoever watches a promise is told of its end, and nobody else is remembered."""

from __future__ import annotations

from pathlib import Path

from support.escalations import request, response

from firstline_core.types import Status
from firstline_edge.outbox.completions import Completions
from firstline_edge.outbox.outbox import Outbox, OutboxItem


async def test_all_who_watch_are_told_and_forgotten() -> None:
    endings = Completions()
    final = response(request())
    with endings.watch("a") as one, endings.watch("a") as other, endings.watch("b") as another:
        endings.tell("a", final)
        endings.tell("a", None)
        assert one.result() is other.result() is final
        assert not another.done()
        assert len(endings) == 2
    endings.tell("a", final)
    assert len(endings) == 0


async def test_the_outbox_tells_once_the_answer_is_stored(tmp_path: Path) -> None:
    endings = Completions()
    outbox = Outbox(tmp_path / "outbox.db", endings=endings)
    asked = request()
    with endings.watch(asked.request_id) as ending:
        await outbox.finish(asked.request_id, response(asked))
        assert not ending.done()  # there was no promise to end
        await outbox.put(OutboxItem(asked, (0,), response(asked, Status.PROVISIONAL), 0.0))
        await outbox.finish(asked.request_id, response(asked, value=0.75))
        told = ending.result()
        stored = await outbox.answer(asked.request_id, "local")
        assert told is not None and told.answer == stored.answer
    outbox.close()


async def test_a_promise_that_can_never_be_kept_is_told_too(tmp_path: Path) -> None:
    endings = Completions()
    outbox = Outbox(tmp_path / "outbox.db", endings=endings)
    asked = request()
    await outbox.put(OutboxItem(asked, (0,), response(asked, Status.PROVISIONAL), 0.0))
    await outbox._write(
        lambda transaction: transaction.connection.execute("UPDATE items SET provisional = x'', request = x''")
    )
    with endings.watch(asked.request_id) as ending:
        assert await outbox.pending(1) == []
        assert ending.result() is None
    outbox.close()
