"""Rollouts in the store: what a step writes and reads."""

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import event, update

from firstline_core.fleet.twin import DesiredModel, DesiredVersion
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.rollout import Assignment, Definition, DeviceState, Rollout, RolloutState
from firstline_gateway.rollouts.step import StepChanges
from firstline_gateway.store import schema
from firstline_gateway.store.database import Database

ROLLOUT = Rollout("r", Definition("cameras", 2, "2" * 64), RolloutState.RUNNING, "ops", 1.7e9, seed=1)
NAMES = [f"cam-{number}" for number in range(20)]


def assigned(stage: int) -> dict[str, Assignment]:
    return {name: Assignment(name, stage, True, True, 0, DeviceState.WAITING) for name in NAMES}


def test_a_stage_writes_each_device_once(database: Database) -> None:
    """Commands to the rollout wait meanwhile."""
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


def test_a_large_step_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_MANY", 6)
    desired = {"cam-3": DesiredVersion("cameras", 2, "2" * 64, "r")}
    ended = replace(ROLLOUT, sentence="It begins.")
    changes = StepChanges(
        ended, assigned(0), desired, before=dict.fromkeys(NAMES), start={"cam-4": Totals(), "dog": Totals()}, more=True
    )
    *early, last = records.in_parts(ROLLOUT, changes)
    assert [len(part.assigned) for part in (*early, last)] == [6, 6, 6, 2]
    for part in early:
        assert part == StepChanges(ROLLOUT, part.assigned, before=part.before, start=part.start)
        assert part.before.keys() == part.assigned.keys()
    assert last.rollout == ended and last.desired == desired and last.more
    for name in ("assigned", "before", "start"):
        found = [each for part in (*early, last) for each in getattr(part, name).items()]
        assert sorted(found) == sorted(getattr(changes, name).items()), name


def test_a_rollback_reads_only_rollouts_of_its_bundle(database: Database) -> None:
    offered = DesiredVersion("cameras", 2, "2" * 64, "r")
    newer = replace(ROLLOUT, id="newer", definition=Definition("cameras", 3, "3" * 64))
    other = replace(ROLLOUT, id="other", definition=Definition("microphones", 1, "1" * 64))
    with database.begin() as connection:
        for each in (ROLLOUT, newer, other):
            records.add(connection, each, None)
        connection.execute(update(records.ROLLOUTS).where(records.ROLLOUTS.c.id == "other").values(record="damaged"))
        taken = {name: replace(each, before=offered) for name, each in assigned(0).items()}
        records.assign(connection, "newer", taken.values(), {})
        changes = StepChanges(ROLLOUT, replaced=assigned(0))
        records.apply(connection, ROLLOUT, changes, 1.7e9)
        assert {each.before for each in records.assignments(connection, "newer").values()} == {None}


@pytest.mark.parametrize("rollout", ["r", "newer"])
def test_a_rollback_leaves_the_version_of_a_newer_rollout(database: Database, rollout: str) -> None:
    """The device is revoked, so that a step does not see its desired version."""
    offered, back = DesiredModel("cameras", 2, "2" * 64, rollout), DesiredVersion("cameras", 1, "1" * 64, "earlier")
    with database.begin() as connection:
        records.add(connection, ROLLOUT, None)
        devices.accept(connection, "cam-0", 1.7e9)
        devices.desire(connection, ["cam-0"], lambda _, document: replace(document, models=(offered,)))
        changes = StepChanges(ROLLOUT, desired={"cam-0": back}, replaced={"cam-0": assigned(0)["cam-0"]})
        records.apply(connection, ROLLOUT, changes, 1.7e9)
        (found,) = devices.existing(connection, "cam-0").desired.models
    assert found.version == (1 if rollout == "r" else 2)


def test_rollouts_hidden_from_a_person_hide_no_others(database: Database) -> None:
    with database.begin() as connection:
        for number, site in enumerate(("berlin", "paris", "paris", "berlin", "paris")):
            definition = Definition("cameras", 2, "2" * 64, selector=f"site={site}")
            rollout = replace(ROLLOUT, id=f"r{number}", state=RolloutState.PAUSED, definition=definition)
            records.put(connection, records.add(connection, rollout, None))
        found = records.waiting(connection, lambda selector: selector == "site=berlin", 2)
        assert [each.id for each in found] == ["r3", "r0"]
