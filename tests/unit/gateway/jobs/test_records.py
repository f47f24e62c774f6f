"""What is kept of jobs is known without counting them, on either database."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import Connection, func, select, update
from support.databases import PostgreSql

from firstline_core.errors import IntegrityError
from firstline_gateway.jobs import records
from firstline_gateway.jobs.records import JOBS, RUNNING, Job, JobResult
from firstline_gateway.settings.settings import Jobs as JobSettings
from firstline_gateway.settings.settings import Store
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database

ROOM = JobSettings(limit=10_000, bytes_limit=1 << 30)
WHO = ("anna", "bob", "carl")


def job(job_id: str, principal: str, size_bytes: int) -> Job:
    return Job(job_id, principal, "m", "", RUNNING, bytes(size_bytes), None, None, 0.0)


def counted(connection: Connection, principal: str) -> records.Usage:
    """The same by counting."""
    found: list[int] = []
    for chosen in (JOBS.c.sequence > 0, JOBS.c.principal == principal):
        query = select(func.count(), func.coalesce(func.sum(JOBS.c.size_bytes), 0)).where(chosen)
        found += map(int, connection.execute(query).one())
    return records.Usage(*found)


@pytest.mark.parametrize("seed", range(2))
def test_usage_equals_a_count(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    known: list[tuple[str, str]] = []
    for at in range(400):
        with database.begin() as connection:
            doing = rng.random()
            if doing < 0.5 or not known:
                known.append((f"j{at}", principal := rng.choice(WHO)))
                assert records.add(connection, job(f"j{at}", principal, rng.randrange(100)), 2, ROOM) is None
            elif doing < 0.8:
                records.end(
                    connection, rng.choice(known)[0], JobResult(200, bytes(rng.randrange(200)), None), float(at)
                )
            elif doing < 0.97:
                records.remove(connection, *rng.choice(known))
            else:
                records.remove_ended(connection, at - 50.0)
            principal = rng.choice(WHO)
            assert records.usage(connection, principal) == counted(connection, principal)


@pytest.mark.parametrize("column", ["principal", "model", "version"])
@pytest.mark.parametrize("ended", [False, True])
def test_job_with_a_damaged_column_is_damaged(database: Database, column: str, ended: bool) -> None:
    with database.begin() as connection:
        assert records.add(connection, job("j", "anna", 9), 2, ROOM) is None
        if ended:
            assert records.end(connection, "j", JobResult(200, b"answer", None), 1.0)
        found = records.find(connection, "j", "anna")
        assert found is not None and found.content == (b"answer" if ended else bytes(9))
        assert records.find(connection, "j", "bob") is None
        connection.execute(update(JOBS).values({column: "bnna"}))
        with pytest.raises(IntegrityError):
            records.find(connection, "j", "anna")


def test_two_replicas_change_the_usage_of_two_principals(postgresql: PostgreSql) -> None:
    url = postgresql.new_database()
    one, other = open_database(Store(url=url)), open_database(Store(url=url))
    with one.begin() as first, other.begin() as second:
        assert records.add(first, job("a", "anna", 5), 2, ROOM) is None
        assert records.add(second, job("b", "bob", 7), 2, ROOM) is None
    with one.begin() as connection:
        assert records.usage(connection, "anna") == (2, 12, 1, 5)
    for each in (one, other):
        each.close()
