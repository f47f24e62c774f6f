"""Simulated devices with the agent's own updater, under the real engine and store: a few, and a little of their day."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fleet.driven import HOUR_S, definition, driven
from fleet.population import NEW, NOTHING, OLD, Effect
from fleet.world import world
from support.databases import sqlite_store

from firstline_core.fleet.rollout import RolloutSummary
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.stages import Stage

DEVICES = 24
STAGES = Stage(0.5, soak_s=HOUR_S), Stage(1.0, soak_s=HOUR_S)


async def rolled_out(folder: Path, effect: Effect, *, corrupt: bool = False) -> tuple[RolloutSummary, dict[int, int]]:
    """How a rollout ended, and how many devices come up with which version that verifies."""
    async with world(DEVICES, 1, effect, corrupt=corrupt) as there, driven(sqlite_store(folder), there) as room:
        found = definition(*STAGES, rules=Rules(promote_unseen=True), manifest_sha256=there.manifest_sha256)
        ended = await room.run(found, 12)
        return ended, dict(await asyncio.to_thread(there.versions))


async def test_a_good_model_comes_to_every_disk(tmp_path: Path) -> None:
    ended, versions = await rolled_out(tmp_path, NOTHING)
    assert ended.state == "completed", ended.sentence
    assert versions == {NEW: DEVICES}


@pytest.mark.parametrize(
    ("effect", "corrupt"), [(NOTHING, True), (Effect(crashes=1440.0), False)], ids=["corrupt", "crashing in its trial"]
)
async def test_a_model_that_cannot_stay_is_stopped_and_no_disk_has_it(
    tmp_path: Path, effect: Effect, corrupt: bool
) -> None:
    ended, versions = await rolled_out(tmp_path, effect, corrupt=corrupt)
    assert (ended.state, ended.stage) == ("rolled_back", 0), ended.sentence
    assert versions == {OLD: DEVICES}
