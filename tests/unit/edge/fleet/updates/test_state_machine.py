"""The states of an update: the requests, and what the desired state means for an update."""

import asyncio
import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.escalations import begun, settle
from support.updates import ConfigurationDevice, Device, HastyClock, Registry, bundle_at, full_disk, run_update

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.fleet.twin import DesiredConfiguration, DesiredModel, DesiredVersion, Window
from firstline_core.fleet.update import UpdateState
from firstline_edge.fleet.updates.state_machine import (
    CHECK_S,
    SupersededError,
    UpdateRequests,
    has_expired,
    is_same,
    is_withdrawn,
    wait_s,
)

S = UpdateState
WANTED = DesiredModel("digits", 2, "a" * 64)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def requests(clock: SimulatedClock) -> UpdateRequests[DesiredModel]:
    return UpdateRequests(clock, clock.wall_s)


async def test_a_change_ends_one_wait(requests: UpdateRequests[DesiredModel], clock: SimulatedClock) -> None:
    assert not requests.received
    requests.receive(WANTED)
    assert requests.received and requests.desired == WANTED
    await requests.wait(60)
    requests.clear()
    waiting = await begun(requests.wait(60))
    assert not waiting.done()
    await clock.advance(60)
    await waiting
    requests.receive(None)
    assert requests.received and requests.desired is None
    await requests.wait(60)


async def test_a_rollback_request_returns_after_the_rollback(requests: UpdateRequests[DesiredModel]) -> None:
    asking = [asyncio.create_task(requests.roll_back()) for _ in range(2)]
    await requests.wait(60)
    requests.rollback.set_result(None)
    await asyncio.gather(*asking)


async def test_a_cancelled_request_does_not_cancel_the_others(requests: UpdateRequests[DesiredModel]) -> None:
    leaving, staying = (asyncio.create_task(requests.roll_back()) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    assert not requests.rollback.done()
    requests.rollback.set_result(None)
    await staying


async def test_closing_fails_waiting_requests(requests: UpdateRequests[DesiredModel]) -> None:
    asking = await begun(requests.roll_back())
    requests.close()
    requests.close()
    with pytest.raises(errors.NotReadyError, match="roll back again"):
        await asking


async def test_work_for_desired_version_ends(requests: UpdateRequests[DesiredModel], clock: SimulatedClock) -> None:
    async def work() -> int:
        await clock.sleep(300)
        return 7

    requests.receive(replace(WANTED, expires_s=clock.wall_s() + 1000))
    doing = await begun(requests.while_desired(work(), WANTED))
    requests.receive(replace(WANTED, not_before_s=5))  # the same update, at another time
    await clock.advance(299)
    assert not doing.done()
    await clock.advance(1)
    assert await doing == 7


async def test_errors_of_the_work_are_raised(requests: UpdateRequests[DesiredModel]) -> None:
    async def work() -> None:
        raise OSError("no room")

    requests.receive(WANTED)
    with pytest.raises(OSError, match="no room"):
        await requests.while_desired(work(), WANTED)


@pytest.mark.parametrize("other", [None, replace(WANTED, version=3), replace(WANTED, undone=True)])
async def test_another_version_stops_work(requests: UpdateRequests[DesiredModel], other: DesiredModel | None) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    requests.receive(WANTED)
    doing = await begun(requests.while_desired(work(), WANTED))
    assert not doing.done()
    requests.receive(other)
    with pytest.raises(SupersededError):
        await doing
    assert ended.is_set(), "it was left as it is, and is not under way any more"


async def test_work_stops_if_a_rollback_is_requested(requests: UpdateRequests[DesiredModel]) -> None:
    requests.receive(WANTED)
    doing = await begun(requests.while_desired(asyncio.Event().wait(), WANTED))
    asking = asyncio.create_task(requests.roll_back())
    with pytest.raises(SupersededError):
        await doing
    requests.close()
    with pytest.raises(errors.NotReadyError):
        await asking


async def test_work_ends_when_the_update_expires(requests: UpdateRequests[DesiredModel], clock: SimulatedClock) -> None:
    requests.receive(replace(WANTED, expires_s=clock.wall_s() + 100))
    doing = await begun(requests.while_desired(asyncio.Event().wait(), WANTED))
    for _ in range(99):  # which the wall clock is asked for once a minute at least
        await clock.advance(1)
    assert not doing.done()
    await clock.advance(1)
    with pytest.raises(SupersededError):
        await doing


NOW_S = 1.8e9
MODEL = DesiredModel("digits", 2, "a" * 64, "r1")
CONFIGURATION = DesiredConfiguration("digits", 2, "a" * 64, "r1")
BOTH = pytest.mark.parametrize("desired", [MODEL, CONFIGURATION])


@BOTH
def test_times_do_not_make_it_another_update(desired: DesiredVersion) -> None:
    later = replace(desired, not_before_s=NOW_S, expires_s=NOW_S + 1, window=Window(0, 1), undone=True)
    assert is_same(desired, later)


@BOTH
@pytest.mark.parametrize("other", [{"name": "faces"}, {"version": 3}, {"rollout": "r2"}, {"attempt": 2}])
def test_name_version_rollout_and_attempt_identify_it(desired: DesiredVersion, other: dict[str, object]) -> None:
    assert not is_same(desired, replace(desired, **other))


def test_another_digest_makes_it_another_update() -> None:
    assert not is_same(MODEL, replace(MODEL, sha256="b" * 64))
    assert not is_same(CONFIGURATION, replace(CONFIGURATION, sha256="b" * 64))


@BOTH
def test_an_update_is_withdrawn_by_undo_or_by_digest(desired: DesiredVersion) -> None:
    assert not is_withdrawn(desired, desired)
    assert is_withdrawn(desired, replace(desired, undone=True))
    third = replace(desired, version=3, rollout="r2")
    assert not is_withdrawn(desired, replace(third, undone=True)), "another one is undone"
    assert is_withdrawn(desired, replace(third, withdrawn=("c" * 64, "a" * 64)))
    assert not is_withdrawn(desired, replace(desired, withdrawn=("a" * 64,))), "wanted again, though it was withdrawn"


@BOTH
def test_an_update_expires_at_its_end(desired: DesiredVersion) -> None:
    assert not has_expired(desired, NOW_S)
    ends = replace(desired, expires_s=NOW_S)
    assert not has_expired(ends, NOW_S - 0.001)
    assert has_expired(ends, NOW_S)


@BOTH
@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        ({}, 0),
        ({"not_before_s": NOW_S - 1}, 0),
        ({"not_before_s": NOW_S + 20}, 20),
        ({"not_before_s": NOW_S + 1e6}, CHECK_S),  # the wall clock may be set meanwhile
        ({"not_before_s": NOW_S + 50, "expires_s": NOW_S + 30}, 30),  # its end is seen when it comes
        ({"not_before_s": NOW_S + 50, "expires_s": NOW_S - 1}, 0.1),
    ],
)
def test_next_check_is_at_begin_or_expiry(desired: DesiredVersion, when: dict[str, float], seconds: float) -> None:
    assert wait_s(replace(desired, **when), NOW_S) == seconds


