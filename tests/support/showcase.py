"""A fleet as a manager may see it, for pictures of the console and for checks of its pages."""

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
from sqlalchemy import Connection, insert
from support.audits import certify_digits
from support.console import ROLLOUTS, console_gateway
from support.keys import bearer, create_key
from support.processes import TierProcess

from firstline_core.bundle.manifest import MANIFEST_NAME, parse_manifest
from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, DeviceHealth, ModelCounts, Telemetry
from firstline_core.fleet.twin import Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.hardware.catalogue import Catalogue, Memory, Processor
from firstline_core.types import AuditNote
from firstline_core.units import DAY_S, HOUR_S
from firstline_gateway.contracts import records
from firstline_gateway.contracts.pool import new_pool, promises_in, with_audit
from firstline_gateway.fleet import devices, tiers, totals
from firstline_gateway.identity.tables import CERTIFICATES, DEVICES
from firstline_gateway.tables import open_database

BUNDLES = ("parcels", "weld-seams", "shelf-gaps")
"""The first holds its promise, the second breaks it, the third has little evidence; a further variant has no audit."""
_SITES = {"hamburg": 9, "kiel": 7, "porto": 5}
_BOARD = Catalogue(
    "f" * 16,
    "Raspberry Pi 5 Model B Rev 1.0",
    "6.6",
    Processor("Cortex-A76", "aarch64", 4, 4.0, ("asimddp",)),
    Memory(8 << 30),
    measured=True,
)


@dataclass
class Showcase:
    """A running gateway with a fleet.

    Attributes:
        gateway: the process.
        key: of an operator.
        names: of the devices.
        rollouts: ids of a paused rollout with failed devices, of one that waits for approval, and of a completed one.
    """

    gateway: TierProcess
    key: str
    names: list[str]
    rollouts: list[str]


@contextmanager
def showcase(folder: Path) -> Iterator[Showcase]:
    """Runs a gateway with a fleet."""
    for name in BUNDLES:
        certify_digits(folder / "models" / name, variants=1, name=name)
    process, store = console_gateway(folder, folder / "models")
    names = [f"{site}-cam-{number:02}" for site, count in _SITES.items() for number in range(1, count + 1)]
    draw = random.Random(7)
    with closing(open_database(store)) as database, database.begin() as connection:
        _devices(connection, names, draw)
        _answers(connection, draw)
        _contracts(connection, folder / "models", names, draw)
    key = create_key(store, "console", "operator")
    keys = {name: create_key(store, name, "device") for name in names[:12]}
    with process as gateway:
        yield Showcase(gateway, key, names, _rollouts(gateway.url, key, keys))


def _devices(connection: Connection, names: list[str], draw: random.Random) -> None:
    now_s = time.time()
    for number, name in enumerate(names):
        models = tuple(RunningModel(bundle, 1, "edge-onnx", "ab" * 32, certified=True) for bundle in BUNDLES[:2])
        version = "1.4.0" if number % 5 else "1.3.2"
        hardware = msgspec.structs.replace(_BOARD, fingerprint=f"{number:016}")
        reported = Reported("s", 1, models=models, agent_version=version, hardware=hardware)
        seen_s = now_s - (5000.0 if number in (4, 17) else draw.uniform(1, 60))
        devices.report(connection, name, reported, seen_s, accept=number != 20)
        devices.tag(connection, name, {"site": name.partition("-")[0], "line": f"l{number % 3 + 1}"})
        latency = (*[0] * 3, 9000, *[0] * (len(LATENCY_BOUNDS_MS) - 3))
        counts = ModelCounts(
            "parcels", 1, 9000, 8400, 560, 40, latency=latency, latency_sum_ms=84_000.0, audited=110, disagreed=2
        )
        full = number in (3, 4)
        health = DeviceHealth(
            outbox_oldest_s=5400.0 * full,
            links_down=int(full),
            disk_free_share=0.62,
            hottest_c=58.0,
            certificate_ends_s=now_s + 60 * DAY_S,
        )
        latest = Telemetry("s", 1, 9 * HOUR_S, (counts,), 3, 0, 37 * full, payload_bytes=412_000_000, health=health)
        totals.count(connection, name, latest, now_s, service_s=0)
        connection.execute(insert(DEVICES).values(name=name, enrolled_s=now_s - 80 * DAY_S, changed=1))
        row = {"serial": f"{number:040x}", "device": name, "issued_s": 0.0, "changed": 1}
        row |= {"not_after_s": now_s + (3 if number == 6 else 60) * DAY_S, "retained_until_service_s": 1e9}
        connection.execute(insert(CERTIFICATES).values(row))
    devices.mark_offline(connection, names[7], "s")
    connection.execute(DEVICES.update().where(DEVICES.c.name == names[12]).values(revoked_s=now_s - DAY_S))


