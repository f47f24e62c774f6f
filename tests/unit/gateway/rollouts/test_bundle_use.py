"""Targets that rollouts still need, and the refusal to remove them."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.databases import sqlite_store

from firstline_core.fleet.twin import DesiredModel
from firstline_core.fleet.update import UpdateKind
from firstline_gateway.registry.bundle_use import SignedVersion
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.bundle_use import reason_to_keep
from firstline_gateway.rollouts.rollout import Assignment, Definition, DeviceState, Rollout, RolloutState
from firstline_gateway.tables import open_database

S = RolloutState
OLD = DesiredModel("cameras", 1, "1" * 64, "earlier")


@pytest.mark.parametrize(
    ("state", "version", "message"),
    [
        (S.DRAFT, 2, None),
        (S.RUNNING, 2, "is running"),
        (S.RUNNING, 1, "may go back to cameras version 1"),
        (S.PAUSED, 1, "is paused"),
        (S.ROLLING_BACK, 1, "is rolling back"),
        (S.RUNNING, 3, None),
        (S.COMPLETED, 2, "from the completed rollout r"),
        (S.COMPLETED, 1, None),
        (S.ROLLED_BACK, 2, None),
    ],
)
def test_what_a_rollout_needs_stays(tmp_path: Path, state: RolloutState, version: int, message: str | None) -> None:
    database = open_database(sqlite_store(tmp_path))
    rollout = Rollout("r", Definition("cameras", 2, "2" * 64), S.DRAFT, "ops", 1.7e9, seed=1)
    with database.begin() as connection:
        records.add(connection, rollout, None)
        records.put(connection, replace(rollout, state=state))
        assignment = Assignment("d", 0, True, True, 0, DeviceState.DONE, 1.0, OLD, 1)
        records.assign(connection, "r", [assignment], {})
        reason = reason_to_keep(connection, {SignedVersion(UpdateKind.MODEL, "cameras", version)})
        assert reason_to_keep(connection, {SignedVersion(UpdateKind.MODEL, "others", version)}) is None
        assert reason_to_keep(connection, {SignedVersion(UpdateKind.CONFIGURATION, "cameras", version)}) is None
    database.close()
    assert reason is None if message is None else message in (reason or "")
