"""Flips bits in every page of every store of both tiers, and opens the store again.

The agent continues without the damaged part. The gateway may refuse with a sentence. A traceback, and a content that
was never written, are faults.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
from sqlalchemy import Connection

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import ConfigError, FirstlineError, IntegrityError, UnknownAnswerError
from firstline_core.storage.files import with_checksum, write_whole
from firstline_core.types import Answer, InferRequest, InferResponse, Reason, Status, Tensor, Tier
from firstline_edge.audits.records import RecordFile, encode
from firstline_edge.budgets.spending import SpendingFile, StoredSpending
from firstline_edge.cache.disk_cache import DiskCache
from firstline_edge.outbox.outbox import Outbox, OutboxItem
from firstline_edge.state import store
from firstline_gateway.identity import enrolment, keys
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.identity.credentials import KnownCredentials, RevokedCertificate, read_changes
from firstline_gateway.identity.enrolment import Issued
from firstline_gateway.jobs import records as jobs
from firstline_gateway.serving.deliveries import records as deliveries
from firstline_gateway.serving.deliveries.records import DeliveryKey
from firstline_gateway.settings.settings import JobsSection, StoreSection
from firstline_gateway.store.database import check
from firstline_gateway.tables import open_database

_PAGE_BYTES = 1024
_RECORDS = 12
_NOW_S = 1_800_000_000.0
_LIMIT_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Store:
    """One store.

    Args:
        name: for people, and part of each flip's seed.
        fill: fills an empty folder, and keeps the store open until it is resumed.
        look: opens the store in a folder and compares its content; raises AssertionError if it is wrong.
        may: how the store may refuse.
        killed: whether the files are those of a process that was killed while the store was open.
    """

    name: str
    fill: Callable[[Path], AbstractContextManager[None]]
    look: Callable[[Path], None]
    may: tuple[type[Exception], ...] = ()
    killed: bool = False

    def make(self, folder: Path, spare: Path) -> Path:
        """Fills `folder`; returns it, or `spare` with a copy of the files that a killed process leaves behind."""
        folder.mkdir()
        with self.fill(folder):
            killed = _copied(folder, spare) if self.killed else None
        return killed or folder


@dataclass(slots=True)
class Flips:
    """Of one store.

    Args:
        flips: one bit each.
        refused: after which the store could not be opened, which a sentence said.
        faults: file, byte and bit, and what was raised.
    """

    pages: int = 0
    flips: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)


def run(per_page: int, seed: int) -> dict[str, Flips]:
    """Flips `per_page` bits, one at a time, in every KiB of every store."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        found = workers.map(flip, range(len(STORES)), *zip(*[(per_page, seed)] * len(STORES), strict=True))
        return dict(zip((one.name for one in STORES), found, strict=True))


def flip(position: int, per_page: int, seed: int, limit: int | None = None) -> Flips:
    """Flips bits of one store.

    Args:
        position: of the store in `STORES`.
        per_page: bits per KiB.
        seed: of the choice.
        limit: number of flips, spread over the pages; None for all.
    """
    subject, found = STORES[position], Flips()
    random = Random(f"{seed} {subject.name}")
    with TemporaryDirectory() as folder:
        whole = subject.make(Path(folder) / "whole", Path(folder) / "killed")
        subject.look(_copied(whole, Path(folder) / "work"))
        places = list(_places(whole, per_page, random))
        found.pages = len(places) // per_page
        for file, at, bit in places if limit is None else random.sample(places, min(limit, len(places))):
            work = _copied(whole, Path(folder) / "work")
            content = bytearray((work / file).read_bytes())
            content[at] ^= 1 << bit
            (work / file).write_bytes(content)
            found.flips += 1
            try:
                subject.look(work)
            except subject.may:
                found.refused += 1
            except Exception as error:  # noqa: BLE001 (this is what is looked for)
                found.faults.append(f"{file} byte {at} bit {bit}: {type(error).__name__}: {error}"[:300])
    return found


def _copied(whole: Path, work: Path) -> Path:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(whole, work)
    return work


def _places(folder: Path, per_page: int, random: Random) -> Iterator[tuple[Path, int, int]]:
    for file in sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.endswith("-shm")):
        size_bytes = file.stat().st_size
        for start in range(0, size_bytes, _PAGE_BYTES):
            for _ in range(per_page):
                at = random.randrange(start, min(start + _PAGE_BYTES, size_bytes))
                yield file.relative_to(folder), at, random.randrange(8)


def _request(number: int) -> InferRequest:
    tensor = Tensor("image", np.full((1, 64), number, dtype=np.uint8))
    return InferRequest("digits", (tensor,), request_id=f"request-{number}", version="1", principal="local")


def _response(number: int, status: Status) -> InferResponse:
    final = status is Status.FINAL
    answer = Answer(
        request_id=f"request-{number}",
        status=status,
        certified=final,
        durable=not final,
        tier=Tier.CLOUD if final else Tier.EDGE,
        reason=Reason.UNCERTAIN if final else Reason.LINK_DOWN,
        confidence=0.4,
        model_digest="f" * 64,
        attempts=(),
        rows=(),
    )
    values = np.full((1, 10), number / 16, dtype=np.float32)
    return InferResponse("digits", "1", (Tensor("probabilities", values),), id="", answer=answer)


def _value(response: InferResponse) -> float:
    return float(response.output("probabilities")[0, 0])


@contextmanager
def _filled_outbox(folder: Path) -> Iterator[None]:
    outbox = Outbox(folder / "outbox.db")

    async def fill() -> None:
        for number in range(_RECORDS):
            await outbox.put(OutboxItem(_request(number), (0,), _response(number, Status.PROVISIONAL), _NOW_S))
        for number in range(0, _RECORDS, 2):
            await outbox.finish(f"request-{number}", _response(number, Status.FINAL))

    with closing(outbox):
        asyncio.run(fill())
        yield