@BOTH
def test_the_window_counts_after_the_earliest_time(desired: DesiredVersion) -> None:
    minute = int(NOW_S / 60 + 3 * 24 * 60) % (7 * 24 * 60)
    assert NOW_S % 60 == 0
    assert wait_s(replace(desired, window=Window(minute, 1)), NOW_S + 59) == 0
    assert wait_s(replace(desired, window=Window(minute + 1, 1)), NOW_S + 15) == 45
    assert wait_s(replace(desired, window=Window(minute, 1), not_before_s=NOW_S + 30), NOW_S) == 30


@pytest.fixture(params=["model", "configuration"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Device | ConfigurationDevice:
    """A device that runs version 1 and is updated by the state machine."""
    if request.param == "configuration":
        return ConfigurationDevice(tmp_path)
    clock = HastyClock()
    device = Device(tmp_path / "device", Registry(random.Random(5), clock), clock, tries=2)
    bundle_at(device.setup, 1)
    device.start()
    return device


async def stage(device: Device | ConfigurationDevice, version: int) -> None:
    """Installs a version that must not be tried yet."""
    desired = replace(device.publish(version), not_before_s=device.clock.wall_s() + 1000)
    await run_update(device, desired, frozenset({S.STAGED}))


async def test_an_update_is_tried_committed_and_survives_a_restart(device: Device | ConfigurationDevice) -> None:
    desired = device.publish(2)
    await run_update(device, desired, frozenset({S.TRIAL}))
    assert device.version == 2
    await run_update(device, desired)
    assert device.state == (S.COMMITTED, "")
    sent_bytes = device.registry.sent_bytes
    device.start()
    await run_update(device, desired)
    assert device.version == 2 and device.registry.sent_bytes == sent_bytes  # nothing is done twice


async def test_too_many_starts_end_a_trial_without_a_network(device: Device | ConfigurationDevice) -> None:
    desired = device.publish(2)
    await run_update(device, desired, frozenset({S.TRIAL}))
    device.registry.error = errors.LinkDownError("away")
    for tries in (1, 2):
        device.start()
        assert device.version == 2 and device.installed.record.tries == tries
    device.start()
    assert device.version == 1 and device.state == (S.ROLLED_BACK, "tries")
    device.registry.error = None
    await run_update(device, desired)
    assert device.version == 1  # it is not tried again by itself
    await run_update(device, replace(desired, attempt=2))
    assert device.state == (S.COMMITTED, "") and device.version == 2


@pytest.mark.parametrize("error", [errors.LinkDownError("away"), errors.MetadataExpiredError("ended")])
async def test_temporary_errors_are_retried(device: Device | ConfigurationDevice, error: errors.FirstlineError) -> None:
    desired = device.publish(2)
    device.registry.error = error
    device.receive(desired)
    for _ in range(50):
        pause_s = await device.step()
        assert pause_s > 0
        device.clock.pass_by(pause_s)
    assert device.state == (S.OFFERED, error.code) and device.version == 1
    device.registry.error = None
    await run_update(device, desired)
    assert device.state == (S.COMMITTED, "") and device.version == 2


async def test_a_failing_trial_is_rolled_back_until_a_new_attempt(device: Device | ConfigurationDevice) -> None:
    await run_update(device, device.publish(2))
    desired = device.publish(3)
    await run_update(device, desired, frozenset({S.TRIAL}))
    assert device.version == 3
    device.fails = True
    await run_update(device, desired)
    assert device.state == (S.ROLLED_BACK, "errors") and device.version == 2
    device.fails = False
    await run_update(device, desired)
    assert device.version == 2  # it is not tried again by itself
    await run_update(device, replace(desired, attempt=2))
    assert device.state == (S.COMMITTED, "") and device.version == 3


async def test_a_failing_trial_is_rolled_back_on_a_full_disk(
    device: Device | ConfigurationDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_update(device, device.publish(2))
    await run_update(device, device.publish(3), frozenset({S.TRIAL}))
    device.fails = True
    with full_disk(monkeypatch):
        await device.step()
        assert device.version == 2
        device.fails = False
        for _ in range(30):
            device.clock.pass_by(await device.step())
        assert device.version == 2
    await device.step()
    device.start()
    assert device.state == (S.ROLLED_BACK, "errors") and device.version == 2


async def test_a_start_that_cannot_be_stored_ends_the_trial(
    device: Device | ConfigurationDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_update(device, device.publish(2))
    desired = device.publish(3)
    await run_update(device, desired, frozenset({S.TRIAL}))
    with full_disk(monkeypatch):
        device.start()
        assert device.version == 2
        device.receive(desired)
        for _ in range(5):
            pause_s = await device.step()
            assert pause_s > 0
            device.clock.pass_by(pause_s)
        assert device.version == 2
    await run_update(device, desired)
    assert device.state == (S.ROLLED_BACK, "disk") and device.version == 2
    await device.step()
    device.start()
    assert device.state == (S.ROLLED_BACK, "disk") and device.version == 2


async def test_a_rollback_on_request_happens_once(device: Device | ConfigurationDevice) -> None:
    with pytest.raises(errors.RequestError):
        await device.roll_back()
    desired = device.publish(2)
    await run_update(device, desired)
    await device.roll_back()
    assert device.state == (S.ROLLED_BACK, "asked") and device.version == 1
    with pytest.raises(
        errors.RequestError, match=r"no previous (version|configuration) to roll back to.*`edge-agent update list`"
    ):
        await device.roll_back()
    await run_update(device, desired)
    assert device.version == 1


@pytest.mark.parametrize("reached", [S.TRIAL, S.COMMITTED])
async def test_an_undo_rolls_back_without_download(device: Device | ConfigurationDevice, reached: UpdateState) -> None:
    await run_update(device, device.publish(2))
    desired = device.publish(3)
    await run_update(device, desired, frozenset({reached}))
    sent_bytes = device.registry.sent_bytes
    await run_update(device, replace(desired, undone=True))
    assert device.state == (S.ROLLED_BACK, "undone") and device.version == 2
    await device.step()
    assert device.version == 2 and device.registry.sent_bytes == sent_bytes


async def test_undoing_another_update_ends_no_trial(device: Device | ConfigurationDevice) -> None:
    await run_update(device, device.publish(2), frozenset({S.TRIAL}))
    await run_update(device, replace(device.publish(3), undone=True))
    assert device.state == (S.COMMITTED, "") and device.version == 2


async def test_undoing_another_update_cancels_a_staged_one(device: Device | ConfigurationDevice) -> None:
    await stage(device, 2)
    await run_update(device, replace(device.publish(3), undone=True))
    assert device.state == (S.CANCELLED, "superseded") and device.version == 1


@pytest.mark.parametrize("undone", [True, False])
async def test_a_version_withdrawn_offline_is_rolled_back(device: Device | ConfigurationDevice, undone: bool) -> None:
    """Meanwhile another update came, which cannot be installed here or was withdrawn as well."""
    await run_update(device, device.publish(2))
    withdrawn = device.publish(3)
    await run_update(device, withdrawn)
    newer = replace(device.publish(4), withdrawn=(withdrawn.sha256,), undone=undone)
    device.registry.error = errors.SignatureError("no")
    await run_update(device, newer, frozenset({S.ROLLED_BACK if undone else S.REJECTED}))
    assert device.version == 2
    assert device.state == ((S.ROLLED_BACK, "undone") if undone else (S.REJECTED, "signature"))


async def test_all_installed_versions_can_be_withdrawn(device: Device | ConfigurationDevice) -> None:
    withdrawn = [device.publish(2), device.publish(3)]
    for each in withdrawn:
        await run_update(device, each)
    newer = replace(device.publish(4), withdrawn=tuple(each.sha256 for each in withdrawn))
    device.registry.error = errors.LinkDownError("The registry is away.")
    device.receive(newer)
    while await device.step() == 0:
        pass
    assert device.version == 1 and device.state == (S.OFFERED, "link_down")


@pytest.mark.parametrize("tried", [False, True])
async def test_a_version_returned_to_can_be_withdrawn(device: Device | ConfigurationDevice, tried: bool) -> None:
    """A newer update, which was tried or refused, was withdrawn first."""
    desired = device.publish(2)
    await run_update(device, desired)
    newer = device.publish(3)
    device.registry.error = None if tried else errors.SignatureError("no")
    await run_update(device, newer, frozenset({S.COMMITTED if tried else S.REJECTED}))
    again = replace(desired, withdrawn=(newer.sha256,))
    await run_update(device, again, frozenset({S.COMMITTED, S.ROLLED_BACK}))
    while await device.step() == 0:
        pass
    assert device.version == 2
    await run_update(device, replace(again, undone=True), frozenset({S.ROLLED_BACK}))
    assert device.version == 1 and device.state == (S.ROLLED_BACK, "undone")
    device.start()
    assert device.version == 1


async def test_a_retry_elsewhere_does_not_prevent_an_undo(device: Device | ConfigurationDevice) -> None:
    desired = device.publish(2)
    await run_update(device, desired)
    device.receive(replace(desired, attempt=2, undone=True))
    await device.step()
    assert device.version == 1 and device.state == (S.ROLLED_BACK, "undone")


async def test_an_update_that_expires_while_downloading_is_not_tried(device: Device | ConfigurationDevice) -> None:
    device.registry.pause_s = 100.0
    await run_update(device, replace(device.publish(2), expires_s=device.clock.wall_s() + 50))
    assert device.state == (S.EXPIRED, "expired") and device.version == 1


async def test_a_wrong_wall_clock_does_not_expire_an_update(tmp_path: Path) -> None:
    """The time of a gateway counts: the wall clock shows a time after the end of the authority."""
    clock = HastyClock(1.8e9)
    registry = Registry(random.Random(1), clock)
    device = Device(tmp_path, registry, clock)
    bundle_at(device.setup, 1)
    device.start()
    clock.wall_s = lambda: 6e9
    await run_update(device, replace(device.publish(2), expires_s=1.9e9))
    assert device.state == (S.COMMITTED, "") and device.version == 2


async def test_a_running_version_is_not_installed_again(device: Device | ConfigurationDevice) -> None:
    desired = device.publish(2)
    await run_update(device, desired)
    sent_bytes = device.registry.sent_bytes
    await run_update(device, replace(desired, rollout="another"))
    assert device.state == (S.COMMITTED, "already") and device.registry.sent_bytes == sent_bytes
