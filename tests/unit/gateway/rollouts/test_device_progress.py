"""The subject of a rollout in a device's documents."""

import msgspec
import pytest
from msgspec.structs import asdict, replace

from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.fleet.twin import Desired, DesiredVersion, Reported, RunningModel, Update, Window
from firstline_core.fleet.update import UpdateKind, UpdateState
from firstline_gateway.fleet.totals import Totals, gained
from firstline_gateway.rollouts.device_progress import (
    DeviceView,
    after_offer,
    after_report,
    after_withdrawal,
    desired_of,
    rollback,
    update_of,
    version_of,
    with_desired,
)
from firstline_gateway.rollouts.rollout import Assignment, Definition, DeviceState, Rollout, RolloutState

QUIET = DesiredVersion("quiet", 2, "1" * 64, "r1", 1.0, 2.0, Window(60, 30), attempt=3, undone=True)
DIGITS = DesiredVersion("digits", 1, "0" * 64)


def desired_in(document: Desired, subject: UpdateKind, name: str) -> DesiredVersion:
    found = desired_of(document, subject, name)
    assert found is not None
    return DesiredVersion(**asdict(found))


@pytest.mark.parametrize("subject", UpdateKind)
def test_a_desired_version_is_read_as_it_was_written(subject: UpdateKind) -> None:
    assert desired_in(with_desired(Desired(1), subject, QUIET), subject, "quiet") == QUIET


def test_a_device_has_one_configuration_and_several_bundles() -> None:
    document = with_desired(with_desired(Desired(1), UpdateKind.CONFIGURATION, DIGITS), UpdateKind.CONFIGURATION, QUIET)
    assert document.models == () and desired_in(document, UpdateKind.CONFIGURATION, "any name") == QUIET
    document = with_desired(with_desired(document, UpdateKind.MODEL, QUIET), UpdateKind.MODEL, DIGITS)
    assert [model.name for model in document.models] == ["digits", "quiet"]
    assert desired_in(document, UpdateKind.MODEL, "digits") == DIGITS


def test_a_bundle_and_a_configuration_may_have_the_same_name() -> None:
    model = Update("quiet", 7, UpdateState.COMMITTED)
    configuration = Update("quiet", 2, UpdateState.TRIAL, what="configuration")
    sent = Reported(
        "s", 1, 1, (RunningModel("quiet", 7),), (model, configuration), configuration=2, configuration_name="quiet"
    )
    assert (version_of(sent, UpdateKind.MODEL, "quiet"), version_of(sent, UpdateKind.CONFIGURATION, "quiet")) == (7, 2)
    assert update_of(sent, UpdateKind.MODEL, "quiet") == model
    assert update_of(sent, UpdateKind.CONFIGURATION, "quiet") == configuration
    assert version_of(sent, UpdateKind.CONFIGURATION, "loud") == 0 == version_of(None, UpdateKind.MODEL, "quiet")


def test_a_configuration_is_judged_by_all_answers_of_a_device() -> None:
    totals = Totals((ModelCounts("a", 1, rows=3, scores=(1, 2)), ModelCounts("b", 4, rows=4, scores=(1, 2, 3))))
    assert gained("", Totals(), totals).rows == 7 and gained("", Totals(), totals).scores == ()
    assert gained("b", Totals(), totals).rows == 4


def test_a_definition_without_a_subject_brings_a_bundle() -> None:
    stored = b'{"bundle": "digits", "version": 2, "manifest_sha256": "%s"}' % (b"0" * 64)
    definition = msgspec.json.decode(stored, type=Definition)
    assert (definition.what, definition.judged_bundle) == (UpdateKind.MODEL, "digits")


def test_a_report_without_a_configuration_name_is_read() -> None:
    reported = msgspec.json.decode(b'{"session": "s", "sequence": 1, "configuration": 0}', type=Reported)
    assert version_of(reported, UpdateKind.CONFIGURATION, "quiet") == 0


@pytest.mark.parametrize(
    ("rollout", "version", "state"),
    [("newer", 3, DeviceState.FAILED), ("older", 3, DeviceState.OFFERED), ("newer", 2, DeviceState.OFFERED)],
)
def test_only_a_report_of_this_rollout_counts(rollout: str, version: int, state: DeviceState) -> None:
    running = Rollout("newer", Definition("digits", 3, "3" * 64), RolloutState.RUNNING, "kim", 0.0, seed=1)
    update = Update("digits", version, UpdateState.REJECTED, rollout=rollout)
    device = DeviceView("d", age_s=0.0, online=True, up_to_date=True, version=1, update=update)
    offered = Assignment("d", 0, treated=True, reachable=True, turn=0, state=DeviceState.OFFERED)
    assert after_report(offered, device, running).state is state


@pytest.mark.parametrize("state", [UpdateState.COMMITTED, UpdateState.REJECTED, UpdateState.ROLLED_BACK])
def test_device_never_returns_to_a_version_it_gave_up(state: UpdateState) -> None:
    older = DesiredVersion("digits", 2, "2" * 64, "older")
    device = DeviceView("d", desired=older, update=Update("digits", 2, state, rollout="older"))
    newer = Rollout("newer", Definition("digits", 3, "3" * 64), RolloutState.RUNNING, "kim", 0.0, seed=1)
    waiting = Assignment("d", 0, treated=True, reachable=True, turn=0, state=DeviceState.WAITING)
    back = rollback(after_offer(waiting, device, newer, 0.0), newer)
    if state is UpdateState.COMMITTED:
        assert (back.version, back.undone) == (2, False)
    else:
        assert (back.version, back.undone) == (3, True), "the device rolls back to what it ran before both"


@pytest.mark.parametrize("before", [DIGITS, None])
def test_a_newer_rollout_does_not_restore_a_withdrawn_version(before: DesiredVersion | None) -> None:
    older = Rollout("older", Definition("digits", 2, "2" * 64), RolloutState.ROLLING_BACK, "kim", 0.0, seed=1)
    newer = Rollout("newer", Definition("digits", 3, "3" * 64), RolloutState.RUNNING, "kim", 0.0, seed=1)
    brought = DesiredVersion("digits", 2, "2" * 64, "older", withdrawn=("4" * 64,))
    first = Assignment("d", 0, True, True, 0, DeviceState.DONE, before=before, before_version=1)
    second = Assignment("d", 0, True, True, 0, DeviceState.DONE, before=brought, before_version=2)
    back = rollback(after_withdrawal(second, first, older, "3" * 64), newer)
    assert (back.version, back.undone) == ((1, False) if before else (3, True))
    assert {"4" * 64, "2" * 64} <= set(back.withdrawn), "the device may still run a withdrawn version"
    assert after_withdrawal(second, first, newer, "3" * 64) is second, "another rollout brought the version"


def test_a_version_that_a_newer_rollout_brings_again_stays() -> None:
    older = Rollout("older", Definition("digits", 2, "2" * 64), RolloutState.ROLLING_BACK, "kim", 0.0, seed=1)
    first = Assignment("d", 0, True, True, 0, DeviceState.DONE, before=DIGITS, before_version=1)
    second = replace(first, before=DesiredVersion("digits", 2, "2" * 64, "older"), before_version=2)
    again = after_withdrawal(second, first, older, "2" * 64)
    assert (again.withdrawn, again.before_version, again.before) == ((), 1, DIGITS)