def _answers(connection: Connection, draw: random.Random) -> None:
    now_s, counter = time.time(), tiers.TierCounter()
    for back in range(48 * 12):
        busy = 400 + 300 * (back // 12 % 24 in range(6, 18))
        kept = int(busy * draw.uniform(0.9, 0.97))
        latency = (*[0] * 3, kept, *[0] * (len(LATENCY_BOUNDS_MS) - 3))
        counts = ModelCounts(
            "parcels",
            1,
            busy,
            kept,
            busy - kept - 4,
            4,
            latency=latency,
            latency_sum_ms=kept * draw.uniform(8, 12),
            saved_bytes=kept * 41_000,
            saved_mj=kept * 210.0,
        )
        counter.add(totals.Totals(), totals.Totals((counts,)), now_s - back * tiers.BUCKET_S)
    tiers.store(connection, counter.take(), 0)


def _contracts(connection: Connection, models: Path, names: list[str], draw: random.Random) -> None:
    now_s = time.time()
    for bundle, audits, risk in zip(BUNDLES, (900, 420, 60), (0.02, 0.16, 0.03), strict=True):
        manifest = parse_manifest((models / bundle / MANIFEST_NAME).read_bytes())
        (key,) = promises_in(manifest)
        note = AuditNote(0.1, key.epsilon, key.threshold, key.edge_digest)
        start_s = now_s - 5 * DAY_S
        pool = new_pool(key, start_s)
        for audit in range(audits):
            at_s = start_s + (now_s - start_s) * (audit + 1) / audits
            lost = draw.random() < (risk if audit > audits / 3 else 0.03)
            pool = with_audit(pool, note, float(lost), now_s=at_s, delta=0.05)
            records.replace_pool(connection, pool)
        for number, name in enumerate(names[:8]):
            share = {"audits": audits // 8, "disagreements": pool.disagreements // (number + 2), "service_s": 0.0}
            row = {"pool": records.text_of(key), "device": name, "last_s": now_s, **share}
            connection.execute(insert(records.CONTRIBUTIONS).values(row))


def _rollouts(url: str, key: str, keys: dict[str, str]) -> list[str]:
    with httpx.Client(base_url=url, headers=bearer(key), timeout=30) as operator:

        def make(bundle: str, **more: object) -> str:
            definition = {"bundle": bundle, "version": 2, "manifest_sha256": "0" * 64, "held_back": 0.1, "salt": "s"}
            stages = [{"share": 0.4, "soak_s": 0, "patience_s": 1}, {"share": 1.0}]
            reply = operator.post(ROLLOUTS, json={**definition, "stages": stages, **more})
            assert reply.is_success, reply.text
            return str(reply.json()["id"])

        failing, waiting = make("shelf-gaps"), make("parcels", approval=True)
        operator.post(f"{ROLLOUTS}/{failing}/start").raise_for_status()
        end_s = time.monotonic() + 30
        offered: list[str] = []
        while not offered and time.monotonic() < end_s:
            found = operator.get("/fleet/v1/devices").json()["devices"]
            offered = [one["name"] for one in found if one["desired"]["models"] and one["name"] in keys]
        for name, reason in zip(offered, ("self_test_failed", "disk", "self_test_failed"), strict=False):
            update = Update("shelf-gaps", 2, UpdateState.REJECTED, rollout=failing, reason=reason, message="Refused.")
            with httpx.Client(base_url=url, headers=bearer(keys[name]), timeout=30) as device:
                desired = device.get("/fleet/v1/twin").json()
                report = Reported(
                    "s", 2, desired["revision"], updates=(update,), agent_version="1.4.0", hardware=_BOARD
                )
                device.put("/fleet/v1/twin/reported", content=msgspec.json.encode(report)).raise_for_status()
    return [failing, waiting]


def pages(fleet: Showcase) -> dict[str, str]:
    """Returns the address of each page of the console by name."""
    return {
        "overview": "/",
        "contracts": "/contracts",
        "contract": f"/contracts/{BUNDLES[1]}",
        "rollouts": "/rollouts",
        "rollout": f"/rollouts/{fleet.rollouts[0]}",
        "new-rollout": "/rollouts/new",
        "devices": "/devices",
        "device": f"/devices/{fleet.names[3]}",
        "enrol": "/devices/enrol",
        "audit-log": "/audit",
        "settings": "/settings",
    }
