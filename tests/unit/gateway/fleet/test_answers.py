"""Promises that have ended: stored once, in order, and bounded."""

import pytest

from firstline_core.fleet.telemetry import EndedPromise
from firstline_gateway.fleet import answers
from firstline_gateway.store.database import Database


def ended(request_id: str) -> EndedPromise:
    return EndedPromise(request_id, "digits", "1", changed=True)


def store(database: Database, device: str, *request_ids: str, now_s: float = 0.0) -> None:
    with database.begin() as connection:
        answers.add(connection, device, [ended(each) for each in request_ids], now_s=now_s, service_s=0.0)


def stored(database: Database, after: int = 0) -> list[tuple[str, str]]:
    with database.reading() as connection:
        return [(each.device, each.request_id) for each in answers.page(connection, after, 100)]


def test_a_repeated_report_stores_a_promise_once(database: Database) -> None:
    store(database, "cam", "a", "b")
    store(database, "cam", "b", "c")
    store(database, "door", "a")
    assert stored(database) == [("cam", "a"), ("cam", "b"), ("cam", "c"), ("door", "a")]


def test_the_newest_promises_of_each_device_are_kept(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "OF_A_DEVICE", 2)
    store(database, "door", "a")
    store(database, "cam", "a", "b", "c", "d")
    assert stored(database) == [("door", "a"), ("cam", "c"), ("cam", "d")]


def test_old_promises_are_deleted_and_numbers_continue(database: Database) -> None:
    store(database, "cam", "a", "b")
    with database.begin() as connection:
        before = answers.last(connection)
        answers.forget(connection, answers.KEPT_S + 1)
    store(database, "cam", "c")
    assert stored(database) == [("cam", "b"), ("cam", "c")] and stored(database, before) == [("cam", "c")]
