"""Jobs in the store, within a caller's transaction.

A job's content is sealed, as deliveries' answers are: SQLite does not see that a disk has changed a byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ColumnElement, Connection, Select, delete, insert, select, update

from firstline_core.errors import IntegrityError, QueueFullError
from firstline_core.storage.seals import ChecksumSeal
from firstline_gateway.jobs import usage
from firstline_gateway.jobs.tables import JOBS

RUNNING = 0
"""The status of a job that is not answered yet; later it is HTTP's."""

_SEAL = ChecksumSeal()
_RETRY_S = 5.0
_C = JOBS.c


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Args:
        job_id: the request's id.
        principal: the owner.
        model: as it was asked for, and `version` too.
        status: `RUNNING`, or HTTP's.
        content: the request as V2 has it; of one that has ended the answer's body, an error's too.
        header: bytes of JSON at its start; None where all is JSON.
        due_service_s: when it expires; None for never.
        service_s: when it came; of one that has ended, when that was.
        attempts: how often work on it was begun.
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


class Ended(NamedTuple):
    """The result of a job: an HTTP status, a body, and the bytes of JSON at its start where not all of it is."""

    status: int
    content: bytes
    header: int | None


@dataclass(frozen=True, slots=True)
class Room:
    """How many jobs, ended ones included, and how many bytes are kept."""

    jobs: int
    size_bytes: int


def add(connection: Connection, job: Job, priority: int, room: Room) -> QueueFullError | None:
    """Keeps a new job, where there is room. One principal's may take as much as is left free.

    Returns:
        Why it is not kept. Raised, it would undo what is written in the same transaction for others.
    """
    size_bytes = len(job.content)
    jobs, taken, mine, mine_bytes = usage.amounts(connection, job.principal)
    if mine >= room.jobs - jobs or mine_bytes + size_bytes > room.size_bytes - taken - size_bytes:
        return QueueFullError(
            f"{mine} jobs of yours, with {mine_bytes} bytes, are kept here; {room.jobs - jobs} more, with "
            f"{room.size_bytes - taken} bytes, are free, and one client may take no more than it leaves free. Delete "
            "answers that you have fetched, or come back later.",
            retry_after_s=_RETRY_S,
        )
    connection.execute(
        insert(JOBS).values(
            job_id=job.job_id,
            principal=job.principal,
            model=job.model,
            version=job.version,
            status=RUNNING,
            priority=priority,
            size_bytes=size_bytes,
            content=_SEAL.close(job.content, _about(job.job_id, RUNNING, job.header)),
            header=job.header,
            due_service_s=job.due_service_s,
            service_s=job.service_s,
            holder="",
            lease_service_s=0.0,
            attempts=0,
        )
    )
    usage.change(connection, job.principal, 1, size_bytes)
    return None


def find(connection: Connection, job_id: str, principal: str) -> Job | None:
    """Returns a principal's job; None for an unknown id.

    Raises:
        IntegrityError: the disk has damaged it.
    """
    query = select(*_COLUMNS).where(_C.job_id == job_id, _C.principal == principal)
    row = connection.execute(query).first()
    return None if row is None else _job(row)


def any_waits(connection: Connection, service_s: float, came_by_s: float) -> bool:
    """Returns whether an unclaimed job had been submitted by a time of service."""
    return connection.execute(_waiting(service_s, came_by_s).limit(1)).first() is not None


def claim(
    connection: Connection,
    holder: str,
    count: int,
    suspects: int,
    *,
    service_s: float,
    came_by_s: float,
    lease_s: float,
) -> list[Job | str]:
    """Claims up to `count` unclaimed jobs, urgent and old ones first; skips jobs that others are claiming.

    Args:
        connection: to the store.
        holder: the replica.
        count: how many at most.
        suspects: the most jobs among them whose earlier attempts ended without a result.
        service_s: now.
        came_by_s: when those had come that may be taken.
        lease_s: for how long.

    Returns:
        The jobs; of one that the disk has damaged its id alone.
    """
    taken: list[int] = []
    for begun, limit in ((_C.attempts > 0, suspects), (_C.attempts == 0, count)):
        free = (
            _waiting(service_s, came_by_s)
            .where(begun)
            .order_by(_C.priority, _C.sequence)
            .limit(min(limit, count - len(taken)))
            .with_for_update(skip_locked=True)  # SQLite's transactions that write are alone anyway
        )
        taken += connection.execute(free).scalars()
    if not taken:
        return []
    mine = _C.sequence.in_(taken)
    connection.execute(
        update(JOBS).where(mine).values(holder=holder, lease_service_s=service_s + lease_s, attempts=_C.attempts + 1)
    )
    found: list[Job | str] = []
    for row in connection.execute(select(*_COLUMNS).where(mine).order_by(_C.priority, _C.sequence)):
        try:
            found.append(_job(row))
        except IntegrityError:
            found.append(row[0])
    return found


