"""How many jobs are kept, and how many bytes, in all and of one principal; within a caller's transaction.

The sum of what changed, not a count of the jobs: that would take longer the more there are. Changes are only ever
added, for two replicas that wrote to the same rows could wait for each other for good; many are put together into one
a principal, so that the sum stays short.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sqlalchemy import Connection, case, delete, func, insert, select, text

from firstline_gateway.jobs.tables import JOBS, KEPT

LOOSE = 64
"""Rows beyond two a principal that are left as they are."""

_C = KEPT.c


class Amounts(NamedTuple):
    """The stored jobs in total, and those of a principal."""

    jobs: int
    size_bytes: int
    own_jobs: int
    own_bytes: int


def change(connection: Connection, principal: str, jobs: int, size_bytes: int) -> None:
    """Notes that so much more is kept, or less."""
    connection.execute(insert(KEPT).values(principal=principal, jobs=jobs, size_bytes=size_bytes))


def amounts(connection: Connection, principal: str) -> Amounts:
    """Returns the current usage."""
    own = _C.principal == principal
    sums = [func.coalesce(func.sum(each), 0) for each in (_C.jobs, _C.size_bytes)]
    sums += [func.coalesce(func.sum(case((own, each), else_=0)), 0) for each in (_C.jobs, _C.size_bytes)]
    *found, rows, principals = connection.execute(
        select(*sums, func.count(), func.count(_C.principal.distinct())).select_from(KEPT)
    ).one()
    if rows > LOOSE + 2 * principals:
        _put_together(connection)
    return Amounts(*map(int, found))


def recount(connection: Connection) -> None:
    """Counts the jobs after all: an earlier writer may not have maintained the sums."""
    if connection.dialect.name == "postgresql":  # until what others have under way is written
        connection.execute(text("LOCK TABLE jobs_kept IN SHARE ROW EXCLUSIVE MODE"))
    connection.execute(delete(KEPT))
    counted = select(JOBS.c.principal, func.count(), func.sum(JOBS.c.size_bytes)).group_by(JOBS.c.principal)
    connection.execute(insert(KEPT).from_select(["principal", "jobs", "size_bytes"], counted))


def _put_together(connection: Connection) -> None:
    mine = select(_C.sequence).with_for_update(skip_locked=True)  # what another puts together is left to it
    found = connection.execute(
        delete(KEPT).where(_C.sequence.in_(mine)).returning(_C.principal, _C.jobs, _C.size_bytes)
    ).all()
    jobs, sizes = Counter[str](), Counter[str]()
    for principal, count, size_bytes in found:
        jobs[principal] += count
        sizes[principal] += size_bytes
    for principal in jobs:
        if jobs[principal] or sizes[principal]:
            change(connection, principal, jobs[principal], sizes[principal])
