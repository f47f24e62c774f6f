"""A step of a rollout writes each device once: commands to the rollout wait meanwhile."""

from typing import Any

from sqlalchemy import event

from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.rollout import Assignment, Definition, DeviceState, Rollout, RolloutState
from firstline_gateway.rollouts.step import StepChanges
from firstline_gateway.store.database import Database

ROLLOUT = Rollout("r", Definition("cameras", 2, "2" * 64), RolloutState.RUNNING, "ops", 1.7e9, seed=1)
NAMES = [f"cam-{number}" for number in range(20)]


def assigned(stage: int) -> dict[str, Assignment]:
    return {name: Assignment(name, stage, True, True, 0, DeviceState.WAITING) for name in NAMES}


def test_a_stage_writes_each_device_once(database: Database) -> None:
    written: list[Any] = []
    event.listen(database._engine, "before_cursor_execute", lambda *arguments: written.extend(arguments[3]))
    with database.begin() as connection:
        records.add(connection, ROLLOUT, None)
        begun = StepChanges(ROLLOUT, assigned=assigned(0), before=dict.fromkeys(NAMES))
        records.apply(connection, ROLLOUT, begun, 1.7e9)
        observed = StepChanges(ROLLOUT, assigned=assigned(0), start=dict.fromkeys(NAMES, Totals()))
        records.apply(connection, ROLLOUT, observed, 1.7e9)
        assert records.baselines(connection, "r").keys() == set(NAMES)
        written.clear()
        again = StepChanges(ROLLOUT, assigned=assigned(1), before=dict.fromkeys(NAMES[2:]))
        records.apply(connection, ROLLOUT, again, 1.7e9)
        assert len([row for row in written if "cam-" in str(row)]) == len(NAMES)
        assert records.baselines(connection, "r").keys() == set(NAMES[:2])
