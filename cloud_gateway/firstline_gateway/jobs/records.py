"""Jobs in the store, and how much each principal stores; within a caller's transaction.

The content of a job is sealed, as the answers of deliveries are: SQLite does not detect that a disk changed a byte.

The usage is the sum of its changes, because counting the jobs would take longer the more there are. Changes are only
added, because two replicas that update the same rows could deadlock. Many rows are combined into one per principal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from firstline_core.errors import IntegrityError, QueueFullError
from firstline_core.storage.seals import Seal
from firstline_gateway.settings.settings import JobsSection
from firstline_gateway.store.schema import METADATA, SEQUENCE

JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Text, nullable=False),  # the request's id
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),  # 0 while the job waits or runs, then the HTTP status
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),  # of the content
    sa.Column("content", sa.LargeBinary, nullable=False),  # sealed: the request, then the answer
    sa.Column("header", sa.Integer),  # bytes of JSON at its start; NULL if all of it is JSON
    sa.Column("due_service_s", sa.Double),  # when the job expires; NULL for never
    sa.Column("service_s", sa.Double, nullable=False),  # when it was submitted, then when it ended
    sa.Column("holder", sa.Text, nullable=False),  # the replica that runs it
    sa.Column("lease_service_s", sa.Double, nullable=False),  # when that replica's lease expires
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.UniqueConstraint("job_id"),
    sa.Index(None, "status", "priority", "sequence"),
    sa.Index(None, "service_s"),
)

USAGE = sa.Table(
    "jobs_usage",
    METADATA,
    sa.Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("jobs", sa.Integer, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
)
"""Changes of what each principal stores; the usage is their sum."""

RUNNING = 0
"""The status of a job that has no answer yet; later it is the HTTP status."""

UNCOMBINED_ROWS = 64
"""Rows of `USAGE`, beyond two per principal, that are not combined yet."""

_SEAL = Seal()
_RETRY_S = 5.0
_C, _U = JOBS.c, USAGE.c


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Args:
        job_id: the request's id.
        principal: the owner.
        model, version: as requested.
        status: `RUNNING`, or the HTTP status.
        content: the V2 request; once the job has ended, the body of the answer or error.
        header: bytes of JSON at its start; None if all of it is JSON.
        due_service_s: when it expires; None for never.
        service_s: when it was submitted; once it has ended, when it ended.
        attempts: how often a replica started to run it.
    """

    job_id: str
    principal: str
    model: str
    version: str
    status: int
    content: bytes
    header: int | None
    due_service_s: float | None
    service_s: float
    attempts: int = 0


class JobResult(NamedTuple):
    """The result of a job: an HTTP status, a body, and the bytes of JSON at its start; None if all of it is JSON."""

    status: int
    content: bytes
    header: int | None


class Usage(NamedTuple):
    """The stored jobs in total, and those of a principal."""

    jobs: int
    size_bytes: int
    own_jobs: int
    own_bytes: int


def add(connection: sa.Connection, job: Job, priority: int, settings: JobsSection) -> QueueFullError | None:
    """Stores a new job if there is room. One principal may use no more room than it leaves free.

    Returns:
        Why the job is not stored. An exception would undo what others write in the same transaction.
    """
    size_bytes = len(job.content)
    stored = usage(connection, job.principal)
    free_jobs, free_bytes = settings.limit - stored.jobs, settings.bytes_limit - stored.size_bytes
    if stored.own_jobs >= free_jobs or stored.own_bytes + size_bytes > free_bytes - size_bytes:
        return QueueFullError(
            f"{stored.own_jobs} jobs of yours, with {stored.own_bytes} bytes, are kept here; {free_jobs} more, with "
            f"{free_bytes} bytes, are free, and one client may take no more than it leaves free. Delete "
            "answers that you have fetched, or retry after the time given with this error.",
            retry_after_s=_RETRY_S,
        )
    row = {name: getattr(job, name) for name in _FIELDS} | {
        "content": _SEAL.close(job.content, _sealed_with(job, job.status, job.header)),
        "priority": priority,
        "size_bytes": size_bytes,
        "holder": "",
        "lease_service_s": 0.0,
    }
    connection.execute(sa.insert(JOBS).values(row))
    change_usage(connection, job.principal, 1, size_bytes)
    return None