def _waiting(service_s: float, came_by_s: float) -> Select[int]:
    return select(_C.sequence).where(_C.status == RUNNING, _C.lease_service_s < service_s, _C.service_s <= came_by_s)


def renew(connection: Connection, holder: str, job_ids: list[str], service_s: float, lease_s: float) -> None:
    """Has jobs that a replica runs believed to be worked on for longer."""
    connection.execute(
        update(JOBS)
        .where(_C.holder == holder, _C.job_id.in_(job_ids), _C.status == RUNNING)
        .values(lease_service_s=service_s + lease_s)
    )


def put_back(connection: Connection, holder: str, job_ids: list[str], until_service_s: float) -> None:
    """Releases jobs for another attempt, from a time of service on; this attempt does not count."""
    connection.execute(
        update(JOBS)
        .where(_C.holder == holder, _C.job_id.in_(job_ids), _C.status == RUNNING)
        .values(holder="", lease_service_s=until_service_s, attempts=_C.attempts - 1)
    )


def leave(connection: Connection, holder: str) -> None:
    """Releases all jobs that a replica has claimed, including claims whose confirmation it lost."""
    connection.execute(
        update(JOBS)
        .where(_C.holder == holder, _C.status == RUNNING)
        .values(holder="", lease_service_s=0.0, attempts=_C.attempts - 1)
    )


def put_back_all(connection: Connection) -> None:
    """Releases every job: where there is but one gateway, and it has just begun."""
    connection.execute(update(JOBS).where(_C.status == RUNNING).values(holder="", lease_service_s=0.0))


def end(connection: Connection, job_id: str, ended: Ended, service_s: float) -> bool:
    """Keeps what came of a job in place of what was asked; the first who says so is right.

    Returns:
        False where it had ended before, or was deleted.
    """
    status, content, header = ended
    asked = connection.execute(
        select(_C.principal, _C.size_bytes).where(_C.job_id == job_id, _C.status == RUNNING)
    ).first()
    if asked is None:
        return False
    changed = connection.execute(
        update(JOBS)
        .where(_C.job_id == job_id, _C.status == RUNNING)
        .values(
            status=status,
            size_bytes=len(content),
            content=_SEAL.close(content, _about(job_id, status, header)),
            header=header,
            service_s=service_s,
            holder="",
            lease_service_s=0.0,
        )
    )
    if not changed.rowcount:
        return False
    usage.change(connection, asked.principal, 0, len(content) - asked.size_bytes)
    return True


def remove(connection: Connection, job_id: str, principal: str) -> bool:
    """Forgets a principal's job, whether or not it has ended; False where there was none."""
    return _forgotten(connection, _C.job_id == job_id, _C.principal == principal)


def forget(connection: Connection, before_s: float) -> None:
    """Forgets the jobs that ended before a time of service."""
    _forgotten(connection, _C.status != RUNNING, _C.service_s < before_s)


def _forgotten(connection: Connection, *which: ColumnElement[bool]) -> bool:
    """Deletes jobs; whether there were any."""
    gone = connection.execute(delete(JOBS).where(*which).returning(_C.principal, _C.size_bytes)).all()
    jobs, sizes = Counter(principal for principal, _ in gone), Counter[str]()
    for principal, size_bytes in gone:
        sizes[principal] += size_bytes
    for principal, count in jobs.items():
        usage.change(connection, principal, -count, -sizes[principal])
    return bool(gone)


_COLUMNS = (
    *(_C.job_id, _C.principal, _C.model, _C.version, _C.status, _C.content, _C.header),
    *(_C.due_service_s, _C.service_s, _C.attempts),
)


def _job(row: Sequence[Any]) -> Job:
    job_id, principal, model, version, status, sealed, header, *times = row
    content = _SEAL.open(sealed, _about(job_id, status, header))
    return Job(job_id, principal, model, version, status, content, header, *times)


def _about(job_id: str, status: int, header: int | None) -> bytes:
    """Returns what a seal covers in addition to the content."""
    return orjson.dumps((job_id, status, header))
