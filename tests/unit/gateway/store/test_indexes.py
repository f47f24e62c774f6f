"""Queries that run every few seconds, or for each page of the console, use an index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from firstline_gateway.fleet import devices
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.rollout import LIVE
from firstline_gateway.store.database import Database


@pytest.mark.parametrize(
    ("read", "index"),
    [
        (lambda on: devices.unpublished(on, 10), "ix_fleet_devices_lead"),
        (lambda on: records.waiting(on, 10), "ix_rollouts_state_id"),
        (lambda on: records.in_states(on, *LIVE), "ix_rollouts_state_id"),
        (records.by_state, "ix_rollouts_state_id"),
    ],
)
def test_frequent_queries_use_an_index(database: Database, read: Callable[[Connection], object], index: str) -> None:
    asked: list[tuple[str, Any]] = []
    event.listen(database._engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2:4]))
    with database.reading() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # which is faster for an empty table
        asked.clear()
        read(connection)
        statement, parameters = asked[-1]
        explain = "EXPLAIN" if database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()
    assert index in str(plan)
