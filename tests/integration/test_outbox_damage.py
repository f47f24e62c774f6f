"""Outboxes that a disk has damaged: no wrong record is returned, intact ones are restored, losses are reported."""

import asyncio
import contextlib
import errno
import os
import random
import shutil
import sqlite3
import statistics
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faulty_disk import quick_folder
from support.outbox_faults import Kept, filled, promise
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import CapacityError
from firstline_core.storage.files import erase
from firstline_core.storage.seals import Seal
from firstline_edge.outbox import recovery
from firstline_edge.outbox.database import (
    FORMAT,
    PAGE_BYTES,
    DamagedError,
    HighWaterMark,
    RowNumbers,
    count_promises,
    open_writer,
)
from firstline_edge.outbox.outbox import Outbox

# A page holds a few small records, and parts of two that are larger than it.
A_PAGE = 12
# Small records, or parts of larger ones, that the log holds before SQLite moves it into the database.
IN_THE_LOG = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as found:
        yield found


async def damaged(original: Kept, into: Path, file: str, damage: Callable[[bytearray], None]) -> Kept:
    """A copy of an outbox, with damage done to one of its files."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(original.folder, into)
    content = bytearray((into / file).read_bytes())
    damage(content)
    (into / file).write_bytes(content)
    copy = Kept(into)
    copy.promises, copy.answers = original.promises, original.answers
    return copy


# A damaged page of the database costs the records on it, a damaged log what follows in it.
@pytest.mark.parametrize(
    ("file", "closed", "lost_most"),
    [
        ("outbox.db", True, 1),
        ("outbox.db", False, 1),
        ("outbox.db-wal", False, IN_THE_LOG),
        ("outbox.db.mark", True, 0),
    ],
)
async def test_a_flipped_bit_costs_few_records_and_is_reported(
    folder: Path, file: str, closed: bool, lost_most: int
) -> None:
    rng = random.Random(11)
    original = await filled(folder / "kept", rng, closed=closed, count=60)
    size_bytes = (original.folder / file).stat().st_size
    for _ in range(25):

        def flip(content: bytearray) -> None:
            bit = rng.randrange(8 * size_bytes)
            content[bit // 8] ^= 1 << bit % 8

        lost, reason = await (await damaged(original, folder / "work", file, flip)).check(lost_most=lost_most)
        assert reason or not lost


@pytest.mark.parametrize("seal", [Seal(), Seal([b"k" * 32])])
@pytest.mark.parametrize("where", ["sequence = 1", "true"])
@pytest.mark.parametrize("time", ["-1.0", "3.9e9", "1e300", "9e999"])
async def test_implausible_times_age_no_promise(folder: Path, seal: Seal, where: str, time: str) -> None:
    await filled(folder / "kept", random.Random(17), closed=True, count=12, seal=seal)
    path = folder / "kept" / "outbox.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE items SET created_wall_s = {time} WHERE {where}")
        connection.execute("DROP INDEX items_by_age")  # so that no time is confirmed
    outbox = Outbox(path, clock=SimulatedClock(), seal=lambda: seal)
    assert "8 promised corrections" in outbox.damage
    assert outbox.oldest_s < 60.0
    outbox.close()


@pytest.mark.parametrize("when", ["created_wall_s FROM items", "stored_wall_s FROM answers"])
async def test_a_flipped_time_ages_nothing_else(folder: Path, when: str) -> None:
    original = await filled(folder / "kept", random.Random(17), closed=True, count=12)
    with contextlib.closing(sqlite3.connect(original.folder / "outbox.db")) as connection:
        (wall_s,) = connection.execute(f"SELECT {when} ORDER BY sequence LIMIT 1").fetchone()
    # SQLite stores a real number without a fraction as an integer.
    stored = struct.pack(">i", int(wall_s)) if wall_s.is_integer() else struct.pack(">d", wall_s)
    for bit in range(0, 8 * len(stored), 3):

        def flip(content: bytearray) -> None:
            content[content.index(stored) + bit // 8] ^= 1 << bit % 8  # noqa: B023

        lost, reason = await (await damaged(original, folder / "work", "outbox.db", flip)).check(lost_most=1)
        assert reason or not lost


@pytest.mark.parametrize(("file", "closed"), [("outbox.db", True), ("outbox.db-wal", False)])
async def test_overwritten_page_loses_its_records_and_is_reported(folder: Path, file: str, closed: bool) -> None:
    rng = random.Random(12)
    original = await filled(folder / "kept", rng, closed=closed, count=20)
    pages = (original.folder / file).stat().st_size // PAGE_BYTES
    losses = []
    for page in rng.sample(range(pages), 12):

        def spoil(content: bytearray) -> None:
            content[PAGE_BYTES * page : PAGE_BYTES * (page + 1)] = rng.randbytes(PAGE_BYTES)  # noqa: B023

        lost, reason = await (await damaged(original, folder / "work", file, spoil)).check(lost_most=20)
        losses.append(lost)
        assert reason or not lost
    assert statistics.median(losses) <= A_PAGE


@pytest.mark.parametrize(("file", "closed"), [("outbox.db", True), ("outbox.db", False), ("outbox.db-wal", False)])
async def test_truncated_records_are_lost_and_reported(folder: Path, file: str, closed: bool) -> None:
    rng = random.Random(13)
    original = await filled(folder / "kept", rng, closed=closed, count=20)
    size_bytes = (original.folder / file).stat().st_size
    for left in [0, 1, 100, 512, PAGE_BYTES, PAGE_BYTES + 1, *(rng.randrange(size_bytes) for _ in range(6))]:

        def cut(content: bytearray) -> None:
            del content[left:]  # noqa: B023

        lost, reason = await (await damaged(original, folder / "work", file, cut)).check(lost_most=20)
        cut_share = 1 - min(1.0, left / size_bytes)
        assert lost <= A_PAGE + 20 * cut_share
        assert reason or not lost


async def test_a_log_that_is_gone_is_reported_once(folder: Path) -> None:
    stored = await filled(folder / "kept", random.Random(16), closed=False, count=5)
    (stored.folder / "outbox.db-wal").unlink()
    outbox = Outbox(stored.folder / "outbox.db", clock=SimulatedClock())
    assert "that were acknowledged are lost" in outbox.damage
    await outbox.put(new := promise())
    outbox.close()
    outbox = Outbox(stored.folder / "outbox.db", clock=SimulatedClock())
    assert outbox.damage == ""
    assert new.request.request_id in {item.request.request_id for item in await outbox.pending(9)}
    outbox.close()


@pytest.mark.parametrize(
    "stored", ["NULL", "0", "1", "-1", "'many'", "CAST(x'ff' AS TEXT)", "1e300", "9223372036854775807"]
)
@pytest.mark.parametrize("table", ["items", "answers"])
async def test_damaged_row_number_loses_nothing_and_is_reported(folder: Path, table: str, stored: str) -> None:
    original = await filled(folder / "kept", random.Random(22), closed=True, count=9)
    with contextlib.closing(sqlite3.connect(original.folder / "outbox.db")) as connection, connection:
        connection.execute(f"UPDATE sqlite_sequence SET seq = {stored} WHERE name = '{table}'")
    lost, reported = await original.check(lost_most=0)
    assert lost == 0
    assert f"its newest row number of the table {table} is invalid" in reported
    assert "6 promised corrections and 3 answers" in reported
    assert "are lost" not in reported
    outbox = Outbox(original.folder / "outbox.db", clock=SimulatedClock())
    assert outbox.damage == ""
    outbox.close()


async def test_a_mark_that_cannot_be_opened_costs_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = await filled(folder / "kept", random.Random(23), closed=True, count=6)
    (stored.folder / "outbox.db.mark").unlink()
    (stored.folder / "outbox.db.mark").mkdir()
    assert await stored.check(lost_most=0) == (0, "")
    assert len([record for record in caplog.records if "outbox mark" in record.getMessage()]) == 1


async def test_a_mark_that_cannot_be_read_costs_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = await filled(folder / "kept", random.Random(24), closed=True, count=6)

    def refuse(_file: int, _length: int, _offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", refuse)
    assert await stored.check(lost_most=0) == (0, "")


@pytest.mark.parametrize("newest", [RowNumbers(-1, 0), RowNumbers(1 << 64, 0)])
def test_invalid_row_number_is_not_written(folder: Path, newest: RowNumbers) -> None:
    path = folder / "outbox.db"
    with contextlib.closing(open_writer(path)) as connection:
        mark = HighWaterMark(path, connection)
        mark.write(RowNumbers(3, 2))
        mark.write(newest)
        assert mark.read() == RowNumbers(3, 2)
        mark.close()


@pytest.mark.parametrize(
    ("opens", "message"),
    [(True, "that were acknowledged are lost"), (False, "set aside as outbox.db.damaged; SQLite cannot open it")],
)
async def test_damage_is_reported_by_the_start_that_succeeds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, opens: bool, message: str
) -> None:
    path = (await filled(folder / "kept", random.Random(25), closed=False, count=5)).folder / "outbox.db"
    if opens:
        path.with_name("outbox.db-wal").unlink()
    else:
        path.write_bytes(b"this is no database at all" * 100)

    def refuse(_path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("firstline_edge.outbox.database.read_times", refuse)
        with pytest.raises(CapacityError, match="disk I/O error"):
            Outbox(path, clock=SimulatedClock()).check()
    reasons = []
    for _ in range(2):
        outbox = Outbox(path, clock=SimulatedClock())
        reasons.append(outbox.damage)
        outbox.close()
    assert message in reasons[0] and reasons[1] == ""


async def test_a_failed_replacement_leaves_no_connection_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "outbox.db").write_bytes(b"this is no database at all" * 100)
    opened = []

    def refuse(_path: Path, connection: sqlite3.Connection) -> HighWaterMark:
        opened.append(connection)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(recovery, "HighWaterMark", refuse)
    with pytest.raises(CapacityError, match="disk I/O error"):
        Outbox(folder / "outbox.db", clock=SimulatedClock()).check()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


async def test_interrupted_first_start_is_not_damage(folder: Path) -> None:
    path = folder / "new" / "outbox.db"
    path.parent.mkdir()
    path.with_name("outbox.db.begun").touch()
    path.with_name("outbox.db.begun-wal").write_bytes(b"half of it")
    for _ in range(2):
        outbox = Outbox(path)
        assert outbox.damage == ""
        outbox.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["outbox.db", "outbox.db.mark"]


def clear_first_page(content: bytearray) -> None:
    content[:PAGE_BYTES] = bytes(PAGE_BYTES)


def spoil_schema(content: bytearray) -> None:
    at = content.index(b"CREATE TABLE items")
    content[at : at + 18] = b"\xff" * 18


def flip_version(content: bytearray) -> None:
    content[63] ^= 1  # the last byte of user_version


@pytest.mark.parametrize(
    ("spoil", "lost", "message"),
    [
        (clear_first_page, 6, "SQLite cannot open it, so every promised correction and every answer in it is lost"),
        (spoil_schema, 4, "It was damaged"),  # the promises; the answers have a table of their own
        (
            flip_version,
            0,
            f"its format is {FORMAT ^ 1} in one place and {FORMAT} in another",
        ),  # which is not a newer version
    ],
)
async def test_damage_of_the_first_page_is_reported(
    folder: Path, spoil: Callable[[bytearray], None], lost: int, message: str
) -> None:
    original = await filled(folder / "kept", random.Random(20), closed=True, count=6)
    found, reason = await (await damaged(original, folder / "work", "outbox.db", spoil)).check(lost_most=6)
    assert (found, message in reason) == (lost, True), reason
    assert (folder / "work" / "outbox.db.damaged").exists()


async def test_a_text_that_cannot_be_decoded_costs_its_record(folder: Path) -> None:
    stored = await filled(folder / "kept", random.Random(21), closed=True, count=6)
    with contextlib.closing(sqlite3.connect(stored.folder / "outbox.db")) as connection, connection:
        connection.execute(
            "UPDATE items SET principal = CAST(x'ff' AS TEXT) WHERE sequence = (SELECT min(sequence) FROM items)"
        )
    lost, reason = await stored.check(lost_most=1)
    assert lost == 1
    assert "1 record could not be read" in reason


async def test_an_interrupted_replacement_is_finished_or_restarted(folder: Path) -> None:
    original = await filled(folder / "kept", random.Random(15), closed=False, count=6)
    work, whole = folder / "work", folder / "whole"
    shutil.copytree(original.folder, work)
    outbox = Outbox(work / "outbox.db", clock=SimulatedClock())
    outbox.close()
    # The fresh one was whole, and the damaged one was set aside, when the power went; its log was still in its place.
    shutil.copytree(original.folder, whole)
    (whole / "outbox.db").rename(whole / "outbox.db.damaged")
    shutil.copy(work / "outbox.db", whole / "outbox.db.fresh")
    copy = Kept(whole)
    copy.promises, copy.answers = original.promises, original.answers
    assert await copy.check(lost_most=0) == (0, "")
    assert (whole / "outbox.db.damaged-wal").exists()
    # It was not: what was there of it is forgotten.
    (original.folder / "outbox.db.fresh").write_bytes(b"half of it")
    assert await original.check(lost_most=0) == (0, "")
    assert not (original.folder / "outbox.db.fresh").exists()


async def test_with_a_key_no_payload_is_on_the_disk(folder: Path) -> None:
    path = folder / "state" / "outbox.db"
    secret = b"image 1"
    for seal, readable in ((Seal(), True), (Seal([b"k" * 32]), False)):
        outbox = Outbox(path, seal=lambda seal=seal: seal, clock=SimulatedClock())
        await outbox.put(one := promise())
        outbox.close()
        assert (secret in path.read_bytes()) is readable
        outbox = Outbox(path, seal=lambda: Seal([b"n" * 32, b"k" * 32]), clock=SimulatedClock())
        assert [item.request.request_id for item in await outbox.pending(9)] == [one.request.request_id]
        outbox.close()
        erase(path)


async def test_wrong_key_sets_the_outbox_aside(folder: Path) -> None:
    path, first = folder / "outbox.db", Seal([b"k" * 32])
    outbox = Outbox(path, seal=Seal, clock=SimulatedClock())
    await outbox.put(plain := promise())
    outbox.close()
    outbox = Outbox(path, seal=lambda: first, clock=SimulatedClock())
    await outbox.put(hidden := promise())
    outbox.close()
    for other in (Seal([b"o" * 32]), Seal()):
        outbox = Outbox(path, seal=lambda other=other: other, clock=SimulatedClock())
        assert [item.request.request_id for item in await outbox.pending(9)] == [plain.request.request_id]
        assert "encryption.key_file" in outbox.damage
        assert "outbox.db.damaged" in outbox.damage
        await outbox.put(promise())
        outbox.close()
        path.unlink()
        path.with_name("outbox.db.damaged").rename(path)
        outbox = Outbox(path, seal=lambda: first, clock=SimulatedClock())
        found = [item.request.request_id for item in await outbox.pending(9)]
        assert found == [plain.request.request_id, hidden.request.request_id]
        assert outbox.damage == ""
        outbox.close()


async def test_a_damaged_replacement_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "outbox.db").write_bytes(b"this is no database at all" * 100)

    def damaged_again(_path: Path) -> sqlite3.Connection:
        raise DamagedError("its first page is not as it was written")

    monkeypatch.setattr(recovery.database, "open_writer", damaged_again)
    with pytest.raises(CapacityError, match="its first page is not as it was written"):
        Outbox(folder / "outbox.db", clock=SimulatedClock()).check()


async def test_the_right_key_after_a_wrong_one_overwrites_nothing(folder: Path) -> None:
    path, right, wrong = folder / "outbox.db", Seal([b"k" * 32]), Seal([b"o" * 32])
    for seal in (right, wrong):
        outbox = Outbox(path, seal=lambda seal=seal: seal, clock=SimulatedClock())
        await outbox.put(promise())
        outbox.close()
    aside = path.with_name("outbox.db.damaged")
    before = aside.read_bytes()
    with pytest.raises(CapacityError, match=r"outbox.db.damaged was set aside before.*Put that file or that key back"):
        Outbox(path, seal=lambda: right, clock=SimulatedClock()).check()
    assert aside.read_bytes() == before
    aside.replace(path)
    outbox = Outbox(path, seal=lambda: right, clock=SimulatedClock())
    assert outbox.depth == 1
    outbox.close()


@pytest.mark.parametrize("closed", [True, False])
async def test_promises_of_an_unopened_outbox_are_counted(folder: Path, closed: bool) -> None:
    stored = await filled(folder / "kept", random.Random(18), closed=closed, count=9)
    path = stored.folder / "outbox.db"
    before = {file: file.read_bytes() for file in stored.folder.iterdir()}

    def refused() -> Seal:
        raise CapacityError("The disk is full.")

    outbox = Outbox(path, seal=refused, clock=SimulatedClock())
    assert outbox.depth == 6
    assert outbox.size_bytes > 6 * 512
    # What may be damaged in the log is not taken over by looking.
    assert {file: content for file in stored.folder.iterdir() if (content := file.read_bytes())} == before
    assert count_promises(folder / "nowhere") == (0, 0)
    assert not (folder / "nowhere").exists()


async def test_a_running_outbox_that_sqlite_refuses_is_a_problem(folder: Path) -> None:
    path = folder / "outbox.db"
    outbox = Outbox(path, clock=SimulatedClock())
    await outbox.put(promise())
    assert outbox.problem == ""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE items RENAME TO elsewhere")  # as if its page could not be read
    for refused in (outbox.put(promise()), outbox.pending(1)):
        with pytest.raises(CapacityError):
            await refused
    assert "could not be written" in outbox.problem
    assert "could not be read" in outbox.problem
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE elsewhere RENAME TO items")
    await outbox.put(promise())
    assert len(await outbox.pending(10)) == 2
    assert outbox.problem == ""
    outbox.close()


async def test_problem_of_one_failed_read_ends_without_promises(folder: Path) -> None:
    path = folder / "outbox.db"
    outbox = Outbox(path, clock=SimulatedClock())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE items RENAME TO elsewhere")  # as if its page could not be read
    with pytest.raises(CapacityError):
        await outbox.pending(1)
    assert "could not be read" in outbox.problem
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE elsewhere RENAME TO items")
    periodic = asyncio.create_task(outbox.keep_expiring())
    await until(lambda: not outbox.problem)
    periodic.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await periodic
    outbox.close()
