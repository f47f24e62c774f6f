"""Who joins the fleet when a rollout is over is told what that rollout brought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from firstline_core.fleet.twin import DesiredModel
from firstline_gateway.rollouts.changes import Now, Step
from firstline_gateway.rollouts.definition import Assignment, Definition, DeviceState, Rollout
from firstline_gateway.rollouts.device_progress import Seen, target
from firstline_gateway.rollouts.late_joiners import in_force, joined
from firstline_gateway.rollouts.states import RolloutState
from firstline_gateway.rollouts.subject import Subject

NOW = Now(5000.0, 1.7e9)


def completed(name: str, started_s: float, selector: str = "", version: int = 2) -> Rollout:
    definition = Definition("cameras", version, f"{version}" * 64, selector=selector)
    stages = len(definition.stages)
    return Rollout(
        name, definition, RolloutState.COMPLETED, "application:ops", 0.0, seed=1, started_s=started_s, stage=stages
    )


def device(name: str, *, desired: DesiredModel | None = None, age_s: float = 0.0, **tags: str) -> Seen:
    return Seen(name, tags, age_s, True, True, 1, None, desired)


@dataclass
class Fleet:
    """What a step sees of it."""

    devices: dict[str, Seen]
    busy: set[str] = field(default_factory=set)
    held: dict[str, Assignment] = field(default_factory=dict)

    def join(self, rollout: Rollout, *others: Rollout) -> Step:
        all_of_them = [rollout, *others]
        over = [each for each in all_of_them if each.state is RolloutState.COMPLETED]
        ended = [each for each in others if each.state is not RolloutState.COMPLETED]
        busy = self.busy.intersection
        return joined(rollout, over, self.held, self, NOW, ended=ended, busy=busy)  # type: ignore[arg-type]

    def totals(self, names: object) -> Mapping[str, object]:
        raise AssertionError("nobody is judged")

    totals_before = totals


def fleet(*devices: Seen) -> Fleet:
    return Fleet({each.name: each for each in devices})


def test_a_device_without_a_word_is_told_and_goes_back_with_the_others() -> None:
    rollout = completed("r", 10.0)
    made = fleet(device("new"), device("away", age_s=1e6)).join(rollout)
    assert made.told == {"new": target(rollout), "away": target(rollout)}
    assert {name: each.state for name, each in made.assigned.items()} == {
        "new": DeviceState.OFFERED,
        "away": DeviceState.AWAY,
    }
    assert not any(each.there for each in made.assigned.values()) and made.rollout is rollout
    ((action, actor, details),) = made.notes
    assert (action, actor, details["devices"]) == ("rollout.join", "rule:join", 2)


def test_who_has_the_word_already_is_told_nothing() -> None:
    rollout = completed("r", 10.0)
    made = fleet(
        device("done", desired=target(rollout)), device("by-hand", desired=DesiredModel("cameras", 1, "1" * 64))
    )
    assert made.join(rollout) == Step(rollout)


def test_who_was_left_with_an_aborted_version_joins_what_was_completed_after() -> None:
    aborted = replace(completed("r1", 10.0), state=RolloutState.ABORTED)
    rollout = completed("r2", 20.0, version=3)
    gone_back = replace(target(aborted), undone=True)
    seen = fleet(device("kept", desired=target(aborted)), device("back", desired=gone_back))
    told = seen.join(rollout, aborted).told
    assert told == {
        "kept": target(rollout),
        "back": replace(target(rollout), withdrawn=(aborted.definition.manifest_sha256,)),
    }
    newer = replace(aborted, started_s=30.0)  # what somebody aborted later, who is done keeps
    assert set(seen.join(rollout, newer).told) == {"back"}


def test_tags_that_are_given_later_count() -> None:
    older, newer = completed("r1", 10.0), completed("r2", 20.0, "site=berlin", version=3)
    seen = fleet(device("moved", desired=target(older), site="berlin"), device("stays", desired=target(older)))
    assert set(seen.join(newer, older).told) == {"moved"}
    assert not seen.join(older, newer).told


def test_the_newest_that_means_a_device_is_what_it_is_told() -> None:
    older, newer = completed("z", 10.0), completed("a", 20.0, "site=berlin", version=3)
    seen = fleet(device("here", site="berlin"), device("there"))
    assert set(seen.join(newer, older).told) == {"here"}
    assert set(seen.join(older, newer).told) == {"there"}


def test_who_another_rollout_has_to_do_with_is_left_to_that() -> None:
    seen = fleet(device("control"), device("new"))
    seen.busy = {"control"}
    assert set(seen.join(completed("r", 10.0)).told) == {"new"}


def test_who_was_told_late_is_followed_until_it_is_done() -> None:
    rollout = completed("r", 10.0)
    seen = fleet(Seen("late", {}, 0.0, True, True, 2, None, target(rollout)))
    seen.held = {"late": Assignment("late", 0, True, False, 0, DeviceState.AWAY, 1.0)}
    assert seen.join(rollout).assigned["late"].state is DeviceState.DONE


def test_a_newer_rollout_for_the_same_devices_is_the_one_to_join() -> None:
    all_of_them = [
        completed("r1", 10.0),
        completed("r2", 20.0, "site=berlin"),
        completed("r3", 30.0, "site=berlin"),
        completed("r4", 5.0, "site=paris"),
    ]
    assert [each.id for each in in_force(all_of_them)] == ["r3", "r1"]


def test_a_device_has_one_configuration_whatever_its_name() -> None:
    def configured(name: str, started_s: float, bundle: str) -> Rollout:
        made = completed(name, started_s)
        return replace(made, definition=replace(made.definition, bundle=bundle, what=Subject.CONFIGURATION))

    older, newer = configured("r1", 10.0, "quiet"), configured("r2", 20.0, "loud")
    assert [each.id for each in in_force([older, newer, completed("r3", 5.0)])] == ["r2", "r3"]