def _look_at_outbox(folder: Path) -> None:
    async def compare() -> None:
        with closing(Outbox(folder / "outbox.db")) as outbox:
            for found in await outbox.pending(_RECORDS):
                number = int(found.request.request_id.removeprefix("request-"))
                assert found.request.inputs[0].array.tolist() == _request(number).inputs[0].array.tolist()
                assert _value(found.provisional) == number / 16
            for number in range(_RECORDS):
                try:
                    answered = await outbox.answer(f"request-{number}", "local")
                except UnknownAnswerError:
                    continue
                assert _value(answered) == number / 16
            new = _RECORDS + 1
            await outbox.put(OutboxItem(_request(new), (0,), _response(new, Status.PROVISIONAL), _NOW_S))

    asyncio.run(compare())


def _cache(folder: Path) -> DiskCache:
    return DiskCache(folder / "cache", limit_bytes=_LIMIT_BYTES, ttl_s=1e6)


@contextmanager
def _filled_cache(folder: Path) -> Iterator[None]:
    with closing(_cache(folder)) as cache:
        for number in range(_RECORDS):
            cache.put(b"key %d" % number, b"value %d" % number * 50)
        yield


def _look_at_cache(folder: Path) -> None:
    with closing(_cache(folder)) as cache:
        for number in range(_RECORDS):
            found = cache.get(b"key %d" % number)
            assert found is None or found[0] == b"value %d" % number * 50
        cache.put(b"new", b"value")


@contextmanager
def _filled_state(folder: Path) -> Iterator[None]:
    store(folder / "spending.json", StoredSpending(around_bytes=1234.5), "spending")
    write_whole(folder / "certificates.json", with_checksum(encode({}, ())))
    yield


def _look_at_state(folder: Path) -> None:
    assert SpendingFile(folder / "spending.json").read().around_bytes in (1234.5, StoredSpending().around_bytes)
    assert RecordFile(folder / "certificates.json").read() == {}


@contextmanager
def _filled_authority(folder: Path) -> Iterator[None]:
    AuthorityFolder(folder, SYSTEM_CLOCK).write_revocations([])
    _look_at_authority(folder)
    yield


def _look_at_authority(folder: Path) -> None:
    opened = AuthorityFolder(folder, SYSTEM_CLOCK)
    opened.open()
    opened.write_revocations([RevokedCertificate("1a", _NOW_S, "lost")])
    assert "1a" in opened.listed()


def _database(folder: Path) -> StoreSection:
    return StoreSection(url=f"sqlite:///{folder / 'gateway.db'}")


def _enrol(connection: Connection, name: str, serial: str) -> None:
    enrolment.invite(connection, [(name, f"hash of {name}")], by="operator", now_s=_NOW_S, expires_s=_NOW_S + 9)
    enrolment.redeem(
        connection, f"hash of {name}", "key", lambda _: Issued(serial, "pem", _NOW_S + 900), _NOW_S, address=""
    )


@contextmanager
def _filled_gateway(folder: Path) -> Iterator[None]:
    with closing(open_database(_database(folder))) as database:
        with database.begin() as connection:
            _enrol(connection, "good", "2b")
            _enrol(connection, "lost", "1a")
            (folder / "key").write_text(keys.create_key(connection, "shop", ["infer"], now_s=_NOW_S))
            limits = JobsSection(limit=1000, bytes_limit=_LIMIT_BYTES)
            for number in range(_RECORDS):
                job = jobs.Job(
                    f"job-{number}", "shop", "digits", "1", jobs.RUNNING, b"%d" % number * 99, None, None, 0.0
                )
                assert jobs.add(connection, job, 0, limits) is None
                record = deliveries.recorded(b"c" * 32, _response(number, Status.FINAL))
                deliveries.put(connection, DeliveryKey("good", f"{number}"), record, service_s=0.0, limit=1000)
        with database.begin() as connection:
            enrolment.revoke(connection, "lost", "ops", _NOW_S)
        with database.begin() as connection:  # damage to the last commit looks like a power cut
            keys.create_key(connection, "last", ["infer"], now_s=_NOW_S)
        yield


def _look_at_gateway(folder: Path) -> None:
    check(_database(folder), must_exist=True)
    with closing(open_database(_database(folder), must_exist=True)) as database, database.reading() as connection:
        found = KnownCredentials()
        found.apply(read_changes(connection, 0))
        certificate = found.certificate("1a")
        assert certificate is None or certificate.revoked_s is not None
        assert not found.admits("lost", _NOW_S)
        key = found.key(keys.key_hash((folder / "key").read_text()))
        assert key is None or not {"fleet", "admin"}.intersection(key.scopes.split())
        for number in range(_RECORDS):
            try:
                job = jobs.find(connection, f"job-{number}", "shop")
            except IntegrityError:
                continue
            assert job is not None, "an acknowledged job vanished"
            assert job.content == b"%d" % number * 99
            record = deliveries.find(connection, DeliveryKey("good", f"{number}"))
            response = record.response() if record is not None else None
            assert response is None or _value(response) == number / 16


STORES = (
    Store("outbox", _filled_outbox, _look_at_outbox),
    Store("outbox of a killed agent", _filled_outbox, _look_at_outbox, killed=True),
    Store("result cache", _filled_cache, _look_at_cache),
    Store("spending and audit records", _filled_state, _look_at_state),
    Store("gateway's store", _filled_gateway, _look_at_gateway, (FirstlineError,)),
    Store("store of a killed gateway", _filled_gateway, _look_at_gateway, (FirstlineError,), killed=True),
    Store("authority and revocations", _filled_authority, _look_at_authority, (ConfigError,)),
)
