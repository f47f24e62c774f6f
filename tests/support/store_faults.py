"""A gateway's SQLite store at work on a faulty disk, and what must hold of whatever a power cut leaves of it."""

import random
from pathlib import Path

from sqlalchemy import select, text
from support.faulty_disk import Recording, run_on

from firstline_core.errors import ConfigError
from firstline_gateway.contracts import records as contract_records
from firstline_gateway.contracts.records import AUDITS
from firstline_gateway.identity.tables import API_KEYS, CERTIFICATES, DEVICES, JOIN_TOKENS
from firstline_gateway.serving.deliveries import records
from firstline_gateway.serving.deliveries.records import DELIVERIES, DeliveryKey
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.tables import open_database

FILE = Path("state", "gateway", "gateway.db")
"""Below the watched folder; both of its folders are made by the store."""

# Deliveries with answers of one page and of many, some sent again; audits, keys and devices; several at a time, so that
# they share commits. The log is taken over into the database often, and the store closed and opened again in between.
_WORKLOAD = """
import asyncio, random, sys
from pathlib import Path
from sqlalchemy import event
from support.escalations import request, response
from support.faulty_disk import mark
from support.pools import KEY, pool_of
from support.store_faults import FILE
from firstline_core.clock import SimulatedClock
from firstline_core.types import Status
from firstline_gateway.contracts import records as contract_records
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.deliveries.records import content_of
from firstline_gateway.identity import enrolment, keys
from firstline_gateway.identity.enrolment import Issued
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.tables import open_database
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store

rng = random.Random(int(sys.argv[2]))
steps = int(sys.argv[3])
NOW_S = 1_800_000_000.0

async def main():
    clock, asked_before, numbers = SimulatedClock(), [], iter(range(1_000_000))
    for _ in range(2):
        settings = StoreSection(url=f"sqlite:///{Path(sys.argv[1]) / FILE}")
        database = open_database(settings)
        mark("opened it")
        database._engine.dispose()
        event.listen(database._engine, "connect", lambda on, _: on.execute("PRAGMA wal_autocheckpoint = 20"))
        store = Store(database)
        deliveries = Deliveries(store, settings, metrics=RequestMetrics("gateway"), clock=clock,
                                service=ServiceClock(database, clock))

        async def deliver(asked):
            async def run():
                return response(asked, Status.FINAL, rows=rng.choice([2, 2, 300, 2000]))
            await deliveries.once(asked, run)
            mark(f"delivered {asked.request_id} {content_of(asked).hex()}")
            asked_before.append(asked)

        async def kept(what, operation):
            await asyncio.wrap_future(store.submit(operation))
            mark(what)

        def enrol(name):
            def operation(on):
                sha256 = enrolment.secret_hash(name)
                enrolment.invite(on, [(name, sha256)], by="a", now_s=NOW_S, expires_s=NOW_S + 60)
                issue = lambda device: Issued(f"serial {device}", "pem", NOW_S + 1e6)
                return enrolment.redeem(on, sha256, "key", issue, NOW_S, address="")
            return operation

        def audit(name):
            def operation(on):
                before = contract_records.locked(on, KEY)
                pool = pool_of(before.state.audits + 1 if before else 1)
                assert contract_records.add_audit(on, "cam", name, [(pool, True)], service_s=0.0)
            return operation

        for _ in range(steps):
            work = [deliver(request(2, principal="device:cam", promised=True)) for _ in range(rng.randint(1, 4))]
            work += [deliver(one) for one in rng.sample(asked_before, min(len(asked_before), rng.randint(0, 2)))]
            name = f"n{next(numbers)}"
            work.append(rng.choice([
                lambda: kept(f"keyed {name}", lambda on: keys.create_key(on, name, ("infer",), now_s=NOW_S)),
                lambda: kept(f"enrolled {name}", enrol(name)),
                lambda: kept(f"counted {name}", audit(name)),
            ])())
            await asyncio.gather(*work)
            if rng.random() < 0.3:
                gone = f"gone{next(numbers)}"
                await kept(f"keyed {gone}", lambda on: keys.create_key(on, gone, ("infer",), now_s=NOW_S))
                await kept(f"revoked {gone}", lambda on: keys.revoke_key(on, gone, NOW_S))
            await clock.advance(5)
            await deliveries.advance()
        deliveries.close()
        store.close()
        database.close()

asyncio.run(main())
"""


def recorded(root: Path, seed: int, steps: int) -> Recording:
    """A store's life on a watched disk, from before there was a file."""
    root.mkdir(mode=0o700)
    _, recording = run_on(root, _WORKLOAD, str(seed), str(steps))
    return recording


def check_crash(recording: Recording, point: int, seed: int, into: Path) -> None:
    """Cuts the power, opens what is left, and compares it with what was acknowledged.

    Raises:
        AssertionError: something acknowledged is lost or there twice, or the store is damaged or does not open.
    """
    marks = recording.crash(point, random.Random(seed), into)
    names = {what: {one[1] for one in marks if one[0] == what} for what in ("keyed", "revoked", "enrolled", "counted")}
    try:
        database = open_database(StoreSection(url=f"sqlite:///{into / FILE}"))
    except ConfigError as error:
        raise AssertionError(error.message) from error
    try:
        with database.reading() as connection:
            assert connection.execute(text("PRAGMA integrity_check")).scalars().all() == ["ok"]
            for _, request_id, content in (one for one in marks if one[0] == "delivered"):
                found = records.find(connection, DeliveryKey("cam", request_id))
                assert found is not None, f"{request_id} was acknowledged, and is lost"
                assert found.content.hex() == content
                if found.answer is not None:  # else it was too long to be kept
                    assert (answer := found.response()) is not None, "damaged"
                    assert answer.answer.request_id == request_id
            delivered = connection.execute(select(DELIVERIES.c.request_id)).scalars().all()
            assert len(delivered) == len(set(delivered))
            keys = {row.name: row for row in connection.execute(select(API_KEYS))}
            assert names["keyed"] <= keys.keys()
            assert all(keys[name].revoked_s is not None for name in names["revoked"])
            enrolled = set(connection.execute(select(DEVICES.c.name)).scalars())
            assert names["enrolled"] <= enrolled
            # All that is of an enrolment, or nothing of it.
            assert enrolled == set(connection.execute(select(CERTIFICATES.c.device)).scalars())
            used = select(JOIN_TOKENS.c.device).where(JOIN_TOKENS.c.used_s.is_not(None))
            assert enrolled == set(connection.execute(used).scalars())
            counted = set(connection.execute(select(AUDITS.c.request_id)).scalars())
            assert names["counted"] <= counted
            assert sum(pool.state.audits for pool in contract_records.pools(connection)) == len(counted), (
                "counted twice, or not"
            )
        with database.begin() as connection:  # it takes new ones
            connection.execute(text("UPDATE service_clock SET seconds = seconds + 1"))
    finally:
        database.close()
