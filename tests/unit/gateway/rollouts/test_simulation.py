"""Simulated devices under the real engine and store: what is good comes through, what is bad is stopped."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from support.databases import sqlite_store
from support.pools import KEY, pool_of

from bench.fleet.driven import definition, driven
from bench.fleet.population import BUNDLE, NEW, NOTHING, OLD, Effect
from bench.fleet.pretended import Pretended, pretended_population
from firstline_core.fleet.audit_log import verify_log
from firstline_core.units import HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.contracts import records as contract_records
from firstline_gateway.rollouts import driver
from firstline_gateway.rollouts.judgement.figures import FIGURES
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.rollout import Stage

DEVICES = 100  # `make -C bench fleet` has a thousand
FIRST = Stage(0.4, soak_s=8 * HOUR_S)


async def test_a_good_model_comes_to_every_device(tmp_path: Path) -> None:
    count = 140  # of a hundred, some seeds leave too few to compare
    async with driven(sqlite_store(tmp_path), Pretended(pretended_population(count, 2, NOTHING))) as simulation:
        # A tenth of so few devices is not enough to compare with.
        ended = await simulation.run(definition(FIRST, Stage(1.0, soak_s=8 * HOUR_S), held_back=0.3), 60)
        assert ended.state == "completed", ended.sentence
        assert simulation.fleet.versions() == {NEW: count} and ended.devices == {"done": count}
        looks = (await simulation.rollouts.looks(ended.id, (-1, 0), 200)).looks
        assert [look.decision for look in looks if look.look == 8] == ["promote", "promote"]
        with simulation.database.reading() as connection:
            entries = audit_log.page(connection, audit_log.EntryFilter(), 1000)
    verify_log(entries)
    assert {entry.action for entry in entries} >= {"rollout.create", "rollout.start", "rollout.look", "rollout.promote"}


@pytest.mark.parametrize(
    ("rule", "effect"),
    [
        ("installations", Effect(failing=1.0)),
        ("crashes", Effect(crashes=6.0)),
        ("disagreement", Effect(disagreement=0.06)),
    ],
)
async def test_a_bad_model_is_stopped_in_the_first_stage(tmp_path: Path, rule: str, effect: Effect) -> None:
    async with driven(sqlite_store(tmp_path), Pretended(pretended_population(DEVICES, 2, effect))) as simulation:
        ended = await simulation.run(definition(FIRST, Stage(1.0, soak_s=8 * HOUR_S)), 60)
        assert (ended.state, ended.stage) == ("rolled_back", 0), ended.sentence
        assert (await simulation.rollouts.looks(ended.id, (-1, 0), 200)).looks[-1].rule == rule
        assert simulation.fleet.versions() == {OLD: DEVICES}


@pytest.mark.parametrize("alarms", [True, False])
async def test_a_late_alarm_stops_the_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alarms: bool) -> None:
    population = pretended_population(3, 1)
    name, late = population.popitem()
    offers, compute_join = 0, driver._compute_join

    def computed(connection: Connection, *rest: Any) -> Any:
        nonlocal offers
        found = compute_join(connection, *rest)
        if found is not None and found[1].desired:
            offers += 1
            if alarms:
                pool = pool_of(20, KEY._replace(bundle=BUNDLE, version=NEW), alarmed_s=1.8e9)
                with simulation.database.begin() as other:
                    contract_records.replace_pool(other, pool)
        return found

    monkeypatch.setattr(driver, "_compute_join", computed)
    async with driven(sqlite_store(tmp_path), Pretended(population)) as simulation:
        found = definition(Stage(1.0, soak_s=0.0), rules=Rules(ignored=tuple(FIGURES)), held_back=0.0)
        assert (await simulation.run(found, 10)).state == "completed"
        population[name] = late
        for _ in range(3):
            await simulation.pass_time(1.0)
    assert offers == 1
    assert late.version == (OLD if alarms else NEW)
