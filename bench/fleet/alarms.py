"""Bad bundles whose contract alarms, under the real driver and store; and a contract that holds at its limit."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.fleet.driven import definition, driven
from bench.fleet.population import BUNDLE, MEMORY, NEW, DeviceReport
from bench.fleet.pretended import Pretended, PretendedDevice, pretended_population
from firstline_core.fleet.twin import Desired
from firstline_core.telemetry import logs
from firstline_core.types import AuditNote, ModelKey
from firstline_core.units import HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.contracts import records
from firstline_gateway.contracts.pool import PoolKey, new_pool, with_audit
from firstline_gateway.contracts.records import Audit
from firstline_gateway.rollouts.judgement.figures import FIGURES
from firstline_gateway.rollouts.judgement.verdict import Limit, Rules
from firstline_gateway.rollouts.rollout import Stage
from firstline_gateway.settings.settings import ContractsSection, StoreSection
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database

KEY = PoolKey(BUNDLE, NEW, "e" * 64, 0.5, 0.05)
_NOTE = AuditNote(propensity=0.1, epsilon=KEY.epsilon, threshold=KEY.threshold, edge_digest=KEY.edge_digest)
CONTRACTS = ContractsSection()
_RULES = (Rules(promote_unseen=True), Rules(ignored=tuple(FIGURES)), Rules(limits={"disagreement": Limit(1.0)}))
_STAGES = ((1.0,), (0.5, 1.0), (0.01, 0.1, 1.0))
_PER_HOUR = 10
_MOST_HOURS = 40


class Alarmed(NamedTuple):
    """The end of a rollout whose version alarmed.

    Attributes:
        alarmed: whether the contract alarmed while the rollout ran.
        promoted: stages that were promoted after the alarm, and completions after it.
        state: of the rollout in the end.
        left: devices that run the version in the end.
    """

    alarmed: bool
    promoted: int
    state: str
    left: int


class BoundedContract:
    """The audits of a version that disagrees exactly as often as its certificate allows.

    Args:
        rng: draws the audits.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pool = new_pool(KEY, 0.0)

    def audit(self, audits: int) -> bool:
        """Counts `audits` audits; returns whether the contract alarms."""
        for disagrees in self._rng.random(audits) < KEY.epsilon:
            self._pool = with_audit(self._pool, _NOTE, float(disagrees), now_s=0.0, delta=CONTRACTS.delta)
        return self._pool.alarmed_s is not None


def alarmed(seed: int) -> Alarmed:
    """Rolls out a bad bundle with flags that promote it whatever its figures are."""
    logs.configure("critical")
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        store = StoreSection(url=f"sqlite:///{Path(folder) / 'gateway.db'}")
        with closing(open_database(store)) as database:
            return asyncio.run(_alarmed(seed, store, database))


class _AuditedFleet(Pretended):
    """Devices whose answers with the new version are audited.

    Args:
        devices: by name.
        database: in which their audits are counted.
        rng: draws the audits.
        risk: share of the audits that disagree.
    """

    def __init__(
        self, devices: Mapping[str, PretendedDevice], database: Database, rng: np.random.Generator, risk: float
    ) -> None:
        super().__init__(devices)
        self._database = database
        self._rng = rng
        self._risk = risk
        self._counted = 0

    def pass_time(self, hours: float, desired: Mapping[str, Desired], now_s: float) -> list[DeviceReport]:
        """See `driven.Fleet`."""
        reports = super().pass_time(hours, desired, now_s)
        audited = [each.name for each in reports if each.reported.models[0].version == NEW] * round(hours * _PER_HOUR)
        self._rng.shuffle(audited)
        with self._database.begin() as connection:
            for device in audited:
                self._counted += 1
                lost = float(self._rng.random() < self._risk)
                one = Audit(device, str(self._counted), ModelKey(BUNDLE, NEW), _NOTE, KEY, {KEY: lost})
                found = records.count(connection, one, CONTRACTS, service_s=now_s, now_s=now_s)
                if isinstance(found, list) and any(each.pool.alarmed_s is not None for each in found):
                    break
        return reports


async def _alarmed(seed: int, store: StoreSection, database: Database) -> Alarmed:
    rng = np.random.default_rng([18, seed])
    number = int(rng.choice([1, 2, 5, 20]))
    stages = [Stage(share, soak_s=HOUR_S * float(rng.choice([4, 8]))) for share in _STAGES[rng.integers(len(_STAGES))]]
    held_back = float(rng.choice([0.0, 0.05, 0.3]))
    rollout = definition(*stages, rules=_RULES[rng.integers(len(_RULES))], held_back=held_back)
    fleet = _AuditedFleet(pretended_population(number, seed), database, rng, float(rng.uniform(0.25, 0.5)))
    async with driven(store, fleet) as fleet_manager:
        ended = await fleet_manager.run(rollout, _MOST_HOURS)
    with database.reading() as connection:
        pool = records.alarmed(connection, ModelKey(BUNDLE, NEW))
        entries = audit_log.page(connection, audit_log.EntryFilter(), 1000)
    ends = [each.at_s for each in entries if each.action in ("rollout.promote", "rollout.completed")]
    after = sum(at_s >= pool.alarmed_s for at_s in ends) if pool is not None and pool.alarmed_s is not None else 0
    return Alarmed(pool is not None, after, ended.state, fleet.versions()[NEW])
