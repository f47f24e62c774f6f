"""The store's writer at its end: what is submitted then is written or refused, and never waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.databases import sqlite_store

from firstline_core.errors import NotReadyError
from firstline_gateway.store import writer as module
from firstline_gateway.store.database import Database, open_database
from firstline_gateway.store.writer import GroupWriter


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = open_database(sqlite_store(tmp_path))
    yield found
    found.close()


def test_what_is_submitted_while_the_writer_ends_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = GroupWriter(database)

    def future_of_a_slow_thread() -> Future[Any]:
        monkeypatch.undo()
        assert writer.close()  # all of it happens between the caller's look and what it queues
        return Future()

    monkeypatch.setattr(module, "Future", future_of_a_slow_thread)
    with pytest.raises(NotReadyError, match="is ending"):
        writer.submit(lambda _: None)
    assert writer.close()  # twice is harmless


def test_threads_that_submit_until_the_end_all_hear_of_theirs(database: Database) -> None:
    taken: list[Future[int]] = []
    begun = threading.Barrier(5)

    def submit(writer: GroupWriter) -> None:
        begun.wait()
        with suppress(NotReadyError):
            while True:
                one = writer.submit(lambda _: 1)
                taken.append(one)
                one.result(10)

    for _ in range(20):
        writer = GroupWriter(database)
        threads = [threading.Thread(target=submit, args=(writer,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        assert writer.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
    assert [one.result(0) for one in taken] == [1] * len(taken)
