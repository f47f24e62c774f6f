"""Devices that join the fleet after a rollout are offered its version."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from firstline_core.fleet.twin import DesiredModel
from firstline_core.fleet.update import UpdateKind
from firstline_gateway.rollouts.device_progress import DeviceView, target
from firstline_gateway.rollouts.late_joiners import in_force, join_changes
from firstline_gateway.rollouts.rollout import Assignment, Definition, DeviceState, Rollout, RolloutState
from firstline_gateway.rollouts.step import StepChanges, StepTime

NOW = StepTime(5000.0, 1.7e9)


def completed(name: str, started_s: float, selector: str = "", version: int = 2) -> Rollout:
    definition = Definition("cameras", version, f"{version}" * 64, selector=selector)
    stages = len(definition.stages)
    return Rollout(
        name, definition, RolloutState.COMPLETED, "application:ops", 0.0, seed=1, started_s=started_s, stage=stages
    )


def device(name: str, *, desired: DesiredModel | None = None, age_s: float = 0.0, **tags: str) -> DeviceView:
    return DeviceView(name, tags, age_s, True, True, 1, None, desired)


@dataclass
class Fleet:
    """What a step sees of it."""

    devices: dict[str, DeviceView]
    busy: set[str] = field(default_factory=set)
    assignments: dict[str, Assignment] = field(default_factory=dict)
    alarm: str = ""

    def join(self, rollout: Rollout, *others: Rollout) -> StepChanges:
        rollouts = [rollout, *others]
        completed_ = [each for each in rollouts if each.state is RolloutState.COMPLETED]
        ended = [each for each in others if each.state is not RolloutState.COMPLETED]
        busy = self.busy.intersection
        return join_changes(rollout, completed_, self.assignments, self, NOW, ended=ended, busy=busy)

    def totals(self, names: object) -> Mapping[str, object]:
        raise AssertionError("late joiners are not judged")

    totals_before = totals


def fleet(*devices: DeviceView) -> Fleet:
    return Fleet({each.name: each for each in devices})


def test_a_device_without_a_desired_version_is_offered_the_model() -> None:
    rollout = completed("r", 10.0)
    changes = fleet(device("new"), device("away", age_s=1e6)).join(rollout)
    assert changes.desired == {"new": target(rollout), "away": target(rollout)}
    assert {name: each.state for name, each in changes.assigned.items()} == {
        "new": DeviceState.OFFERED,
        "away": DeviceState.AWAY,
    }
    assert not any(each.reachable for each in changes.assigned.values()) and changes.rollout is rollout
    ((action, actor, details),) = changes.notes
    assert (action, actor, details["devices"]) == ("rollout.join", "rule:join", 2)


def test_a_version_whose_contract_alarmed_is_offered_to_no_device() -> None:
    rollout = completed("r", 10.0)
    joining = fleet(device("new"))
    joining.alarm = "The contract is broken."
    assert joining.join(rollout) == StepChanges(rollout)
    joining.alarm = ""
    assert set(joining.join(rollout).desired) == {"new"}


def test_a_device_with_a_desired_version_is_left_alone() -> None:
    rollout = completed("r", 10.0)
    changes = fleet(
        device("done", desired=target(rollout)), device("by-hand", desired=DesiredModel("cameras", 1, "1" * 64))
    )
    assert changes.join(rollout) == StepChanges(rollout)


def test_a_device_with_an_aborted_version_joins_a_rollout_completed_later() -> None:
    aborted = replace(completed("r1", 10.0), state=RolloutState.ABORTED)
    rollout = completed("r2", 20.0, version=3)
    gone_back = replace(target(aborted), undone=True)
    joining = fleet(device("kept", desired=target(aborted)), device("back", desired=gone_back))
    desired = joining.join(rollout, aborted).desired
    assert desired == {
        "kept": target(rollout),
        "back": replace(target(rollout), withdrawn=(aborted.definition.manifest_sha256,)),
    }
    newer = replace(
        aborted, started_s=30.0
    )  # devices that are done keep the version of a rollout that was aborted later
    assert set(joining.join(rollout, newer).desired) == {"back"}


def test_a_device_joins_when_it_gets_matching_tags() -> None:
    older, newer = completed("r1", 10.0), completed("r2", 20.0, "site=berlin", version=3)
    joining = fleet(device("moved", desired=target(older), site="berlin"), device("stays", desired=target(older)))
    assert set(joining.join(newer, older).desired) == {"moved"}
    assert not joining.join(older, newer).desired


def test_a_device_joins_the_newest_rollout_that_selects_it() -> None:
    older, newer = completed("z", 10.0), completed("a", 20.0, "site=berlin", version=3)
    joining = fleet(device("here", site="berlin"), device("there"))
    assert set(joining.join(newer, older).desired) == {"here"}
    assert set(joining.join(older, newer).desired) == {"there"}


def test_a_device_of_a_live_rollout_does_not_join() -> None:
    joining = fleet(device("control"), device("new"))
    joining.busy = {"control"}
    assert set(joining.join(completed("r", 10.0)).desired) == {"new"}


def test_a_late_joiner_is_followed_until_it_is_done() -> None:
    rollout = completed("r", 10.0)
    joining = fleet(DeviceView("late", {}, 0.0, True, True, 2, None, target(rollout)))
    joining.assignments = {"late": Assignment("late", 0, True, False, 0, DeviceState.AWAY, 1.0)}
    assert joining.join(rollout).assigned["late"].state is DeviceState.DONE


def test_a_newer_rollout_for_the_same_devices_replaces_the_older() -> None:
    rollouts = [
        completed("r1", 10.0),
        completed("r2", 20.0, "site=berlin"),
        completed("r3", 30.0, "site=berlin"),
        completed("r4", 5.0, "site=paris"),
    ]
    assert [each.id for each in in_force(rollouts)] == ["r3", "r1"]


def test_configurations_of_different_names_replace_each_other() -> None:
    def configured(name: str, started_s: float, bundle: str) -> Rollout:
        changes = completed(name, started_s)
        return replace(changes, definition=replace(changes.definition, bundle=bundle, what=UpdateKind.CONFIGURATION))

    older, newer = configured("r1", 10.0, "quiet"), configured("r2", 20.0, "loud")
    assert [each.id for each in in_force([older, newer, completed("r3", 5.0)])] == ["r2", "r3"]