def find(connection: sa.Connection, job_id: str, principal: str) -> Job | None:
    """Returns a principal's job; None for an unknown id.

    Raises:
        IntegrityError: the job is damaged.
    """
    row = connection.execute(sa.select(*_COLUMNS).where(_C.job_id == job_id)).first()
    job = None if row is None else _job(row)  # the owner may be what is damaged
    return job if job is not None and job.principal == principal else None


def running(connection: sa.Connection, job_ids: Collection[str]) -> set[str]:
    """Returns those of these jobs that have not ended."""
    query = sa.select(_C.job_id).where(_C.job_id.in_(job_ids), _C.status == RUNNING)
    return set(connection.execute(query).scalars())


def any_unclaimed(connection: sa.Connection, service_s: float, submitted_by_s: float) -> bool:
    """Returns whether there is an unclaimed job that had been submitted by a time of service."""
    return connection.execute(_unclaimed(service_s, submitted_by_s).limit(1)).first() is not None


def claim(
    connection: sa.Connection,
    holder: str,
    count: int,
    suspects: int,
    *,
    service_s: float,
    submitted_by_s: float,
    lease_s: float,
) -> tuple[list[Job], list[str]]:
    """Claims up to `count` unclaimed jobs, urgent and old ones first; skips jobs that others are claiming.

    Args:
        connection: to the store.
        holder: the replica.
        count: largest number of jobs.
        suspects: largest number of jobs among them whose earlier attempts ended without a result.
        service_s: now.
        submitted_by_s: only jobs that had been submitted by this time are claimed.
        lease_s: duration of the claim.

    Returns:
        The jobs, and the ids of those whose content is damaged.
    """
    claimed: list[int] = []
    for begun, limit in ((_C.attempts > 0, suspects), (_C.attempts == 0, count)):
        unclaimed = (
            _unclaimed(service_s, submitted_by_s)
            .where(begun)
            .order_by(_C.priority, _C.sequence)
            .limit(min(limit, count - len(claimed)))
            .with_for_update(skip_locked=True)  # SQLite's transactions that write exclude each other anyway
        )
        claimed += connection.execute(unclaimed).scalars()
    if not claimed:
        return [], []
    mine = _C.sequence.in_(claimed)
    connection.execute(
        sa.update(JOBS).where(mine).values(holder=holder, lease_service_s=service_s + lease_s, attempts=_C.attempts + 1)
    )
    jobs, damaged = list[Job](), list[str]()
    for row in connection.execute(sa.select(*_COLUMNS).where(mine).order_by(_C.priority, _C.sequence)):
        try:
            jobs.append(_job(row))
        except IntegrityError:
            damaged.append(row.job_id)
    return jobs, damaged


def _unclaimed(service_s: float, submitted_by_s: float) -> sa.Select[int]:
    return sa.select(_C.sequence).where(
        _C.status == RUNNING, _C.lease_service_s < service_s, _C.service_s <= submitted_by_s
    )


def renew(connection: sa.Connection, holder: str, job_ids: list[str], service_s: float, lease_s: float) -> None:
    """Extends the leases of jobs that a replica runs."""
    connection.execute(_held(holder, _C.job_id.in_(job_ids)).values(lease_service_s=service_s + lease_s))


def release(connection: sa.Connection, holder: str, job_id: str | None = None, until_service_s: float = 0.0) -> None:
    """Releases a job for another attempt, from a time of service on; this attempt does not count.

    Args:
        connection: to the store.
        holder: the replica that claimed it.
        job_id: the job; None for all jobs of this replica, including claims whose confirmation it lost.
        until_service_s: time of service from which it can be claimed again.
    """
    which = () if job_id is None else (_C.job_id == job_id,)
    released = _held(holder, *which)
    connection.execute(released.values(holder="", lease_service_s=until_service_s, attempts=_C.attempts - 1))


def release_all(connection: sa.Connection) -> None:
    """Releases every job: for the only gateway of a store, which has just started."""
    connection.execute(sa.update(JOBS).where(_C.status == RUNNING).values(holder="", lease_service_s=0.0))


def _held(holder: str, *which: sa.ColumnElement[bool]) -> Any:
    return sa.update(JOBS).where(_C.holder == holder, _C.status == RUNNING, *which)


