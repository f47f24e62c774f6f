"""One step of a rollout, with simulated reports of devices."""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from firstline_core.fleet.rollout_documents import Plan
from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.fleet.twin import DesiredModel, RunningModel, Update
from firstline_core.fleet.update import UpdateKind, UpdateState
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.commands import Command, command_changes
from firstline_gateway.rollouts.device_progress import DeviceView
from firstline_gateway.rollouts.judgement.figures import FIGURES, Period
from firstline_gateway.rollouts.judgement.verdict import Limit, Rules
from firstline_gateway.rollouts.plan import plan
from firstline_gateway.rollouts.rollout import Assignment, Definition, DeviceState, Phase, Rollout, RolloutState, Stage
from firstline_gateway.rollouts.step import StepChanges, StepTime, step

S = DeviceState
UNSEEN = Rules(limits={name: Limit(1e9) for name in FIGURES})
OLD = DesiredModel("cameras", 1, "1" * 64, "earlier")
BACK = replace(OLD, withdrawn=("2" * 64,))


@dataclass
class SimulatedFleet:
    """A fleet in memory. Tests set what its devices report."""

    rollout: Rollout
    devices: dict[str, DeviceView]
    assignments: dict[str, Assignment] = field(default_factory=dict)
    baseline: dict[str, tuple[Period | None, Totals]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    now_s: float = 0.0
    alarm: str = ""
    audited: tuple[int, ...] = ()  # versions of which every answer is audited
    disagreeing: tuple[int, ...] = ()  # versions of which every audit disagrees
    empty: bool = False  # whether no audit holds an object
    committed_s: dict[str, float] = field(default_factory=dict)

    def totals(self, names: Iterable[str]) -> Mapping[str, Totals]:
        """Returns one row of the version that runs for each second, and 100 earlier rows of version 1."""
        totals = {}
        for name in names:
            old = 100 + int(self.committed_s.get(name, self.now_s))
            rows = {1: old, 2: 100 + int(self.now_s) - old}
            totals[name] = Totals(tuple(map(self._counts, rows, rows.values())), 1e5 + self.now_s)
        return totals

    def _counts(self, version: int, rows: int) -> ModelCounts:
        audited = rows if version in self.audited else 0
        disagreed = audited if version in self.disagreeing else 0
        empty = audited if self.empty else 0
        return ModelCounts(
            "cameras",
            version,
            rows=rows,
            kept=rows,
            audited=audited,
            audited_empty=empty,
            disagreed=disagreed,
            losses=disagreed,
        )

    def totals_before(self, names: Iterable[str], at_s: float) -> Mapping[str, Totals]:
        return {name: Totals((), at_s - at_s) for name in names}

    def baselines(self) -> Mapping[str, tuple[Period | None, Totals]]:
        return self.baseline

    def take(self, changes: StepChanges) -> None:
        self.rollout = changes.rollout
        self.assignments |= changes.assigned
        for name, totals in changes.start.items():
            self.baseline[name] = changes.before.get(name), totals
        for name in changes.desired.keys() & self.devices.keys():
            self.devices[name] = replace(self.devices[name], desired=changes.desired[name])
        for name, audited in changes.audits.items():
            self.devices[name] = replace(self.devices[name], audited=audited)
        self.notes += [action for action, _, _ in changes.notes]

    def advance(self, seconds: float = 0.0, times: int = 1) -> StepChanges:
        """Steps until no step is due at once, after each of some times."""
        for _ in range(times):
            self.now_s += seconds
            more = True
            while more:
                changes = step(self.rollout, self.assignments, self, StepTime(self.now_s, 1.7e9 + self.now_s))
                self.take(changes)
                more = changes.more
        return changes

    def install(self, seconds: float = 0.0, times: int = 1) -> None:
        """Steps, and all devices install what they are offered; after each of some times."""
        for _ in range(times):
            self.advance(seconds)
            self.report_all(UpdateState.COMMITTED)

    def change(self, name: str, **changes: Any) -> None:
        self.devices[name] = replace(self.devices[name], **changes)

    def change_all(self, **changes: Any) -> None:
        for name in self.devices:
            self.change(name, **changes)

    def command(self, command: Command, by: str = "application:ops") -> None:
        self.take(command_changes(command, self.rollout, self.assignments, by, StepTime(self.now_s, 1.7e9)))

    def obey(self, command: Command) -> None:
        """An operator's command, and the steps that are due at once."""
        self.command(command)
        self.advance()

    def step(self) -> StepChanges:
        """The changes of the next step, which are not applied."""
        return step(self.rollout, self.assignments, self, StepTime(self.now_s, 1.7e9))

    def plan(self, definition: Definition | None = None, **changes: Any) -> Plan:
        """The plan of its rollout, or of a changed definition."""
        options = {"delta": 0.05, "contracts": 1} | changes
        return plan(definition or self.rollout.definition, self, None, StepTime(0.0, 1.7e9), **options)

    def report(self, name: str, state: UpdateState, *, age_s: float = 0.0) -> None:
        version = 2 if state is UpdateState.COMMITTED else 1
        if version == 2:
            self.committed_s.setdefault(name, self.now_s)
        update = Update("cameras", 2, state, rollout=self.rollout.id)
        self.devices[name] = replace(self.devices[name], update=update, version=version, age_s=age_s)

    def report_all(self, state: UpdateState) -> None:
        for name, each in self.assignments.items():
            if each.state in (S.OFFERED, S.UNDER_WAY):
                self.report(name, state)

    def states(self) -> dict[DeviceState, int]:
        numbers: dict[DeviceState, int] = {}
        for each in self.assignments.values():
            numbers[each.state] = numbers.get(each.state, 0) + 1
        return numbers


def simulated_fleet(number: int = 20, *stages: Stage, rules: Rules = UNSEEN, held_back: float = 0.0) -> SimulatedFleet:
    definition = Definition(
        "cameras", 2, "2" * 64, stages or (Stage(1.0, soak_s=800),), rules, held_back=held_back, salt="s"
    )
    names = [f"d{index:02}" for index in range(number)]
    devices = {name: DeviceView(name, {}, 0.0, True, True, 1, None, OLD) for name in names}
    return SimulatedFleet(Rollout("r", definition, RolloutState.RUNNING, "application:ops", 1.7e9, seed=1), devices)


def installed_fleet(number: int = 20, *stages: Stage, after_s: float, **options: Any) -> SimulatedFleet:
    """Returns a fleet some time after all its devices have installed the version."""
    fleet = simulated_fleet(number, *stages, **options)
    fleet.install()
    fleet.advance(after_s)
    return fleet


def test_a_stage_is_offered_at_its_pace() -> None:
    fleet = simulated_fleet(20, Stage(1.0, per_minute=5))
    fleet.advance()
    assert fleet.states() == {S.OFFERED: 1, S.WAITING: 19}
    fleet.advance(60)
    assert fleet.states() == {S.OFFERED: 6, S.WAITING: 14}
    fleet.command(Command.PAUSE)
    fleet.advance(600)
    assert fleet.states() == {S.OFFERED: 6, S.WAITING: 14}
    fleet.obey(Command.RESUME)
    assert fleet.states()[S.OFFERED] == 6


def test_absent_device_neither_fails_nor_delays_the_stage() -> None:
    fleet = simulated_fleet()
    fleet.change("d03", online=False)
    fleet.change("d04", age_s=math.inf)
    fleet.advance()
    assert fleet.states() == {S.OFFERED: 18, S.AWAY: 2} and not fleet.assignments["d03"].reachable
    fleet.report_all(UpdateState.COMMITTED)
    fleet.advance(60)
    assert fleet.rollout.phase is Phase.OBSERVING
    assert fleet.advance(100).look.findings[0].devices == (18, 0)
    fleet.report("d03", UpdateState.COMMITTED)
    fleet.advance(1)
    assert fleet.assignments["d03"].state is S.DONE


def test_device_silent_after_the_offer_failed_until_it_returns() -> None:
    fleet = simulated_fleet()
    fleet.install()
    fleet.report("d05", UpdateState.DOWNLOADING, age_s=10_000)
    fleet.advance(60)
    assert fleet.assignments["d05"].state is S.SILENT and fleet.rollout.phase is Phase.OBSERVING
    assert fleet.advance(100).look.findings[0].treated == 1 / 20
    assert fleet.devices["d05"].desired.version == 2
    fleet.report("d05", UpdateState.COMMITTED)
    assert fleet.advance(100).look is not None
    assert fleet.assignments["d05"].state is S.DONE


def test_decisive_failures_stop_the_offers() -> None:
    fleet = simulated_fleet(40, Stage(1.0, per_minute=10))
    fleet.advance()
    fleet.advance(60)
    fleet.report_all(UpdateState.FAILED)
    fleet.advance(60)
    assert fleet.rollout.state is RolloutState.ROLLED_BACK, fleet.rollout.sentence
    assert "installations failed" in fleet.rollout.sentence
    assert fleet.rollout.sentence.endswith("The previous version runs again on 11 devices.")
    assert fleet.states() == {S.RETURNED: 11, S.WITHDRAWN: 29}, "the others were never offered it"
    assert all(each.desired in (OLD, BACK) for each in fleet.devices.values())


def test_stages_follow_each_other_and_devices_held_back_come_last() -> None:
    fleet = simulated_fleet(40, Stage(0.5, soak_s=800), Stage(1.0, soak_s=800), held_back=0.2)
    fleet.install(100, times=40)
    assert fleet.rollout.state is RolloutState.COMPLETED
    assert fleet.states() == {S.DONE: 40}
    assert fleet.notes.count("rollout.promote") == 2 and fleet.notes.count("rollout.look") == 16
    assert {each.stage for each in fleet.assignments.values()} == {0, 1, 2}


def test_a_stage_is_judged_by_its_own_installations() -> None:
    fleet = simulated_fleet(40, Stage(0.4, soak_s=800), Stage(1.0, soak_s=800), held_back=0.25)
    fleet.install()
    while fleet.rollout.stage == 0:
        fleet.advance(100)
    offered = [name for name, each in fleet.assignments.items() if each.stage == 1 and each.state is S.OFFERED]
    fleet.report_all(UpdateState.COMMITTED)
    fleet.report(offered[0], UpdateState.REJECTED)
    fleet.advance()
    fleet.now_s = fleet.rollout.look_due_s
    look = fleet.step().look
    assert look is not None and len(offered) == 14
    assert (look.findings[0].treated, look.findings[0].devices) == (1 / 14, (14, 0))


def test_the_past_of_a_device_ends_where_its_stage_begins() -> None:
    before = simulated_fleet(2).step().before
    assert [period and period.counts.rows for period in before.values()] == [100, 100]


def test_slow_installations_pause_the_rollout() -> None:
    fleet = simulated_fleet(20, Stage(1.0, patience_s=300))
    fleet.advance()
    fleet.report_all(UpdateState.DOWNLOADING)
    fleet.advance(301)
    assert fleet.rollout.state is RolloutState.PAUSED and "20 of 20" in fleet.rollout.sentence
    fleet.command(Command.RESUME)
    fleet.advance(299)
    assert fleet.rollout.state is RolloutState.RUNNING


def test_unclear_stage_is_held_then_paused_then_promotable() -> None:
    fleet = simulated_fleet(20, Stage(1.0, soak_s=800, patience_s=300), rules=Rules())
    fleet.install()
    fleet.advance(100, times=13)
    assert fleet.rollout.state is RolloutState.PAUSED and "too little" in fleet.rollout.sentence
    fleet.obey(Command.PROMOTE)
    assert fleet.rollout.state is RolloutState.COMPLETED


def test_an_abort_stops_devices_under_way_and_leaves_those_that_are_done() -> None:
    fleet = simulated_fleet()
    fleet.advance()
    fleet.report("d01", UpdateState.COMMITTED)
    fleet.advance(1)
    fleet.obey(Command.ABORT)
    assert fleet.rollout.state is RolloutState.ABORTED and not fleet.rollout.unsettled
    assert fleet.devices["d01"].desired != OLD
    assert all(each.desired == BACK for name, each in fleet.devices.items() if name != "d01")
    fleet.obey(Command.ROLLBACK)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK
    fleet.change("d01", version=1, update=None)
    fleet.advance(1)
    assert fleet.rollout.state is RolloutState.ROLLED_BACK
    assert fleet.devices["d01"].desired == BACK


def test_rollback_keeps_reasons_of_failures_not_of_expired_offers() -> None:
    fleet = simulated_fleet(4, Stage(1.0, soak_s=0))
    fleet.install()
    fleet.report("d00", UpdateState.FAILED)
    fleet.report("d01", UpdateState.EXPIRED)
    fleet.advance(1)
    assert (fleet.assignments["d00"].state, fleet.assignments["d01"].state) == (S.FAILED, S.WITHDRAWN)
    fleet.obey(Command.ROLLBACK)
    assert [fleet.assignments[name].reason for name in ("d00", "d01", "d02")] == ["failed", "", ""]


def test_a_rollback_without_an_earlier_desired_version_undoes_the_new_one() -> None:
    fleet = simulated_fleet()
    fleet.change("d01", desired=None)
    fleet.advance()
    fleet.obey(Command.ROLLBACK)
    desired = fleet.devices["d01"].desired
    assert desired.undone and desired.version == 2


def test_versions_withdrawn_while_a_device_is_away_stay_in_its_desired_state() -> None:
    undone = DesiredModel("cameras", 3, "3" * 64, "aborted", undone=True, withdrawn=("4" * 64,))
    fleet = simulated_fleet(2)
    fleet.change("d01", desired=undone, online=False)
    fleet.advance()
    offered = fleet.devices["d01"].desired
    assert offered.withdrawn == ("4" * 64, "3" * 64) and not offered.undone
    fleet.obey(Command.ROLLBACK)
    back = fleet.devices["d01"].desired
    assert back.undone and back.withdrawn == ("4" * 64, "3" * 64)
    assert fleet.devices["d00"].desired == BACK


def test_a_device_that_ran_the_version_before_keeps_it_in_a_rollback() -> None:
    fleet = simulated_fleet()
    fleet.change("d01", version=2)
    fleet.install()
    fleet.advance(1)
    fleet.obey(Command.ROLLBACK)
    assert fleet.assignments["d01"].state is S.RETURNED and fleet.assignments["d02"].state is S.RETURNING


def test_a_rollback_names_devices_that_a_newer_rollout_took() -> None:
    fleet = simulated_fleet(4)
    fleet.change("d02", version=2)
    fleet.install()
    fleet.advance(1)
    newer = DesiredModel("cameras", 3, "3" * 64, "newer")
    fleet.change("d01", desired=newer)
    fleet.change("d02", desired=newer)
    fleet.change("d03", desired=None)
    fleet.command(Command.ROLLBACK)
    changes = fleet.step()
    replaced = {name: each.before for name, each in changes.replaced.items()}
    assert replaced == {"d01": OLD, "d03": OLD}, "d02 had the version before"
    assert changes.desired == {"d00": BACK}


def test_a_rollback_counts_devices_of_another_rollout_apart() -> None:
    fleet = installed_fleet(3, Stage(1.0, soak_s=0), after_s=1)
    newer = DesiredModel("cameras", 3, "3" * 64, "newer")
    fleet.change("d00", desired=newer)
    fleet.obey(Command.ROLLBACK)
    fleet.change("d01", version=1, update=None)
    fleet.change("d02", desired=newer)  # while it returned
    fleet.advance(1)
    assert fleet.rollout.state is RolloutState.ROLLED_BACK
    assert fleet.states() == {S.WITHDRAWN: 2, S.RETURNED: 1}
    assert fleet.rollout.sentence.endswith(" runs again on 1 device; taken by another rollout: 2 devices.")


def test_a_rollback_waits_no_longer_than_the_patience() -> None:
    """An online device does not apply it."""
    fleet = installed_fleet(3, Stage(1.0, soak_s=0, patience_s=600), after_s=1)
    fleet.obey(Command.ROLLBACK)
    fleet.change("d01", version=1, update=None)
    fleet.change("d02", age_s=5000.0)
    fleet.advance(600)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK
    fleet.advance(1)
    assert fleet.rollout.state is RolloutState.ROLLED_BACK
    assert fleet.states() == {S.RETURNING: 2, S.RETURNED: 1}
    assert "1 device; online, and not rolled back in time: 1 device; silent, " in fleet.rollout.sentence


def test_a_retry_before_a_stage_begins_keeps_its_devices() -> None:
    fleet = simulated_fleet(4, Stage(0.5, soak_s=800), Stage(1.0, soak_s=800))
    fleet.install()
    failed = next(iter(fleet.assignments))
    fleet.report(failed, UpdateState.FAILED)
    fleet.advance(1)
    fleet.command(Command.PROMOTE)
    fleet.obey(Command.RETRY)
    assert fleet.states() == {S.DONE: 1, S.OFFERED: 3}
    assert not fleet.assignments[failed].reachable  # chance did not put it into this stage


@pytest.mark.parametrize("command", [Command.ABORT, Command.ROLLBACK])
def test_the_first_offer_of_a_retry_is_withdrawn(command: Command) -> None:
    """A device fell silent, and is to try again when the rollout ends."""
    fleet = simulated_fleet(2, Stage(1.0, soak_s=800))
    fleet.advance()
    fleet.change_all(age_s=5000.0)
    fleet.advance(1)
    fleet.command(Command.PAUSE)
    fleet.command(Command.RETRY)
    assert fleet.states() == {S.WAITING: 2}
    fleet.obey(command)
    assert [each.desired for each in fleet.devices.values()] == [BACK, BACK]


def test_a_revoked_device_returns_to_its_previous_version() -> None:
    fleet = installed_fleet(2, Stage(1.0, soak_s=0), after_s=1)
    del fleet.devices["d01"]
    fleet.command(Command.ROLLBACK)
    changes = fleet.step()
    assert changes.desired == {"d00": BACK, "d01": BACK} and changes.replaced.keys() == {"d01"}
    assert changes.assigned["d01"].state is S.RETURNED


def test_a_stage_whose_beginning_was_interrupted_begins_again() -> None:
    whole, interrupted = (simulated_fleet(20, Stage(0.3), Stage(1.0), held_back=0.2) for _ in range(2))
    for _ in range(3):
        changes = interrupted.step()
        interrupted.assignments |= {name: changes.assigned[name] for name in sorted(changes.assigned)[::2]}
        for fleet in (whole, interrupted):
            fleet.install()
            fleet.advance(1)
            if fleet.rollout.state is RolloutState.RUNNING:
                fleet.command(Command.PROMOTE)
        assert interrupted.assignments == whole.assignments
    assert whole.rollout.state is RolloutState.COMPLETED and whole.states() == {S.DONE: 20}


def test_an_interrupted_beginning_compares_no_devices_that_waited() -> None:
    fleet = simulated_fleet(20, Stage(0.3, per_minute=1), Stage(0.6), held_back=0.2)
    fleet.advance()
    waited = {name for name, each in fleet.assignments.items() if each.state is S.WAITING}
    fleet.command(Command.PROMOTE)
    changes = fleet.step()
    fleet.assignments |= {name: changes.assigned[name] for name in waited}
    fleet.advance()
    compared = {name for name, each in fleet.assignments.items() if each.reachable and each.stage == 1}
    assert len(waited) == 5 and not waited & compared
    assert fleet.states() == {S.OFFERED: 12, S.CONTROL: 8}


def test_a_report_from_before_a_retry_does_not_count() -> None:
    fleet = simulated_fleet()
    fleet.install()
    fleet.report("d01", UpdateState.FAILED)
    fleet.advance(1)
    assert fleet.assignments["d01"].state is S.FAILED
    fleet.command(Command.RETRY)
    fleet.change("d01", up_to_date=False)
    fleet.advance(1)
    assert fleet.devices["d01"].desired.attempt == 2
    assert fleet.assignments["d01"].state is S.OFFERED and fleet.rollout.phase is Phase.INSTALLING
    fleet.change("d01", up_to_date=True)
    fleet.report("d01", UpdateState.COMMITTED)
    fleet.advance(1)
    assert fleet.assignments["d01"].state is S.DONE and fleet.rollout.phase is Phase.OBSERVING


def test_a_plan_has_the_devices_of_each_stage_and_the_detectable_effects() -> None:
    fleet = simulated_fleet(40, Stage(0.25, per_minute=2), Stage(1.0), held_back=0.2)
    fleet.change("d00", online=False)
    planned = plan(fleet.rollout.definition, fleet, 1000, StepTime(0.0, 1.7e9), delta=0.05, contracts=1)
    assert planned.devices == 40 and planned.bytes == 40_000
    assert sum(stage.devices for stage in planned.stages) + planned.rest == 40
    assert sum(stage.away for stage in planned.stages) <= 1
    first = planned.stages[0]
    assert first.offered_s == (first.devices - 1) * 30 and first.control == 40 - first.devices
    assert planned.sees and planned.earliest_s is not None and "at most 0.06:" in planned.false_aborts
    assert planned.detects.startswith("This fleet can detect a rise of crashes (+")
    assert "in stage 1, after 64 minutes, and cannot detect latency, drift" in planned.detects
    drift = next(figure for figure in first.figures if figure.figure == "drift")
    assert drift.spread is None and drift.detectable is None


def test_a_plan_reads_the_past_of_2000_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, read = simulated_fleet(2010, Stage(0.5), rules=Rules()), set[str]()
    counts = ModelCounts("cameras", 1, rows=9000, audited=1000, audited_empty=900)

    def totals(names: Iterable[str]) -> Mapping[str, Totals]:
        read.update(names)
        return {name: Totals((counts,), 86_400) for name in names}

    monkeypatch.setattr(fleet, "totals", totals)
    monkeypatch.setattr(fleet, "totals_before", lambda names, _: {name: Totals() for name in names})
    planned = fleet.plan()
    assert planned.devices == 2010 and len(read) == 2000
    # The rate is that of the sample; all 1,005 devices of the stage make audits at this rate.
    assert planned.audits.endswith("(200,000 of 2,000,000 audits) they make 4,188 in 60 minutes.")


@pytest.mark.parametrize(("contracts", "most"), [(0, 0.01), (1, 0.06), (3, 0.16), (40, 1)])
def test_a_plan_adds_the_false_alarms_of_all_contracts_of_the_version(contracts: int, most: float) -> None:
    fleet = simulated_fleet(2)
    stated = fleet.plan(contracts=contracts).false_aborts
    assert f"at most {most}: 0.01 by the comparison" in stated
    assert ("on the gateway (contracts.delta). A device's own alarm" in stated) == (contracts > 0)


def test_devices_waiting_at_a_promotion_join_the_next_stage() -> None:
    fleet = simulated_fleet(20, Stage(0.5, per_minute=1, soak_s=800), Stage(1.0, soak_s=800))
    fleet.advance()
    waited = {name for name, each in fleet.assignments.items() if each.state is S.WAITING and each.treated}
    assert waited
    fleet.obey(Command.PROMOTE)
    assert all(fleet.assignments[name].state is S.OFFERED and not fleet.assignments[name].reachable for name in waited)
    for _ in range(20):
        fleet.report_all(UpdateState.COMMITTED)
        fleet.advance(100)
    assert fleet.rollout.state is RolloutState.COMPLETED and fleet.states() == {S.DONE: 20}


def test_a_retry_while_paused_does_not_stop_the_clock() -> None:
    fleet = simulated_fleet(40, Stage(1.0, per_minute=5))
    fleet.advance()
    fleet.advance(180)
    failed = next(name for name, each in fleet.assignments.items() if each.state is S.OFFERED)
    fleet.report(failed, UpdateState.FAILED)
    fleet.advance()
    fleet.command(Command.PAUSE)
    fleet.now_s += 36_000
    fleet.command(Command.RETRY)
    fleet.devices[failed] = replace(fleet.devices[failed], up_to_date=False)
    fleet.obey(Command.RESUME)
    assert fleet.assignments[failed].state is S.OFFERED
    begun = fleet.states()[S.OFFERED]
    fleet.advance(60)
    assert fleet.states()[S.OFFERED] == begun + 5


def test_a_retry_in_the_middle_of_a_stage_keeps_its_pace() -> None:
    fleet = simulated_fleet(40, Stage(1.0, per_minute=10))
    fleet.advance()
    fleet.advance(120)
    assert fleet.states() == {S.OFFERED: 21, S.WAITING: 19}
    failed = next(name for name, each in fleet.assignments.items() if each.state is S.OFFERED)
    fleet.report(failed, UpdateState.FAILED)
    fleet.advance(1)
    fleet.command(Command.RETRY)
    fleet.devices[failed] = replace(fleet.devices[failed], up_to_date=False)
    fleet.advance()
    assert fleet.assignments[failed].state is S.OFFERED
    fleet.advance(60)
    assert fleet.states() == {S.OFFERED: 31, S.WAITING: 9}


def test_a_pause_within_a_stages_time_does_not_use_up_its_patience() -> None:
    fleet = installed_fleet(20, Stage(1.0, soak_s=8000, patience_s=300), rules=Rules(), after_s=60)
    fleet.command(Command.PAUSE)
    fleet.command(Command.RESUME)
    fleet.advance(8000)
    assert fleet.rollout.state is RolloutState.RUNNING, fleet.rollout.sentence
    fleet.advance(300)
    assert fleet.rollout.state is RolloutState.PAUSED


def test_stage_held_for_weeks_is_seldom_evaluated() -> None:
    fleet = installed_fleet(20, Stage(1.0, soak_s=480, patience_s=30 * 86_400), rules=Rules(), after_s=60)
    for _ in range(30 * 24 * 6 + 3):
        fleet.advance(600)
    assert fleet.rollout.state is RolloutState.PAUSED
    assert 40 < fleet.rollout.look < 90


def test_devices_that_fall_silent_with_the_model_abort_the_rollout() -> None:
    fleet = installed_fleet(80, Stage(0.5, soak_s=8000), rules=Rules(promote_unseen=True), after_s=60)
    treated = [name for name, each in fleet.assignments.items() if each.treated]
    for name in treated[:30]:
        fleet.change(name, age_s=5000.0)
    changes = fleet.advance(1000)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK, fleet.rollout.sentence
    assert changes.look is None and "silence" in fleet.rollout.sentence


def test_stranded_devices_are_reported_and_do_not_delay_a_rollback() -> None:
    fleet = installed_fleet(4, Stage(1.0, soak_s=0), after_s=60)
    fleet.obey(Command.ROLLBACK)
    assert fleet.states() == {S.RETURNING: 4}
    for name in ("d00", "d01", "d02"):
        fleet.change(name, version=1, update=None)
    fleet.advance(10)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK
    refused = Update("cameras", 1, UpdateState.REJECTED, rollout=OLD.rollout, reason="not_found")
    fleet.change("d03", update=refused)
    fleet.advance(10)
    assert fleet.rollout.state is RolloutState.ROLLED_BACK
    assert fleet.assignments["d03"].state is S.STRANDED and fleet.assignments["d03"].reason == "not_found"
    assert "1 device could not go back (not_found), and cameras version 2 runs there" in fleet.rollout.sentence


def test_plan_warns_of_stages_too_short_to_detect_silence() -> None:
    fleet = simulated_fleet(4, Stage(0.5, soak_s=900), Stage(1.0, soak_s=901))
    (warning,) = fleet.plan().warnings
    assert warning.startswith("Stage 1 is observed for no longer than the 900 s")
    ignored = replace(fleet.rollout.definition, rules=Rules(ignored=("silence",)))
    assert fleet.plan(ignored).warnings == ()


def test_a_plan_warns_that_no_device_is_selected() -> None:
    fleet = simulated_fleet(4, Stage(1.0, soak_s=901))
    misspelt = replace(fleet.rollout.definition, selector="site=berlni")
    (warning,) = fleet.plan(misspelt).warnings
    assert warning.startswith("No device matches site=berlni now, ")


@pytest.mark.parametrize("devices", [1, 2, 5, 40])
@pytest.mark.parametrize("rules", [Rules(promote_unseen=True), Rules(ignored=tuple(FIGURES)), UNSEEN])
def test_alarm_rolls_back_whatever_the_fleet_size_and_flags(devices: int, rules: Rules) -> None:
    fleet = installed_fleet(devices, Stage(1.0, soak_s=800), rules=rules, after_s=60)
    fleet.alarm = "The contract is broken."
    fleet.advance(5)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK
    assert "The contract is broken." in fleet.rollout.sentence and "rollout.promote" not in fleet.notes
    assert all(each.desired == BACK for each in fleet.devices.values())


def test_an_alarm_ends_a_paused_rollout_and_one_that_a_person_promotes() -> None:
    for command in (Command.PAUSE, Command.PROMOTE):
        fleet = installed_fleet(20, Stage(0.5, soak_s=800), Stage(1.0), after_s=60)
        fleet.command(command)
        fleet.alarm = "The contract is broken."
        fleet.advance()
        assert fleet.rollout.state is RolloutState.ROLLING_BACK and fleet.rollout.paused_s is None
        assert S.WAITING not in fleet.states()


def test_nothing_is_promoted_after_an_alarm_at_any_moment() -> None:
    rng = random.Random(18)
    for _ in range(100):
        rules = rng.choice([Rules(promote_unseen=True), UNSEEN, Rules()])
        stages = [Stage(share, soak_s=rng.choice([0, 300, 800])) for share in rng.choice([(1.0,), (0.1, 0.5, 1.0)])]
        fleet = simulated_fleet(rng.randint(1, 12), *stages, rules=rules, held_back=rng.choice([0.0, 0.05, 0.3]))
        for at in range(rng.randint(1, 30)):
            fleet.install(rng.choice([1, 60, 100]))
            if fleet.rollout.state is RolloutState.RUNNING and rng.random() < 0.1 * at:
                fleet.command(rng.choice([Command.PAUSE, Command.PROMOTE, Command.RETRY]))
        if fleet.rollout.state not in (RolloutState.RUNNING, RolloutState.PAUSED):
            continue
        promoted = fleet.notes.count("rollout.promote")
        fleet.alarm = "The contract is broken."
        for _ in range(20):
            fleet.advance(100)
        assert fleet.notes.count("rollout.promote") == promoted
        assert fleet.rollout.state in (RolloutState.ROLLING_BACK, RolloutState.ROLLED_BACK)


@pytest.mark.parametrize("command", [None, Command.ABORT, Command.ROLLBACK])
def test_both_groups_audit_their_answers_until_the_rollout_ends(command: Command | None) -> None:
    fleet = simulated_fleet(20, Stage(0.5, soak_s=800), held_back=0.2)
    fleet.change("d03", online=False)
    fleet.advance()
    assert all(each.audited for each in fleet.devices.values()) and fleet.states()[S.CONTROL] == 10
    fleet.report_all(UpdateState.COMMITTED)
    if command is not None:
        fleet.command(command)
    for _ in range(15):
        fleet.install(100)
        for name, assignment in fleet.assignments.items():
            if assignment.state is S.RETURNING:
                fleet.change(name, version=1, update=None)
    assert fleet.rollout.state not in (RolloutState.RUNNING, RolloutState.ROLLING_BACK), fleet.rollout.sentence
    assert not any(each.audited for each in fleet.devices.values()) and not fleet.rollout.unsettled
    away = {None: S.AWAY, Command.ABORT: S.WITHDRAWN, Command.ROLLBACK: S.RETURNED}
    assert fleet.assignments["d03"].state in (away[command], S.CONTROL, S.WITHDRAWN if command else S.AWAY)


def test_a_stage_without_audits_waits_and_names_the_reason() -> None:
    rules = Rules(limits={name: Limit(1e9, 2e9 if name == "disagreement" else None) for name in FIGURES})
    fleet = simulated_fleet(20, Stage(0.5, soak_s=800), rules=rules)
    fleet.install()
    fleet.advance(100, times=12)
    assert fleet.rollout.state is RolloutState.RUNNING and "rollout.promote" not in fleet.notes
    assert "No edge answer on devices with or without the model was audited" in fleet.rollout.sentence


@pytest.mark.parametrize("rules", [Rules(promote_unseen=True, ignored=("disagreement",)), UNSEEN])
def test_a_promotion_without_audits_says_so(rules: Rules) -> None:
    fleet = installed_fleet(1, Stage(1.0, soak_s=60), rules=rules, after_s=1)
    look = step(fleet.rollout, fleet.assignments, fleet, StepTime(61.0, 1.7e9 + 61.0)).look
    assert look.decision == "promote" and "No edge answer on devices with the model was audited" in look.sentence


def test_old_versions_audits_never_count_for_late_installs() -> None:
    fleet = simulated_fleet(2, Stage(1.0, soak_s=600, patience_s=300), rules=Rules(promote_unseen=True))
    fleet.audited = (1,)
    fleet.change_all(online=False)
    fleet.advance()
    assert fleet.rollout.phase is Phase.OBSERVING and fleet.states() == {S.AWAY: 2}
    model = RunningModel("cameras", 2, "edge-int8", full_digest="f" * 64)
    fleet.change_all(online=True, model=model)
    for _ in range(4):  # version 1 answers and is audited while version 2 is downloaded
        fleet.advance(60)
    fleet.report_all(UpdateState.COMMITTED)
    fleet.advance(60, times=9)
    assert fleet.states() == {S.DONE: 2} and fleet.rollout.state is RolloutState.RUNNING
    assert "No edge answer of edge-int8 was audited" in fleet.rollout.sentence
    fleet.audited = (2,)
    fleet.advance(120)
    assert fleet.rollout.state is RolloutState.COMPLETED, fleet.rollout.sentence


def test_returning_devices_disagreement_excludes_audits_of_old_versions() -> None:
    fleet = simulated_fleet(20, Stage(0.5, soak_s=800))
    fleet.audited, fleet.disagreeing = (1, 2), (2,)
    fleet.advance()
    silent = next(name for name, each in fleet.assignments.items() if each.state is S.OFFERED)
    fleet.report_all(UpdateState.COMMITTED)
    del fleet.committed_s[silent]
    fleet.report(silent, UpdateState.DOWNLOADING, age_s=10_000)
    fleet.advance(60)
    assert fleet.assignments[silent].state is S.SILENT and fleet.rollout.phase is Phase.OBSERVING
    fleet.advance(300)
    fleet.report(silent, UpdateState.COMMITTED)
    look = fleet.advance(300).look
    assert look is not None and fleet.assignments[silent].state is S.DONE
    disagreement = next(each for each in look.findings if each.figure == "disagreement")
    assert (disagreement.treated, disagreement.control, disagreement.devices) == (1.0, 0.0, (10, 10))


def test_the_promotion_of_a_configuration_says_nothing_about_audits() -> None:
    fleet = simulated_fleet(20, Stage(0.5, soak_s=60))
    definition = replace(fleet.rollout.definition, what=UpdateKind.CONFIGURATION)
    fleet.rollout = replace(fleet.rollout, definition=definition)
    fleet.advance()
    for name, each in fleet.assignments.items():
        if each.treated:
            update = Update("cameras", 2, UpdateState.COMMITTED, rollout="r", what=UpdateKind.CONFIGURATION)
            fleet.change(name, update=update, version=2)
    fleet.advance(1)
    look = step(fleet.rollout, fleet.assignments, fleet, StepTime(61.0, 1.7e9 + 61.0)).look
    assert look is not None and look.decision == "promote"
    assert "audit" not in look.sentence


@pytest.mark.parametrize(
    ("audits_off", "model", "reason"),
    [
        ("", RunningModel("cameras", 2, "edge-int8", full_digest="f" * 64), "edge-int8 was audited: audits need"),
        ("audit.per_hour", None, "cameras was audited: audit.per_hour is 0 on 2 devices"),
        ("", RunningModel("cameras", 2, "edge"), "edge was audited: the bundle has no full model on 2 devices"),
    ],
)
def test_an_unaudited_stage_waits_for_a_person(audits_off: str, model: RunningModel | None, reason: str) -> None:
    fleet = simulated_fleet(2, Stage(1.0, soak_s=60, patience_s=300), rules=Rules(promote_unseen=True))
    fleet.change_all(audits_off=audits_off, model=model)
    fleet.change("d00", online=False)  # it is not compared, and counts here
    fleet.advance()
    fleet.change("d00", online=True)
    fleet.install(1)
    fleet.advance(60, times=4)
    assert fleet.rollout.state is RolloutState.RUNNING and "rollout.promote" not in fleet.notes
    assert reason in fleet.rollout.sentence and "`--ignore disagreement`" in fleet.rollout.sentence
    fleet.advance(300)
    assert fleet.rollout.state is RolloutState.PAUSED
    fleet.obey(Command.PROMOTE)
    assert fleet.rollout.state is RolloutState.COMPLETED


def test_a_stage_with_audits_is_promoted_unseen() -> None:
    fleet = simulated_fleet(1, Stage(1.0, soak_s=60), rules=Rules(promote_unseen=True))
    fleet.audited = (1, 2)
    fleet.install()
    fleet.advance(60, times=3)
    assert fleet.rollout.state is RolloutState.COMPLETED, fleet.rollout.sentence


def test_a_plan_counts_the_audits_in_which_an_event_can_occur() -> None:
    fleet = simulated_fleet(40, Stage(0.5, soak_s=8 * 3600), rules=Rules())
    counts = ModelCounts("cameras", 1, rows=9000, audited=1000, audited_empty=950, disagreed=2, losses=2)
    fleet.totals = lambda names: {name: Totals((counts,), 86_400) for name in names}
    fleet.totals_before = lambda names, _: {name: Totals() for name in names}
    definition = fleet.rollout.definition
    found = fleet.plan().audits
    assert found.startswith("To detect 0.05 more disagreement, the devices of stage 1 need at least ")
    assert found.endswith("At the rate of the last day (2,000 of 40,000 audits) they make 333 in 8 hours.")
    for none in (Rules(ignored=("disagreement",)), Rules(limits={"disagreement": Limit(0.01)})):
        assert fleet.plan(replace(definition, rules=none)).audits == ""
    impossible = Rules(limits={"disagreement": Limit(0.01, 2.0)})
    assert "need at least 0 audits" in fleet.plan(replace(definition, rules=impossible)).audits


def test_a_stage_whose_audits_hold_no_object_is_held_and_says_so() -> None:
    fleet = simulated_fleet(1, Stage(1.0, soak_s=60), rules=Rules(promote_unseen=True))
    fleet.audited, fleet.empty = (1, 2), True
    fleet.change_all(model=RunningModel("cameras", 2, "edge", full_digest="f" * 64))
    fleet.install()
    fleet.advance(60, times=3)
    assert fleet.rollout.state is RolloutState.RUNNING
    assert "No edge answer of edge was audited: neither model reported an object in " in fleet.rollout.sentence


def test_a_plan_names_what_prevents_audits() -> None:
    fleet = simulated_fleet(4, Stage(0.5, soak_s=901), rules=Rules(promote_unseen=True))

    def unaudited(definition: Definition, **changes: Any) -> str:
        return fleet.plan(definition, contracts=0, **changes).unaudited

    definition = fleet.rollout.definition
    assert unaudited(definition) == ""
    assert "cameras version 2 has no full model" in unaudited(definition, has_full_model=False)
    fleet.change("d01", audits_off="audit.per_hour")
    assert "is held, and audit.per_hour is 0 on 1 device." in unaudited(definition)
    assert unaudited(replace(definition, rules=Rules(ignored=("disagreement",)))) == ""
    assert unaudited(replace(definition, what=UpdateKind.CONFIGURATION)) == ""


def test_devices_that_are_revoked_are_neither_waited_for_nor_judged() -> None:
    fleet = simulated_fleet(20, Stage(0.5, per_minute=5, soak_s=800))
    fleet.advance()
    waiting = [name for name, each in fleet.assignments.items() if each.state is S.WAITING]
    offered = [name for name, each in fleet.assignments.items() if each.state is S.OFFERED]
    control = [name for name, each in fleet.assignments.items() if each.state is S.CONTROL]
    for name in (waiting[0], offered[0], control[0]):
        del fleet.devices[name]
    fleet.install(60, times=3)
    assert fleet.states() == {S.WITHDRAWN: 2, S.DONE: 8, S.CONTROL: 10}
    changes = fleet.advance(100)
    silence = next(each for each in changes.look.findings if each.figure == "silence")
    assert silence.devices == (8, 9)


def test_a_rollback_ends_without_devices_that_left_the_fleet() -> None:
    fleet = installed_fleet(4, after_s=60)
    fleet.command(Command.ROLLBACK)
    del fleet.devices["d00"]
    fleet.advance(1)
    for name in ("d01", "d02"):
        del fleet.devices[name]
    fleet.advance(1)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK
    fleet.change("d03", version=1)
    fleet.advance(1)
    assert fleet.rollout.state is RolloutState.ROLLED_BACK
    assert "runs again on 1 device; revoked or decommissioned: 3 devices." in fleet.rollout.sentence


@pytest.mark.parametrize("devices", [0, 1, 2])
def test_plan_that_detects_nothing_says_so_without_a_date(devices: int) -> None:
    fleet = simulated_fleet(devices, Stage(0.5, soak_s=60), rules=Rules(promote_unseen=True), held_back=0.05)
    planned = fleet.plan()
    assert planned.earliest_s is None and not planned.sees
    assert planned.detects.startswith("This fleet can detect nothing by comparison, because ")


def test_a_stage_without_devices_waits_and_is_never_promoted() -> None:
    fleet = simulated_fleet(
        4, Stage(1.0, group="site=paris", patience_s=300), Stage(1.0), rules=Rules(promote_unseen=True)
    )
    for _ in range(5):
        fleet.advance(100)
        assert fleet.states() == {} and "Stage 1 of 2 has no device" in fleet.rollout.sentence
    assert fleet.rollout.state is RolloutState.PAUSED and "rollout.promote" not in fleet.notes
    fleet.command(Command.RESUME)
    fleet.change("d01", tags={"site": "paris"})
    fleet.advance(5)
    assert fleet.states() == {S.OFFERED: 1} and fleet.rollout.phase is Phase.INSTALLING


def test_a_stage_on_which_no_device_runs_the_model_is_not_promoted() -> None:
    rules = Rules(promote_unseen=True, ignored=("disagreement",))
    fleet = simulated_fleet(4, Stage(1.0, soak_s=60, patience_s=300), rules=rules)
    fleet.change_all(online=False)
    fleet.advance(60, times=3)
    assert fleet.rollout.state is RolloutState.RUNNING and "No device of the stage runs" in fleet.rollout.sentence
    fleet.change_all(online=True)
    fleet.install(1)
    fleet.advance(60)
    assert fleet.rollout.state is RolloutState.COMPLETED


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8, 40])
def test_a_plan_has_as_many_devices_in_each_stage_as_the_start(devices: int) -> None:
    stages = [Stage(share, soak_s=800) for share in (0.01, 0.1, 1.0)]
    fleet = simulated_fleet(devices, *stages, held_back=0.05)
    fleet.rollout = replace(fleet.rollout, definition=replace(fleet.rollout.definition, salt=""))
    planned = fleet.plan()
    fleet.install(100, times=60)
    assert fleet.rollout.state is RolloutState.COMPLETED
    taken = [sum(each.stage == stage for each in fleet.assignments.values()) for stage in range(4)]
    assert taken == [*(stage.devices for stage in planned.stages), planned.rest]
    assert taken[0] == 1 and sum(taken) == devices
    assert all(stage.control for stage in planned.stages) or devices == 1
