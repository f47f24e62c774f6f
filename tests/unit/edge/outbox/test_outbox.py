import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from msgspec import structs
from support.escalations import request, response

from firstline_core.clock import SimulatedClock
from firstline_core.errors import CapacityError, ConfigError, QueueFullError, RequestError, UnknownAnswerError
from firstline_core.ids import new_request_id
from firstline_core.telemetry.trace import received
from firstline_core.types import Attempt, InferRequest, Privacy, Status, Tensor, Tier
from firstline_core.units import DAY_S
from firstline_edge.outbox import database
from firstline_edge.outbox.database import _SCHEMA, APPLICATION, FORMAT, PAGE_BYTES, Receiver
from firstline_edge.outbox.outbox import Outbox, OutboxItem, PromiseWaiters
from firstline_edge.settings.settings import OutboxSection


def item(infer_request: InferRequest | None = None, *, created_wall_s: float = 1_800_000_000.0) -> OutboxItem:
    infer_request = infer_request or request(2, deadline_s=5.0, full_model_digest="ab" * 32)
    return OutboxItem(infer_request, (0, 2), response(infer_request, Status.PROVISIONAL, rows=3), created_wall_s)


def ids_of(items: Iterable[OutboxItem]) -> list[str]:
    return [one.request.request_id for one in items]


async def put_all(outbox: Outbox, promises: Iterable[OutboxItem]) -> None:
    for promise in promises:
        await outbox.put(promise)


async def put_new(outbox: Outbox, number: int) -> list[OutboxItem]:
    promises = [item() for _ in range(number)]
    await put_all(outbox, promises)
    return promises


async def end(outbox: Outbox, promise: OutboxItem) -> None:
    """Ends a promise with its provisional answer."""
    await outbox.finish(promise.request.request_id, promise.provisional)


