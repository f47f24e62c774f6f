"""What is kept of jobs is known without counting them, on either database."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import Connection, func, select, update
from support.databases import OpenStore, PostgreSql

from firstline_core.errors import IntegrityError
from firstline_gateway.jobs import records
from firstline_gateway.jobs.records import JOBS, RUNNING, USAGE, Job, JobResult
from firstline_gateway.settings.settings import JobsSection, StoreSection
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database

ROOM = JobsSection(limit=10_000, bytes_limit=1 << 30)
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


def test_usage_equals_a_count_and_its_rows_stay_few(database: Database) -> None:
    rng = random.Random(1)
    jobs: list[tuple[str, str]] = []
    for at in range(200):
        with database.begin() as connection:
            doing = rng.random()
            if doing < 0.5 or not jobs:
                jobs.append((f"j{at}", principal := rng.choice(WHO)))
                assert records.add(connection, job(f"j{at}", principal, rng.randrange(100)), 2, ROOM) is None
            elif doing < 0.8:
                records.end(connection, rng.choice(jobs)[0], JobResult(200, bytes(rng.randrange(200)), None), float(at))
            elif doing < 0.97:
                records.remove(connection, *rng.choice(jobs))
            else:
                records.remove_ended(connection, at - 50.0)
            principal = rng.choice(WHO)
            assert records.usage(connection, principal) == counted(connection, principal)
            rows = connection.execute(select(func.count()).select_from(USAGE)).scalar_one()
            assert rows <= records.UNCOMBINED_ROWS + 2 * len(WHO) + 1


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


def test_two_replicas_combine_usage_at_the_same_time(postgresql: PostgreSql) -> None:
    url = postgresql.new_database()
    one, other = open_database(StoreSection(url=url)), open_database(StoreSection(url=url))
    with one.begin() as connection:
        for _ in range(records.UNCOMBINED_ROWS + 3):
            records.change_usage(connection, "anna", 1, 5)
    whole = records.UNCOMBINED_ROWS + 3, 5 * (records.UNCOMBINED_ROWS + 3)
    with one.begin() as first, other.begin() as second:
        assert records.usage(first, "anna")[:2] == whole  # and puts them together
        records.change_usage(first, "anna", 1, 5)
        assert records.usage(second, "anna")[:2] == whole
        records.change_usage(second, "bob", 1, 7)
    with one.begin() as connection:
        assert records.usage(connection, "anna") == (whole[0] + 2, whole[1] + 12, whole[0] + 1, whole[1] + 5)
    for each in (one, other):
        each.close()


def test_groups_of_two_replicas_add_jobs_of_the_same_principals(postgresql: PostgreSql) -> None:
    settings, gate, met = postgresql.new_store(), threading.Event(), threading.Barrier(2)
    runs = Counter[int]()

    def adding(replica: int, principal: str) -> Callable[[Connection], None]:
        def add(connection: Connection) -> None:
            assert records.add(connection, job(f"{principal}{replica}", principal, 5), 2, ROOM) is None
            runs[replica] += 1
            if runs[replica] == 1:  # with the usage of one principal changed, as the other replica may be
                with suppress(threading.BrokenBarrierError):
                    met.wait(0.5)

        return add

    with OpenStore(settings) as one, OpenStore(settings) as other:
        done = []
        for replica, (store, names) in enumerate(((one.store, ("anna", "bob")), (other.store, ("bob", "anna")))):
            store.submit(lambda _: gate.wait(10))  # so that both jobs are one group
            done += [store.submit(adding(replica, name)) for name in names]
        gate.set()
        for each in done:
            each.result(20)
    assert runs == {0: 2, 1: 2}


def test_job_that_one_replica_ends_and_another_deletes(postgresql: PostgreSql) -> None:
    settings = postgresql.new_store()
    gate, added, ended = threading.Event(), threading.Event(), threading.Event()
    runs = Counter[str]()

    def add(connection: Connection) -> None:
        runs["add"] += 1
        assert records.add(connection, job("second", "anna", 5), 2, ROOM) is None
        added.set()
        assert ended.wait(5)  # with anna's usage changed

    def end(connection: Connection) -> bool:
        runs["end"] += 1
        assert added.wait(5)
        found = records.end(connection, "first", JobResult(200, b"answer", None), 1.0)
        ended.set()
        return found

    with OpenStore(settings) as one, OpenStore(settings) as other:
        one.store.submit(lambda connection: records.add(connection, job("first", "anna", 5), 2, ROOM)).result(20)
        one.store.submit(lambda _: gate.wait(10))  # so that the next two are one group
        group = [one.store.submit(add), one.store.submit(lambda on: records.remove(on, "first", "anna"))]
        ending = other.store.submit(end)
        gate.set()
        assert ending.result(20)
        assert [each.result(20) for each in group] == [None, True]
        with one.store.database.reading() as connection:
            assert records.usage(connection, "anna") == (1, 5, 1, 5)
    assert runs == {"add": 1, "end": 1}