def end(connection: sa.Connection, job_id: str, result: JobResult, service_s: float) -> bool:
    """Replaces the request of a job by its result; the first result is kept.

    Returns:
        False if the job had ended before, or was deleted.
    """
    status, content, header = result
    unfinished = (_C.job_id == job_id, _C.status == RUNNING)
    columns = (_C.job_id, _C.principal, _C.model, _C.version, _C.size_bytes)
    before = connection.execute(sa.select(*columns).where(*unfinished)).first()
    if before is None:
        return False
    values = {
        "status": status,
        "size_bytes": len(content),
        "content": _SEAL.close(content, _sealed_with(before, status, header)),
        "header": header,
        "service_s": service_s,
        "holder": "",
        "lease_service_s": 0.0,
    }
    if not connection.execute(sa.update(JOBS).where(*unfinished).values(values)).rowcount:
        return False
    change_usage(connection, before.principal, 0, len(content) - before.size_bytes)
    return True


def remove(connection: sa.Connection, job_id: str, principal: str) -> bool:
    """Deletes a principal's job, ended or not; returns False if there was none."""
    return _delete(connection, _C.job_id == job_id, _C.principal == principal)


def remove_ended(connection: sa.Connection, before_s: float) -> None:
    """Deletes the jobs that ended before a time of service."""
    _delete(connection, _C.status != RUNNING, _C.service_s < before_s)


def _delete(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> bool:
    """Deletes jobs; returns whether there were any."""
    deleted = connection.execute(sa.delete(JOBS).where(*which).returning(_C.principal, _C.size_bytes)).all()
    _change_usages(connection, ((principal, -1, -size_bytes) for principal, size_bytes in deleted))
    return bool(deleted)


def usage(connection: sa.Connection, principal: str) -> Usage:
    """Returns the current usage."""
    own = _U.principal == principal
    sums = [sa.func.coalesce(sa.func.sum(column), 0) for column in (_U.jobs, _U.size_bytes)]
    sums += [sa.func.coalesce(sa.func.sum(sa.case((own, column), else_=0)), 0) for column in (_U.jobs, _U.size_bytes)]
    *amounts, rows, principals = connection.execute(
        sa.select(*sums, sa.func.count(), sa.func.count(_U.principal.distinct())).select_from(USAGE)
    ).one()
    if rows > UNCOMBINED_ROWS + 2 * principals:
        _combine_usage(connection)
    return Usage(*map(int, amounts))


def change_usage(connection: sa.Connection, principal: str, jobs: int, size_bytes: int) -> None:
    """Adds to what a principal stores; negative numbers subtract."""
    connection.execute(sa.insert(USAGE).values(principal=principal, jobs=jobs, size_bytes=size_bytes))


def _combine_usage(connection: sa.Connection) -> None:
    free = sa.select(_U.sequence).with_for_update(skip_locked=True)  # another replica may be combining the others
    rows = sa.delete(USAGE).where(_U.sequence.in_(free)).returning(_U.principal, _U.jobs, _U.size_bytes)
    _change_usages(connection, connection.execute(rows).all())


def _change_usages(connection: sa.Connection, changes: Iterable[Any]) -> None:
    """Adds changes, combined into one per principal."""
    jobs, sizes = Counter[str](), Counter[str]()
    for principal, count, size_bytes in changes:
        jobs[principal] += count
        sizes[principal] += size_bytes
    for principal in jobs:
        if jobs[principal] or sizes[principal]:
            change_usage(connection, principal, jobs[principal], sizes[principal])


_FIELDS = tuple(Job.__dataclass_fields__)
_COLUMNS = tuple(_C[name] for name in _FIELDS)


def _job(row: Any) -> Job:
    values = dict(zip(_FIELDS, row, strict=True))
    sealed_with = _sealed_with(row, values["status"], values["header"])
    return Job(**values | {"content": _SEAL.open(values["content"], sealed_with)})


def _sealed_with(row: Job | Any, status: int, header: int | None) -> bytes:
    """Returns what a seal covers in addition to the content.

    Args:
        row: the job, or a row of it.
        status: that belongs to the content.
        header: that belongs to the content.
    """
    return orjson.dumps((row.job_id, row.principal, row.model, row.version, status, header))
