"""The group-commit writer: shared commits, failures that stay alone, and an end that answers everyone."""

import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from firstline_core.errors import NotReadyError, RequestError, StoreUnavailableError
from firstline_core.storage import group_writer as module
from firstline_core.storage.group_writer import GroupWriter
from firstline_core.telemetry.logs import logger

Writer = GroupWriter[sqlite3.Connection]


class Store:
    """One table in SQLite; `down` makes it refuse."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("CREATE TABLE keys (key TEXT PRIMARY KEY)")
        self.commits = 0
        self.down = False

    @contextmanager
    def begin(self) -> Iterator[sqlite3.Connection]:
        if self.down:
            raise StoreUnavailableError("The store is down.")
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        self.commits += 1

    def keys(self) -> list[str]:
        return [key for (key,) in self.connection.execute("SELECT key FROM keys ORDER BY key")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "store.db")
    yield found
    found.connection.close()


def writer_of(store: Store) -> Writer:
    return GroupWriter(store.begin, name="store", refusal=StoreUnavailableError, log=logger(__name__))


@pytest.fixture
def writer(store: Store) -> Iterator[Writer]:
    writer = writer_of(store)
    yield writer
    assert writer.close()


def insert(connection: sqlite3.Connection, key: str) -> int:
    return connection.execute("INSERT INTO keys VALUES (?)", (key,)).rowcount


@contextmanager
def one_group(writer: Writer) -> Iterator[None]:
    """What is submitted within the block makes one group."""
    entered, gate = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        entered.set()
        gate.wait(10)

    writer.submit(hold)
    assert entered.wait(10)
    try:
        yield
    finally:
        gate.set()


def test_operations_share_a_commit(store: Store, writer: Writer) -> None:
    with one_group(writer):
        done = [writer.submit(lambda connection, key=key: insert(connection, f"{key:02}")) for key in range(40)]
    assert [one.result(10) for one in done] == [1] * 40
    assert (len(store.keys()), store.commits) == (40, 2)


def test_a_slow_group_takes_several_commits(store: Store, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process waits for a row that both write no longer than one of them takes."""
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds) / 4)  # an operation takes a quarter of a second
    with one_group(writer):
        done = [writer.submit(lambda connection, key=key: insert(connection, f"{key:03}")) for key in range(255)]
    assert [one.result() for one in done] == [1] * 255
    assert len(store.keys()) == 255
    assert store.commits >= 1 + 128, "two operations take half a second"


def test_busy_time_is_that_of_one_transaction(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow group does not make a database look silent that answers."""
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds) / 4)
    with one_group(writer):
        done = [writer.submit(lambda _: writer.busy_since_s) for _ in range(40)]
    began_s = [one.result() for one in done]
    assert began_s == sorted(began_s) and len(set(began_s)) >= 20
    assert writer.close() and writer.busy_since_s is None


def test_a_group_is_written_in_the_order_of_keys(writer: Writer) -> None:
    order = list[str]()
    with one_group(writer):
        for name, key in (("c1", "c"), ("a1", "a"), ("c2", "c"), ("first", ""), ("b", "b"), ("a2", "a")):
            writer.submit_then(lambda _, name=name: order.append(name), lambda result: result, key=key)
    assert writer.close()
    assert order == ["first", "a1", "a2", "b", "c1", "c2"]


def test_an_operation_that_raises_fails_alone(store: Store, writer: Writer) -> None:
    with one_group(writer):
        first = writer.submit(lambda connection: insert(connection, "a"))
        twice = writer.submit(lambda connection: insert(connection, "a"))
        other = writer.submit(lambda connection: insert(connection, "b"))
    assert first.result(10) == other.result(10) == 1
    with pytest.raises(sqlite3.IntegrityError):
        twice.result(10)
    assert store.keys() == ["a", "b"]


def test_an_operation_that_returns_an_error_undoes_nothing(store: Store, writer: Writer) -> None:
    with one_group(writer):
        refused: Future[int] = writer.submit(lambda _: RequestError("No."))
        other = writer.submit(lambda connection: insert(connection, "b"))
    assert other.result(10) == 1
    with pytest.raises(RequestError):
        refused.result(10)
    assert store.commits == 2  # the group was committed once


def test_a_callback_runs_after_the_commit(store: Store, writer: Writer) -> None:
    done = writer.submit_then(lambda connection: insert(connection, "a"), lambda _: store.connection.in_transaction)
    assert done.result(10) is False


def test_a_refusing_store_fails_the_whole_group(store: Store, writer: Writer) -> None:
    store.down = True
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            writer.submit(lambda connection: insert(connection, "a")).result(10)
    assert writer.problem == "The store is down."
    store.down = False
    assert writer.submit(lambda connection: insert(connection, "a")).result(10) == 1
    assert writer.problem == ""


def test_operations_submitted_during_shutdown_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(store)

    def future_of_a_slow_thread() -> Future[Any]:
        monkeypatch.undo()
        assert writer.close()  # all of it happens between the caller's check and its place in the queue
        return Future()

    monkeypatch.setattr(module, "Future", future_of_a_slow_thread)
    with pytest.raises(NotReadyError, match="is closed"):
        writer.submit(lambda _: None)
    assert writer.close()  # twice is harmless


def test_every_submission_gets_an_outcome(store: Store) -> None:
    taken: list[Future[int]] = []
    begun = threading.Barrier(5)

    def submit(writer: Writer) -> None:
        begun.wait()
        with suppress(NotReadyError):
            while True:
                one = writer.submit(lambda _: 1)
                taken.append(one)
                one.result(10)

    for _ in range(20):
        writer = writer_of(store)
        threads = [threading.Thread(target=submit, args=(writer,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        assert writer.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
    assert [one.result(0) for one in taken] == [1] * len(taken)