def overwrite(path: Path, offset: int, damage: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = bytearray(path.read_bytes() if path.exists() else b"")
    content[offset : offset + len(damage)] = damage
    path.write_bytes(content)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "outbox.db"


Open: TypeAlias = Callable[..., Outbox]


@pytest.fixture
async def open_outbox(path: Path, clock: SimulatedClock) -> AsyncIterator[Open]:
    """Opens the outbox with some limits, and closes it after the test."""
    with contextlib.ExitStack() as all_opened:

        def open_(clock: SimulatedClock = clock, announcing: Sequence[Receiver] = (), **limits: Any) -> Outbox:
            outbox = Outbox(path, OutboxSection(**limits), announcing=lambda: announcing, clock=clock)
            all_opened.callback(outbox.close)
            return outbox

        yield open_


@pytest.fixture
def outbox(open_outbox: Open) -> Outbox:
    return open_outbox(limit_items=5)


async def test_promises_come_out_oldest_first(outbox: Outbox) -> None:
    put = await put_new(outbox, 3)
    found = await outbox.pending(2)
    assert ids_of(found) == ids_of(put[:2])
    first, original = found[0], put[0]
    assert first.rows == (0, 2)
    assert first.created_wall_s == original.created_wall_s
    assert first.request.inputs[0].array.tolist() == original.request.inputs[0].array.tolist()
    assert (first.request.model, first.request.version, first.request.principal) == ("digits", "1", "local")
    assert first.request.full_model_digest == "ab" * 32
    assert first.request.deadline_s is None  # it has long passed
    assert first.provisional.answer == original.provisional.answer
    assert outbox.depth == 3
    assert outbox.size_bytes > 0


async def test_an_answer_is_provisional_then_final_and_only_its_principals(outbox: Outbox) -> None:
    queued = request(2, principal="app-1")
    await outbox.put(item(queued))
    found = await outbox.answer(queued.request_id, "app-1")
    assert found.answer.status is Status.PROVISIONAL
    final = response(queued, value=0.75, rows=3)
    await outbox.finish(queued.request_id, final)
    found = await outbox.answer(queued.request_id, "app-1")
    assert found.answer == final.answer
    assert float(found.output("probabilities")[0, 0]) == 0.75
    assert (outbox.depth, outbox.size_bytes) == (0, 0)
    for request_id, principal in ((queued.request_id, "app-2"), (queued.request_id, ""), (new_request_id(), "app-1")):
        with pytest.raises(UnknownAnswerError):
            await outbox.answer(request_id, principal)


async def test_a_full_outbox_refuses_and_evicts_nothing(outbox: Outbox) -> None:
    put = [item() for _ in range(5)]
    await asyncio.gather(*(outbox.put(one) for one in put))
    with pytest.raises(QueueFullError, match="5 requests"):
        await outbox.put(item())
    assert ids_of(await outbox.pending(9)) == ids_of(put)
    await end(outbox, put[0])
    await outbox.put(item())


async def test_bytes_are_bounded_too_even_within_one_group(open_outbox: Open) -> None:
    outbox = open_outbox(limit_bytes=10_000)
    outcomes = await asyncio.gather(*(outbox.put(item()) for _ in range(50)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {type(None), QueueFullError}
    assert outbox.depth == outcomes.count(None)
    assert 0 < outbox.size_bytes <= 10_000
    outbox.close()
    assert open_outbox().depth == outcomes.count(None)


async def test_counters_survive_reopening(open_outbox: Open) -> None:
    first = open_outbox()
    put = await put_new(first, 3)
    await end(first, put[1])
    counted = (first.depth, first.size_bytes)
    first.close()
    second = open_outbox()
    assert (second.depth, second.size_bytes) == counted
    await asyncio.wait_for(second.wait_pending(), 1)
    for one in await second.pending(9):
        await end(second, one)
    assert (second.depth, second.size_bytes) == (0, 0)


async def test_the_same_request_again_changes_nothing(outbox: Outbox) -> None:
    infer_request = request(2)
    await outbox.put(item(infer_request))
    await outbox.put(item(infer_request))
    assert outbox.depth == 1
    await outbox.finish(infer_request.request_id, response(infer_request, rows=3))
    await outbox.put(item(infer_request))
    await outbox.finish(infer_request.request_id, response(infer_request, Status.PROVISIONAL, rows=3))
    assert outbox.depth == 0
    assert (await outbox.answer(infer_request.request_id, "local")).answer.status is Status.FINAL


async def test_answers_make_room_by_bytes_but_promises_never_do(open_outbox: Open) -> None:
    outbox = open_outbox(answers_limit_bytes=3000)
    waiting = item()
    await outbox.put(waiting)
    ended = [item() for _ in range(10)]
    for one in ended:
        await outbox.put(one)
        await end(outbox, one)
    kept = []
    for one in ended:
        try:
            await outbox.answer(one.request.request_id, "local")
        except UnknownAnswerError:
            continue
        kept.append(one)
    assert 0 < len(kept) < 10
    assert kept == ended[-len(kept) :]
    await outbox.answer(waiting.request.request_id, "local")
    assert outbox.depth == 1


async def test_unannounced_answers_make_room_last(open_outbox: Open) -> None:
    outbox = open_outbox(announcing=[Receiver.APPLICATIONS], answers_limit_bytes=3000)
    ended = [item() for _ in range(10)]
    ids = ids_of(ended)
    for number, one in enumerate(ended):
        await outbox.put(one)
        await end(outbox, one)
        if number == 1:
            await outbox.mark_announced(Receiver.APPLICATIONS, ids[1:2])
        if outbox._database.totals.answers < number + 1:
            break
    with pytest.raises(UnknownAnswerError):
        await outbox.answer(ids[1], "local")  # heard of, though it is not the oldest
    assert [request_id for request_id, _ in await outbox.unannounced(Receiver.APPLICATIONS, 100)] == [
        ids[0],
        *ids[2 : number + 1],
    ]
    for one in ended[number + 1 :]:
        await outbox.put(one)
        await end(outbox, one)
    waiting = [request_id for request_id, _ in await outbox.unannounced(Receiver.APPLICATIONS, 100)]
    assert 0 < len(waiting) < 9 and waiting == ids[-len(waiting) :]  # the limit holds


async def test_old_answers_are_deleted(open_outbox: Open, clock: SimulatedClock) -> None:
    outbox = open_outbox(answers_age_s=DAY_S)
    old, new = item(), item()
    await put_all(outbox, (old, new))
    await end(outbox, old)
    await clock.advance(DAY_S + 1)
    await end(outbox, new)
    await expect_answers(outbox, kept=[new], deleted=[old])


async def test_old_answers_are_deleted_without_new_ones(open_outbox: Open, clock: SimulatedClock) -> None:
    outbox = open_outbox(answers_age_s=60.0)
    await outbox.put(one := item(created_wall_s=clock.wall_s()))
    await end(outbox, one)
    for later_s in (59.0, 2.0):
        assert (await outbox.answer(one.request.request_id, "local")).answer is not None
        await clock.advance(later_s)
        await outbox.delete_old_answers()
    with pytest.raises(UnknownAnswerError):
        await outbox.answer(one.request.request_id, "local")


async def test_local_only_is_never_queued(outbox: Outbox) -> None:
    with pytest.raises(RequestError, match="local_only"):
        await outbox.put(item(request(2, privacy=Privacy.LOCAL_ONLY)))
    assert outbox.depth == 0


async def test_wait_pending_returns_while_a_promise_waits(outbox: Outbox) -> None:
    waiting = asyncio.create_task(outbox.wait_pending())
    one = item()
    await outbox.put(one)
    await asyncio.wait_for(waiting, 1)
    await end(outbox, one)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(outbox.wait_pending(), 0.01)


async def test_a_cancelled_put_that_is_refused_leaves_nothing_behind(open_outbox: Open, clock: SimulatedClock) -> None:
    outbox = open_outbox(limit_items=0)
    task = asyncio.create_task(outbox.put(item()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(QueueFullError):
        await outbox.put(item())
    await clock.advance(5.0)
    assert outbox.oldest_s == 0.0


async def test_a_promise_that_was_refused_and_then_stored_is_waiting(open_outbox: Open) -> None:
    outbox = open_outbox(limit_items=1)
    first, second = item(), item()
    await outbox.put(first)
    refused, _, stored = await asyncio.gather(
        outbox.put(second), end(outbox, first), outbox.put(second), return_exceptions=True
    )
    assert isinstance(refused, QueueFullError) and stored is None
    assert outbox.is_waiting(second) and not outbox.is_waiting(first)


async def test_a_cancelled_put_is_stored_whole_or_not_at_all(outbox: Outbox) -> None:
    task = asyncio.create_task(outbox.put(item()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(outbox.wait_pending(), 1)
    assert len(await outbox.pending(9)) == outbox.depth == 1


# Ages


async def test_ages_are_monotonic_while_the_process_runs(outbox: Outbox, clock: SimulatedClock) -> None:
    one = item(created_wall_s=0.0)  # the device booted in 1970, and its clock is set later
    await outbox.put(one)
    await clock.advance(60.0)
    assert outbox.age_s(one) == pytest.approx(60.0)
    [found] = await outbox.pending(1)
    assert found.created_wall_s > 1_700_000_000.0


@pytest.mark.parametrize(("away_s", "age_s"), [(3 * DAY_S, 3 * DAY_S), (-3 * DAY_S, 0.0), (-1_800_000_000.0, 0.0)])
async def test_an_earlier_process_left_its_age_in_wall_time(open_outbox: Open, away_s: float, age_s: float) -> None:
    first = open_outbox(SimulatedClock(wall_start_s=1_800_000_000.0))
    one = item()
    await first.put(one)
    first.close()
    clock = SimulatedClock(start_s=500.0, wall_start_s=1_800_000_000.0 + away_s)
    second = open_outbox(clock)
    assert second.age_s(one) == pytest.approx(age_s, abs=0.01)  # from the future, or before all time: new
    await clock.advance(10.0)
    assert second.age_s(one) == pytest.approx(age_s + 10.0, abs=0.01)


async def test_wall_time_never_goes_back(open_outbox: Open) -> None:
    clock = SimulatedClock(wall_start_s=1_800_000_000.0 + DAY_S)
    outbox = open_outbox(clock)
    await outbox.put(item())
    clock.set_wall_s(1_800_000_000.0)
    await clock.advance(10.0)
    await outbox.put(item())
    set_back = [1_800_000_000.0 + DAY_S, 1_800_000_000.0 + DAY_S + 10.0]
    assert [one.created_wall_s for one in await outbox.pending(9)] == pytest.approx(set_back, rel=0, abs=0.01)
    outbox.close()
    again = open_outbox(SimulatedClock(wall_start_s=1_800_000_000.0))
    await again.put(item())
    assert (await again.pending(9))[-1].created_wall_s == pytest.approx(set_back[1], rel=0, abs=0.01)


async def test_a_clock_set_ahead_ages_only_records_of_earlier_processes(open_outbox: Open) -> None:
    """Off for days, and up with the time at which it was switched off; then the clock is set."""
    off_s, long_ago = 10 * DAY_S, item()
    before = open_outbox(SimulatedClock())
    await before.put(long_ago)
    before.close()
    clock = SimulatedClock()
    outbox = open_outbox(clock)
    items = [item() for _ in range(100)]
    for one in items:
        await clock.advance(0.1)
        await outbox.put(one)
    clock.set_wall_s(clock.wall_s() + off_s)
    assert outbox.age_s(long_ago) == pytest.approx(10.0, abs=0.01)  # the correct time is not known yet
    overdue = await outbox.overdue(DAY_S, 9)
    assert ids_of(overdue) == [long_ago.request.request_id]
    assert outbox.age_s(items[0]) == pytest.approx(9.9)
    await until_restamped(outbox)
    outbox.close()

    again = open_outbox(SimulatedClock(wall_start_s=clock.wall_s() + 60.0))
    assert again.age_s(long_ago) == pytest.approx(off_s + 70.0, abs=0.01)
    for number, one in enumerate(items):
        assert again.age_s(one) == pytest.approx(70.0 - 0.1 * (number + 1), abs=0.01)
    assert ids_of(await again.pending(200)) == ids_of((long_ago, *items))
    assert again.damage == ""


async def test_many_times_are_corrected_in_small_commits(open_outbox: Open) -> None:
    clock = SimulatedClock()
    outbox = open_outbox(clock)
    items = [item() for _ in range(300)]
    for one in items:
        await clock.advance(1.0)  # so that corrected times of old promises equal uncorrected ones of new promises
        await outbox.put(one)
    for one in items[::3]:
        await clock.advance(0.01)
        await end(outbox, one)
    writer, changes = outbox._database.connection, []
    writer.set_trace_callback(lambda sql: changes.append(writer.total_changes) if sql == "COMMIT" else None)
    changes.append(writer.total_changes)
    clock.set_wall_s(clock.wall_s() + 100.0)
    await outbox.overdue(DAY_S, 9)
    await until_restamped(outbox)
    assert changes[-1] - changes[0] >= 300
    assert max(after - before for before, after in pairwise(changes)) <= database.SHIFTED_AT_ONCE
    outbox.close()
    again = open_outbox(SimulatedClock(wall_start_s=clock.wall_s()))
    ages = [again.age_s(one) for number, one in enumerate(items) if number % 3]
    assert ages == pytest.approx([300.0 - number for number in range(300) if number % 3], abs=0.01)


async def test_a_clock_jump_deletes_no_recent_answer(open_outbox: Open) -> None:
    off_s = 10 * DAY_S
    long_ago, waiting, lately, new = item(), item(), item(), item()
    before = open_outbox(answers_age_s=DAY_S, clock=SimulatedClock())
    await put_all(before, (long_ago, waiting))
    await end(before, long_ago)
    before.close()
    clock = SimulatedClock()
    outbox = open_outbox(answers_age_s=DAY_S, clock=clock)
    await outbox.put(lately)
    for one in (waiting, lately):  # an answer to an earlier process's promise is this one's
        await clock.advance(60.0)
        await end(outbox, one)
    clock.set_wall_s(clock.wall_s() + off_s)
    await outbox.put(new)
    await end(outbox, new)
    await until_restamped(outbox)
    await outbox.delete_old_answers()
    kept = (waiting, lately, new)
    await expect_answers(outbox, kept=kept, deleted=[long_ago])
    outbox.close()

    later = SimulatedClock(wall_start_s=clock.wall_s() + DAY_S - 30.0)
    again = open_outbox(answers_age_s=DAY_S, clock=later)
    await again.delete_old_answers()
    await expect_answers(again, kept=kept[1:], deleted=[waiting])
    await later.advance(31.0)
    await again.delete_old_answers()
    await expect_answers(again, kept=(), deleted=kept)


async def test_a_clock_set_ahead_and_back_expires_nothing(open_outbox: Open) -> None:
    clock = SimulatedClock()
    outbox = open_outbox(clock)
    first, amid, last = item(), item(), item()
    await outbox.put(first)
    clock.set_wall_s(clock.wall_s() + 10 * DAY_S)
    await clock.advance(100.0)
    await outbox.put(amid)
    clock.set_wall_s(clock.wall_s() - 10 * DAY_S)
    await clock.advance(100.0)
    await outbox.put(last)
    assert [outbox.age_s(one) for one in (first, amid, last)] == pytest.approx([200.0, 100.0, 0.0])
    await until_restamped(outbox)
    outbox.close()
    again = open_outbox(SimulatedClock(wall_start_s=clock.wall_s()))
    assert [again.age_s(one) for one in (first, amid, last)] == pytest.approx([200.0, 100.0, 0.0], abs=0.01)


async def test_clock_jumps_add_up(open_outbox: Open) -> None:
    clock = SimulatedClock(wall_start_s=5.0)
    outbox = open_outbox(clock)
    items = [item() for _ in range(3)]
    for one in items:
        await outbox.put(one)
        await clock.advance(10.0)
        clock.set_wall_s(1_800_000_000.0 if one is items[0] else clock.wall_s() + 100.0)
        await outbox.overdue(DAY_S, 9)  # another leap may come while the last is under way
    await until_restamped(outbox)
    outbox.close()
    again = open_outbox(SimulatedClock(wall_start_s=clock.wall_s()))
    assert [again.age_s(one) for one in items] == pytest.approx([30.0, 20.0, 10.0], abs=0.01)


async def test_a_clock_jump_the_disk_refuses_is_applied_later(
    open_outbox: Open, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = open_outbox(answers_age_s=DAY_S)
    one = item()
    await outbox.put(one)
    await end(outbox, one)
    clock.set_wall_s(clock.wall_s() + 10 * DAY_S)

    def refuse(*_: Any, **__: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(database, "shift_times", refuse)
        for _ in range(3):
            with contextlib.suppress(CapacityError):  # of the same group
                await outbox.delete_old_answers()
        assert outbox._jumps
    await outbox.answer(one.request.request_id, "local")
    await outbox.delete_old_answers()
    await until_restamped(outbox)
    await outbox.delete_old_answers()
    await outbox.answer(one.request.request_id, "local")


async def test_unannounced_answers_are_not_deleted_by_age(open_outbox: Open, clock: SimulatedClock) -> None:
    outbox = open_outbox(announcing=[Receiver.APPLICATIONS], answers_age_s=DAY_S)
    one = item()
    await outbox.put(one)
    await end(outbox, one)
    await clock.advance(10 * DAY_S)
    await outbox.delete_old_answers()
    assert [request_id for request_id, _ in await outbox.unannounced(Receiver.APPLICATIONS, 9)] == [
        one.request.request_id
    ]
    await outbox.mark_announced(Receiver.APPLICATIONS, [one.request.request_id])
    await outbox.delete_old_answers()
    await expect_answers(outbox, kept=(), deleted=[one])


async def until_restamped(outbox: Outbox) -> None:
    async with asyncio.timeout(5):
        while outbox._jumps:
            await outbox._write(lambda _: None)


async def expect_answers(outbox: Outbox, *, kept: Sequence[OutboxItem], deleted: Sequence[OutboxItem]) -> None:
    for one in kept:
        assert (await outbox.answer(one.request.request_id, "local")).answer is not None
    for one in deleted:
        with pytest.raises(UnknownAnswerError):
            await outbox.answer(one.request.request_id, "local")


async def test_overdue_promises_are_found(open_outbox: Open) -> None:
    wall_s = 1_800_000_000.0
    begins = SimulatedClock(wall_start_s=wall_s)
    first = open_outbox(begins)
    for days in (1, 2, 0):
        await begins.advance(days * DAY_S)
        await first.put(item())
    first.close()
    clock = SimulatedClock(wall_start_s=wall_s + 4 * DAY_S)
    second = open_outbox(clock)
    await second.put(item(created_wall_s=clock.wall_s()))
    assert second.oldest_s == pytest.approx(3 * DAY_S)
    assert len(await second.overdue(DAY_S + 1, 9)) == 1
    await clock.advance(2.0)
    assert len(await second.overdue(DAY_S + 1, 9)) == 3
    assert len(await second.overdue(DAY_S + 1, 2)) == 2


# Choosing


async def test_ids_and_models_can_be_skipped(outbox: Outbox) -> None:
    put = [item(request(2, model=model, version=version)) for model, version in (("a", "1"), ("a", "2"), ("b", "1"))]
    await put_all(outbox, put)
    ids = ids_of(put)

    async def found(**skipped: Any) -> list[int]:
        return [ids.index(one.request.request_id) for one in await outbox.pending(9, **skipped)]

    assert await found(skip_ids=ids[:1]) == [1, 2]
    assert await found(skip_models={("a", "1")}) == [1, 2]
    assert await found(skip_ids=ids[:1], skip_models={("b", "1")}) == [1]
    assert await found(skip_ids=ids) == []


async def test_promises_that_reached_the_gateway_are_skipped_by_an_index(outbox: Outbox) -> None:
    for tried in ("remote_timeout", "link_down", "remote_timeout"):
        one = item()
        assert one.provisional.answer is not None
        attempts = (Attempt(Tier.EDGE, "ok", 1.0), Attempt(Tier.CLOUD, tried, 9.0))
        answer = structs.replace(one.provisional.answer, attempts=attempts)
        await outbox.put(replace(one, provisional=structs.replace(one.provisional, answer=answer)))
    assert [one.may_have_reached_gateway for one in await outbox.pending(9)] == [True, False, True]
    assert [one.may_have_reached_gateway for one in await outbox.pending(9, skip_reached_gateway=True)] == [False]
    with sqlite3.connect("file::memory:") as connection:
        connection.executescript(_SCHEMA)
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        database.oldest_promises(connection, 4, (), (), skip_reached_gateway=True)
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statements[0]}").fetchall()
    connection.close()
    assert any("items_unsent" in step[-1] for step in plan)


async def test_an_arrival_is_signalled_after_the_commit(outbox: Outbox) -> None:
    one = item()
    assert not outbox.changed.is_set()
    await outbox.put(one)
    assert outbox.changed.is_set()
    outbox.changed.clear()
    await outbox.put(one)
    assert not outbox.changed.is_set()


# Announcements


@pytest.mark.parametrize("damage", [b"", b"this is no database at all" * 100])
def test_files_are_private(path: Path, damage: bytes) -> None:
    Outbox(path).close()
    overwrite(path, 0, damage)
    outbox = Outbox(path)
    try:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
    finally:
        outbox.close()


@pytest.mark.parametrize("damage", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 8000])
async def test_a_damaged_file_is_moved_aside(path: Path, open_outbox: Open, damage: bytes) -> None:
    overwrite(path, 0, damage)
    outbox = open_outbox(SimulatedClock())
    assert "set aside as outbox.db.damaged" in outbox.damage
    await outbox.put(item())
    assert outbox.depth == 1
    outbox.close()
    assert path.with_name("outbox.db.damaged").read_bytes() == damage


async def test_a_damaged_page_is_found_at_the_next_start(path: Path, open_outbox: Open) -> None:
    outbox = open_outbox()
    await put_new(outbox, 50)
    outbox.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        roots = connection.execute("SELECT rootpage FROM sqlite_schema WHERE type = 'index'").fetchall()
    for (root,) in roots:
        overwrite(path, (root - 1) * PAGE_BYTES, b"\xa5" * PAGE_BYTES)
    again = open_outbox()
    assert again.depth == 50  # rows are found without indexes
    assert "50 promised corrections and 0 answers" in again.damage
    again.close()
    assert path.with_name("outbox.db.damaged").exists()


async def test_an_unreadable_promise_ends_and_blocks_no_other(outbox: Outbox) -> None:
    request_lost, both_lost, rows_lost, rows_wrong, good = [item() for _ in range(5)]
    await put_all(outbox, (request_lost, both_lost, rows_lost, rows_wrong, good))
    spoil = outbox._database.connection.execute
    spoil("UPDATE items SET request = x'00' WHERE sequence < 3")
    spoil("UPDATE items SET provisional = x'00' WHERE sequence = 2")
    spoil("UPDATE items SET rows = 'x' WHERE sequence = 3")
    spoil("UPDATE items SET rows = '[0, true]' WHERE sequence = 4")
    assert ids_of(await outbox.pending(9)) == [good.request.request_id]
    assert outbox.depth == 1
    for lost in (request_lost, rows_lost, rows_wrong):
        assert (await outbox.answer(lost.request.request_id, "local")).answer.status is Status.EXPIRED
    with pytest.raises(UnknownAnswerError):
        await outbox.answer(both_lost.request.request_id, "local")


async def test_the_end_of_a_damaged_promise_is_reported(path: Path, clock: SimulatedClock) -> None:
    ended: list[tuple[str, ...]] = []
    outbox = Outbox(path, on_damage=lambda *facts: ended.append(facts), clock=clock)
    request_lost, both_lost, _good = await put_new(outbox, 3)
    outbox._database.connection.execute("UPDATE items SET request = x'00' WHERE sequence < 3")
    outbox._database.connection.execute("UPDATE items SET provisional = x'00' WHERE sequence = 2")
    await outbox.pending(9)
    outbox.close()
    assert ended == [(lost.request.request_id, "digits", "1") for lost in (request_lost, both_lost)]


async def test_a_stored_request_may_have_many_dimensions(outbox: Outbox) -> None:
    deep = Tensor("x", np.zeros((1,) * 30, np.float32))
    promise = item(structs.replace(request(1), inputs=(deep,)))
    promise = replace(promise, rows=(0,), provisional=structs.replace(promise.provisional, outputs=(deep,)))
    await outbox.put(promise)
    (found,) = await outbox.pending(1)
    assert found.request.inputs[0].shape == found.provisional.outputs[0].shape == (1,) * 30


@pytest.mark.parametrize("column", ["request", "provisional", "principal"])
@pytest.mark.parametrize("value", ["7", "'text'", "x'ff'", "1e300"])
async def test_a_column_of_another_type_costs_its_promise_only(outbox: Outbox, column: str, value: str) -> None:
    """A flipped bit in a record's header changes the type of a column; SQLite notices that only in an index."""
    lost, good = item(), item()
    await put_all(outbox, (lost, good))
    outbox._database.connection.execute(f"UPDATE items SET {column} = {value} WHERE sequence = 1")
    assert ids_of(await outbox.pending(9)) == [good.request.request_id]
    assert outbox.depth == 1


def test_a_newer_format_is_left_alone(path: Path) -> None:
    Outbox(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    connection.execute(f"PRAGMA application_id = {APPLICATION | FORMAT + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"format {FORMAT + 1}"):
        Outbox(path)
    assert path.read_bytes() == before


async def test_a_refusing_disk_is_reported_and_recovers(open_outbox: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outbox = open_outbox()
    await outbox.put(item())
    writer = outbox._database.connection
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    big = item(request(2, model="m" * 60_000))
    outcomes = await asyncio.gather(outbox.put(big), outbox.put(big), return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, CapacityError)
        assert "disk full" in str(outcome)
    for _ in range(5):
        with pytest.raises(CapacityError):
            await outbox.put(big)
    assert outbox.depth == 1
    assert outbox.oldest_s == 0.0
    writer.execute("PRAGMA max_page_count = 1000000")
    await outbox.put(big)
    assert outbox.depth == 2
    messages = [line.getMessage() for line in caplog.records if line.name.endswith("outbox.database")]
    assert len(messages) == 2, messages  # one line a change, not one a request
    assert "database refuses writes" in messages[0]
    assert "database accepts writes again" in messages[1]


async def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    unopened = Outbox(tmp_path / "file" / "outbox.db")
    with pytest.raises(CapacityError, match="cannot be opened"):
        unopened.check()
    assert "outbox.db" in repr(unopened)


async def test_many_puts_share_few_commits(open_outbox: Open) -> None:
    outbox = open_outbox()
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    outbox._database.connection.set_trace_callback(count)
    await asyncio.gather(*(outbox.put(item()) for _ in range(200)))
    assert outbox.depth == 200
    assert commits < 50
    assert outbox._database.connection.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_a_closed_outbox_refuses(outbox: Outbox) -> None:
    outbox.close()
    with pytest.raises(CapacityError, match="closed"):
        await outbox.put(item())


async def test_a_promise_keeps_its_trace_over_a_restart(open_outbox: Open) -> None:
    trace = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1,b=2")
    assert trace is not None
    first = open_outbox()
    await first.put(item(request(2, trace=trace)))
    await first.put(item())
    first.close()
    again = open_outbox()
    for _ in range(3):  # a head that came before is read from memory
        traced, untraced = await again.pending(2)
        assert traced.request.trace == structs.replace(trace, parent_id=""), "the same span: it is the same request"
        assert untraced.request.trace is None


# Waiting callers


async def test_every_waiting_caller_gets_the_answer_once() -> None:
    waiters = PromiseWaiters()
    final = response(request())
    with waiters.watch("a") as one, waiters.watch("a") as other, waiters.watch("b") as another:
        waiters.notify("a", final)
        waiters.notify("a", None)
        assert one.result() is other.result() is final
        assert not another.done()
        assert len(waiters) == 2
    waiters.notify("a", final)
    assert len(waiters) == 0


async def test_waiting_callers_wake_after_the_answer_is_stored(outbox: Outbox) -> None:
    waiters = outbox.waiters
    infer_request = request()
    with waiters.watch(infer_request.request_id) as completion:
        await outbox.finish(infer_request.request_id, response(infer_request))
        assert not completion.done()  # there was no promise to end
        await outbox.put(OutboxItem(infer_request, (0,), response(infer_request, Status.PROVISIONAL), 0.0))
        await outbox.finish(infer_request.request_id, response(infer_request, value=0.75))
        final = completion.result()
        stored = await outbox.answer(infer_request.request_id, "local")
        assert final.answer == stored.answer


async def test_waiting_callers_wake_when_a_promise_is_given_up(outbox: Outbox) -> None:
    waiters = outbox.waiters
    infer_request = request()
    await outbox.put(OutboxItem(infer_request, (0,), response(infer_request, Status.PROVISIONAL), 0.0))
    await outbox._write(
        lambda transaction: transaction.connection.execute("UPDATE items SET provisional = x'', request = x''")
    )
    with waiters.watch(infer_request.request_id) as completion:
        assert await outbox.pending(1) == []
        assert completion.result() is None
