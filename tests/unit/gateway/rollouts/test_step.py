"""One step of a rollout, on devices that say what a test has them say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.fleet.twin import DesiredModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.changes import Now, Step
from firstline_gateway.rollouts.commands import command_step
from firstline_gateway.rollouts.definition import Assignment, Definition, DeviceState, Phase, Rollout
from firstline_gateway.rollouts.device_progress import Seen
from firstline_gateway.rollouts.judgement.periods import FIGURES, Period
from firstline_gateway.rollouts.judgement.verdict import Limit, Rules
from firstline_gateway.rollouts.plan import plan
from firstline_gateway.rollouts.stages import Stage
from firstline_gateway.rollouts.states import Command, RolloutState
from firstline_gateway.rollouts.step import step

S = DeviceState
UNSEEN = Rules(limits={name: Limit(1e9) for name in FIGURES})
OLD = DesiredModel("cameras", 1, "1" * 64, "earlier")
BACK = replace(OLD, withdrawn=("2" * 64,))


@dataclass
class Room:
    """A fleet in memory, whose devices do as they are told unless a test says otherwise."""

    rollout: Rollout
    devices: dict[str, Seen]
    held: dict[str, Assignment] = field(default_factory=dict)
    kept: dict[str, tuple[Period | None, Totals]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    now_s: float = 0.0

    def totals(self, names: Iterable[str]) -> Mapping[str, Totals]:
        rows = 100 + int(self.now_s)
        return {name: Totals((ModelCounts("cameras", 1, rows=rows, kept=rows),), 1e5 + self.now_s) for name in names}

    def totals_before(self, names: Iterable[str], at_s: float) -> Mapping[str, Totals]:
        return {name: Totals((), at_s - at_s) for name in names}

    def measured(self) -> Mapping[str, tuple[Period | None, Totals]]:
        return self.kept

    def take(self, made: Step) -> None:
        self.rollout = made.rollout
        self.held |= made.assigned
        for name, totals in made.start.items():
            self.kept[name] = made.before.get(name), totals
        for name, wanted in made.told.items():
            self.devices[name] = replace(self.devices[name], desired=wanted)
        self.notes += [action for action, _, _ in made.notes]

    def go(self, seconds: float = 0.0) -> Step:
        """Steps until nothing is to be done at once."""
        self.now_s += seconds
        more = True
        while more:
            made = step(self.rollout, self.held, self, Now(self.now_s, 1.7e9 + self.now_s))
            self.take(made)
            more = made.more
        return made

    def command(self, command: Command, by: str = "application:ops") -> None:
        self.take(command_step(command, self.rollout, self.held, by, Now(self.now_s, 1.7e9)))

    def say(self, name: str, state: UpdateState, *, age_s: float = 0.0) -> None:
        version = 2 if state is UpdateState.COMMITTED else 1
        update = Update("cameras", 2, state, rollout=self.rollout.id)
        self.devices[name] = replace(self.devices[name], update=update, version=version, age_s=age_s)

    def all_say(self, state: UpdateState) -> None:
        for name, each in self.held.items():
            if each.state in (S.OFFERED, S.UNDER_WAY):
                self.say(name, state)

    def states(self) -> dict[DeviceState, int]:
        found: dict[DeviceState, int] = {}
        for each in self.held.values():
            found[each.state] = found.get(each.state, 0) + 1
        return found


def room(number: int = 20, *stages: Stage, rules: Rules = UNSEEN, held_back: float = 0.0) -> Room:
    definition = Definition(
        "cameras", 2, "2" * 64, stages or (Stage(1.0, soak_s=800),), rules, held_back=held_back, salt="s"
    )
    names = [f"d{index:02}" for index in range(number)]
    devices = {name: Seen(name, {}, 0.0, True, True, 1, None, OLD) for name in names}
    return Room(Rollout("r", definition, RolloutState.RUNNING, "application:ops", 1.7e9, seed=1), devices)


def test_a_stage_is_offered_at_its_pace() -> None:
    found = room(20, Stage(1.0, per_minute=5))
    found.go()
    assert found.states() == {S.OFFERED: 1, S.WAITING: 19}
    found.go(60)
    assert found.states() == {S.OFFERED: 6, S.WAITING: 14}
    found.command(Command.PAUSE)
    found.go(600)
    assert found.states() == {S.OFFERED: 6, S.WAITING: 14}
    found.command(Command.RESUME)
    found.go()
    assert found.states()[S.OFFERED] == 6


def test_who_was_away_before_it_was_offered_is_none_that_failed_and_nobody_waits_for_it() -> None:
    found = room()
    found.devices["d03"] = replace(found.devices["d03"], online=False)
    found.devices["d04"] = replace(found.devices["d04"], age_s=math.inf)
    found.go()
    assert found.states() == {S.OFFERED: 18, S.AWAY: 2} and not found.held["d03"].there
    found.all_say(UpdateState.COMMITTED)
    found.go(60)
    assert found.rollout.phase is Phase.OBSERVING
    made = found.go(100)
    assert made.look is not None and made.look.findings[0].devices == (18, 0)
    found.say("d03", UpdateState.COMMITTED)
    found.go(1)
    assert found.held["d03"].state is S.DONE


def test_who_falls_silent_after_it_was_told_has_failed_until_it_returns() -> None:
    found = room()
    found.go()
    found.all_say(UpdateState.COMMITTED)
    found.say("d05", UpdateState.DOWNLOADING, age_s=10_000)
    found.go(60)
    assert found.held["d05"].state is S.SILENT and found.rollout.phase is Phase.OBSERVING
    made = found.go(100)
    assert made.look is not None and made.look.findings[0].treated == 1 / 20
    assert found.devices["d05"].desired is not None and found.devices["d05"].desired.version == 2
    found.say("d05", UpdateState.COMMITTED)
    assert found.go(100).look is not None
    assert found.held["d05"].state is S.DONE


def test_failures_that_decide_stop_the_offers_before_the_rest_is_told() -> None:
    found = room(40, Stage(1.0, per_minute=10))
    found.go()
    found.go(60)
    found.all_say(UpdateState.FAILED)
    found.go(60)
    assert found.rollout.state is RolloutState.ROLLED_BACK, found.rollout.sentence
    assert "installations failed" in found.rollout.sentence
    assert all(each.desired in (OLD, BACK) for each in found.devices.values())


def test_stages_follow_each_other_and_those_held_back_come_last() -> None:
    found = room(40, Stage(0.5, soak_s=800), Stage(1.0, soak_s=800), held_back=0.2)
    for _ in range(40):
        found.go(100)
        found.all_say(UpdateState.COMMITTED)
    assert found.rollout.state is RolloutState.COMPLETED
    assert found.states() == {S.DONE: 40}
    assert found.notes.count("rollout.promote") == 2 and found.notes.count("rollout.look") == 16
    assert {each.stage for each in found.held.values()} == {0, 1, 2}


def test_installations_that_take_too_long_ask_a_person() -> None:
    found = room(20, Stage(1.0, patience_s=300))
    found.go()
    found.all_say(UpdateState.DOWNLOADING)
    found.go(301)
    assert found.rollout.state is RolloutState.PAUSED and "20 of 20" in found.rollout.sentence
    found.command(Command.RESUME)
    found.go(299)
    assert found.rollout.state is RolloutState.RUNNING


def test_what_cannot_be_seen_is_held_and_then_asks_a_person_who_may_promote() -> None:
    found = room(20, Stage(1.0, soak_s=800, patience_s=300), rules=Rules())
    found.go()
    found.all_say(UpdateState.COMMITTED)
    for _ in range(13):
        found.go(100)
    assert found.rollout.state is RolloutState.PAUSED and "too little" in found.rollout.sentence
    found.command(Command.PROMOTE)
    found.go()
    assert found.rollout.state is RolloutState.COMPLETED


def test_an_abort_stops_those_under_way_and_leaves_those_that_are_done() -> None:
    found = room()
    found.go()
    found.say("d01", UpdateState.COMMITTED)
    found.go(1)
    found.command(Command.ABORT)
    found.go()
    assert found.rollout.state is RolloutState.ABORTED and not found.rollout.unsettled
    assert found.devices["d01"].desired != OLD
    assert all(each.desired == BACK for name, each in found.devices.items() if name != "d01")
    found.command(Command.ROLLBACK)
    found.go()
    assert found.rollout.state is RolloutState.ROLLING_BACK
    found.devices["d01"] = replace(found.devices["d01"], version=1, update=None)
    found.go(1)
    assert found.rollout.state is RolloutState.ROLLED_BACK
    assert found.devices["d01"].desired == BACK


def test_who_had_no_word_of_the_fleet_before_is_told_to_undo_it() -> None:
    found = room()
    found.devices["d01"] = replace(found.devices["d01"], desired=None)
    found.go()
    found.command(Command.ROLLBACK)
    found.go()
    told = found.devices["d01"].desired
    assert told is not None and told.undone and told.version == 2


def test_what_was_taken_back_from_a_device_that_is_away_is_said_with_all_that_follows() -> None:
    undone = DesiredModel("cameras", 3, "3" * 64, "aborted", undone=True, withdrawn=("4" * 64,))
    found = room(2)
    found.devices["d01"] = replace(found.devices["d01"], desired=undone, online=False)
    found.go()
    offered = found.devices["d01"].desired
    assert offered is not None and offered.withdrawn == ("4" * 64, "3" * 64) and not offered.undone
    found.command(Command.ROLLBACK)
    found.go()
    back = found.devices["d01"].desired
    assert back is not None and back.undone and back.withdrawn == ("4" * 64, "3" * 64)
    assert found.devices["d00"].desired == BACK


def test_who_ran_the_version_before_keeps_it_when_the_others_go_back() -> None:
    found = room()
    found.devices["d01"] = replace(found.devices["d01"], version=2)
    found.go()
    found.all_say(UpdateState.COMMITTED)
    found.go(1)
    found.command(Command.ROLLBACK)
    found.go()
    assert found.held["d01"].state is S.RETURNED and found.held["d02"].state is S.RETURNING


def test_an_old_report_is_no_answer_to_a_new_word() -> None:
    found = room()
    found.go()
    found.all_say(UpdateState.COMMITTED)
    found.say("d01", UpdateState.FAILED)
    found.go(1)
    assert found.held["d01"].state is S.FAILED
    found.command(Command.RETRY)
    found.devices["d01"] = replace(found.devices["d01"], heard=False)
    found.go(1)
    told = found.devices["d01"].desired
    assert told is not None and told.attempt == 2
    assert found.held["d01"].state is S.OFFERED and found.rollout.phase is Phase.INSTALLING
    found.devices["d01"] = replace(found.devices["d01"], heard=True)
    found.say("d01", UpdateState.COMMITTED)
    found.go(1)
    assert found.held["d01"].state is S.DONE and found.rollout.phase is Phase.OBSERVING


def test_a_plan_says_whom_each_stage_takes_and_what_nobody_can_see() -> None:
    found = room(40, Stage(0.25, per_minute=2), Stage(1.0), held_back=0.2)
    found.devices["d00"] = replace(found.devices["d00"], online=False)
    said = plan(found.rollout.definition, found, 1000, Now(0.0, 1.7e9))
    assert said.devices == 40 and said.bytes == 40_000
    assert sum(stage.devices for stage in said.stages) + said.rest == 40
    assert sum(stage.away for stage in said.stages) <= 1
    first = said.stages[0]
    assert first.offered_s == (first.devices - 1) * 30 and first.control == 40 - first.devices
    drift = next(figure for figure in first.figures if figure.figure == "drift")
    assert drift.spread is None and drift.seen is None


def test_who_waits_when_a_person_promotes_is_told_in_the_next_stage() -> None:
    found = room(20, Stage(0.5, per_minute=1, soak_s=800), Stage(1.0, soak_s=800))
    found.go()
    waited = {name for name, each in found.held.items() if each.state is S.WAITING and each.treated}
    assert waited
    found.command(Command.PROMOTE)
    found.go()
    assert all(found.held[name].state is S.OFFERED and not found.held[name].there for name in waited)
    for _ in range(20):
        found.all_say(UpdateState.COMMITTED)
        found.go(100)
    assert found.rollout.state is RolloutState.COMPLETED and found.states() == {S.DONE: 20}


def test_a_retry_while_paused_does_not_stop_the_clock() -> None:
    found = room(40, Stage(1.0, per_minute=5))
    found.go()
    found.go(180)
    failed = next(name for name, each in found.held.items() if each.state is S.OFFERED)
    found.say(failed, UpdateState.FAILED)
    found.go()
    found.command(Command.PAUSE)
    found.now_s += 36_000
    found.command(Command.RETRY)
    found.devices[failed] = replace(found.devices[failed], heard=False)
    found.command(Command.RESUME)
    found.go()
    assert found.held[failed].state is S.OFFERED
    begun = found.states()[S.OFFERED]
    found.go(60)
    assert found.states()[S.OFFERED] == begun + 5


def test_a_retry_in_the_middle_of_a_stage_keeps_its_pace() -> None:
    found = room(40, Stage(1.0, per_minute=10))
    found.go()
    found.go(120)
    assert found.states() == {S.OFFERED: 21, S.WAITING: 19}
    failed = next(name for name, each in found.held.items() if each.state is S.OFFERED)
    found.say(failed, UpdateState.FAILED)
    found.go(1)
    found.command(Command.RETRY)
    found.devices[failed] = replace(found.devices[failed], heard=False)
    found.go()
    assert found.held[failed].state is S.OFFERED
    found.go(60)
    assert found.states() == {S.OFFERED: 31, S.WAITING: 9}


def test_a_pause_within_a_stages_time_does_not_use_up_the_patience_after_it() -> None:
    found = room(20, Stage(1.0, soak_s=8000, patience_s=300), rules=Rules())
    found.go()
    found.all_say(UpdateState.COMMITTED)
    found.go(60)
    found.command(Command.PAUSE)
    found.command(Command.RESUME)
    found.go(8000)
    assert found.rollout.state is RolloutState.RUNNING, found.rollout.sentence
    found.go(300)
    assert found.rollout.state is RolloutState.PAUSED


def test_a_stage_that_is_held_for_weeks_is_looked_at_some_dozens_of_times() -> None:
    found = room(20, Stage(1.0, soak_s=480, patience_s=30 * 86_400), rules=Rules())
    found.go()
    found.all_say(UpdateState.COMMITTED)
    found.go(60)
    for _ in range(30 * 24 * 6 + 3):
        found.go(600)
    assert found.rollout.state is RolloutState.PAUSED
    assert 40 < found.rollout.look < 90


def test_devices_that_go_dark_after_they_have_the_model_stop_it() -> None:
    found = room(80, Stage(0.5, soak_s=8000), rules=Rules(promote_unseen=True))
    found.go()
    found.all_say(UpdateState.COMMITTED)
    found.go(60)
    treated = [name for name, each in found.held.items() if each.treated]
    for name in treated[:30]:
        found.devices[name] = replace(found.devices[name], age_s=5000.0)
    made = found.go(1000)
    assert found.rollout.state is RolloutState.ROLLING_BACK, found.rollout.sentence
    assert made.look is None and "silence" in found.rollout.sentence


def test_who_cannot_go_back_is_said_and_nobody_waits_for_it() -> None:
    found = room(4, Stage(1.0, soak_s=0))
    found.go()
    found.all_say(UpdateState.COMMITTED)
    found.go(60)
    found.command(Command.ROLLBACK)
    found.go()
    assert found.states() == {S.RETURNING: 4}
    for name in ("d00", "d01", "d02"):
        found.devices[name] = replace(found.devices[name], version=1, update=None)
    found.go(10)
    assert found.rollout.state is RolloutState.ROLLING_BACK
    refused = Update("cameras", 1, UpdateState.REJECTED, rollout=OLD.rollout, reason="not_found")
    found.devices["d03"] = replace(found.devices["d03"], update=refused)
    found.go(10)
    assert found.rollout.state is RolloutState.ROLLED_BACK
    assert found.held["d03"].state is S.STRANDED and found.held["d03"].reason == "not_found"
    assert "1 device could not go back (not_found), and cameras version 2 runs there" in found.rollout.sentence


def test_a_plan_says_that_so_short_a_stage_sees_nobody_fall_silent() -> None:
    found = room(4, Stage(0.5, soak_s=900), Stage(1.0, soak_s=901))
    (warning,) = plan(found.rollout.definition, found, None, Now(0.0, 1.7e9)).warnings
    assert warning.startswith("Stage 1 is observed for no longer than the 900 s")
    ignored = replace(found.rollout.definition, rules=Rules(ignored=("silence",)))
    assert plan(ignored, found, None, Now(0.0, 1.7e9)).warnings == ()


def test_a_plan_says_that_nobody_is_meant() -> None:
    found = room(4, Stage(1.0, soak_s=901))
    misspelt = replace(found.rollout.definition, selector="site=berlni")
    (warning,) = plan(misspelt, found, None, Now(0.0, 1.7e9)).warnings
    assert warning.startswith("No device matches site=berlni now, ")
