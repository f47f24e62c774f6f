"""The states of an update: what is fetched, what is refused, what is tried, what is gone back to."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.updates import NAME, Device, HastyClock, Registry, bundle_at

from firstline_core.errors import (
    LinkDownError,
    MetadataExpiredError,
    RequestError,
    SignatureError,
    UnknownModelError,
)
from firstline_core.fleet.target import Hardware
from firstline_core.fleet.twin import DesiredModel, Window
from firstline_core.fleet.update import UpdateState
from firstline_edge.fleet.updates.model_store import ModelStore, Pointer

S = UpdateState


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
def registry() -> Registry:
    return Registry(random.Random(5))


@pytest.fixture
def device(tmp_path: Path, registry: Registry, clock: HastyClock) -> Device:
    found = Device(tmp_path / "device", registry, clock)
    bundle_at(found.setup, 1)
    found.start()
    return found


@pytest.fixture
def wanted(tmp_path: Path, registry: Registry) -> DesiredModel:
    return registry.add(bundle_at(tmp_path / "two", 2), "r1")


def state(device: Device) -> tuple[UpdateState, str]:
    (update,) = device.updater.updates()
    return update.state, update.reason


async def reached(device: Device, wanted: UpdateState) -> float:
    """Until an update is so far and can do no more for now; seconds after which to look again."""
    while (wait_s := await device.step()) == 0 or state(device)[0] is not wanted:
        pass
    return wait_s


async def test_a_good_bundle_is_fetched_tried_and_kept(device: Device, wanted: DesiredModel) -> None:
    device.updater.desire([wanted])
    await device.run()
    assert state(device) == (S.COMMITTED, "") and device.version == 2
    assert device.store.pointer(NAME) == Pointer("a", "", None)
    (update,) = device.updater.updates()
    assert update.rollout == "r1" and update.received_bytes == update.total_bytes > 0
    device.start()
    device.updater.desire([wanted])
    await device.run()
    assert device.version == 2 and device.serving.versions == []  # nothing is done twice


async def test_a_bundle_that_runs_already_is_not_fetched(device: Device, registry: Registry) -> None:
    device.updater.desire([registry.add(device.setup, "r0")])
    await device.run()
    assert state(device) == (S.COMMITTED, "already") and registry.sent_bytes == 0


async def test_going_back_to_an_older_version_fetches_nothing_that_is_here(
    device: Device, registry: Registry, wanted: DesiredModel
) -> None:
    device.updater.desire([wanted])
    await device.run()
    sent_bytes = registry.sent_bytes
    device.updater.desire([registry.add(device.setup, "back")])
    await device.run()
    assert device.version == 1 and state(device)[0] is S.COMMITTED and registry.sent_bytes == sent_bytes


@pytest.mark.parametrize(
    ("spoil", "ended"),
    [
        ("unsigned", (S.REJECTED, "signature")),
        ("unlisted", (S.REJECTED, "not_found")),
        ("other manifest", (S.REJECTED, "integrity")),
        ("tampered", (S.REJECTED, "integrity")),
        ("no such bytes", (S.REJECTED, "not_found")),
        ("no runtime", (S.REJECTED, "incompatible_target")),
        ("no room", (S.FAILED, "no_room")),
        ("breaks", (S.REJECTED, "self_test_failed")),
        ("late", (S.EXPIRED, "expired")),
    ],
)
async def test_what_must_not_run_never_answers(
    device: Device, registry: Registry, wanted: DesiredModel, spoil: str, ended: tuple[UpdateState, str]
) -> None:
    hardware = Hardware(frozenset({"onnx"}), "x86_64", None, 1 << 40)
    if spoil == "unsigned":
        registry.error = SignatureError("no")
    elif spoil == "unlisted":
        registry.signed.clear()
    elif spoil == "other manifest":
        wanted = replace(wanted, sha256="0" * 64)
    elif spoil == "tampered":
        registry.blobs = {sha256: content[::-1] for sha256, content in registry.blobs.items()}
    elif spoil == "no such bytes":
        registry.blobs.clear()
    elif spoil == "no runtime":
        hardware = hardware._replace(runtimes=frozenset({"tflite"}))
    elif spoil == "no room":
        hardware = hardware._replace(free_bytes=100)
    elif spoil == "breaks":
        device.serving.breaks.add(2)
    else:
        wanted = replace(wanted, expires_s=1.0)

    async def offered() -> Hardware:
        return hardware

    device.serving.hardware = offered  # type: ignore[method-assign]
    device.updater.desire([wanted])
    await device.run()
    assert state(device) == ended and device.version == 1 and device.serving.versions == []
    (update,) = device.updater.updates()
    assert update.message.endswith(".") or spoil in ("unsigned", "breaks")
    device.updater.desire([wanted])  # the same word again is no new update
    await device.run()
    assert state(device) == ended


@pytest.mark.parametrize("error", [LinkDownError("away"), MetadataExpiredError("ended")])
async def test_what_may_go_better_later_is_tried_again(
    device: Device, registry: Registry, wanted: DesiredModel, error: LinkDownError
) -> None:
    registry.error = error
    device.updater.desire([wanted])
    assert await device.step() > 0
    assert state(device) == (S.OFFERED, error.code) and device.version == 1
    registry.error = None
    await device.run()
    assert state(device)[0] is S.COMMITTED


async def test_a_line_that_breaks_is_asked_only_for_the_rest(
    device: Device, registry: Registry, wanted: DesiredModel
) -> None:
    registry.cuts = 0.3

    device.updater.desire([wanted])
    await device.run()
    (update,) = device.updater.updates()
    assert update.state is S.COMMITTED and registry.sent_bytes == update.total_bytes


async def test_it_waits_for_its_window(device: Device, wanted: DesiredModel, clock: HastyClock) -> None:
    minute = int((clock.wall_s() / 60 + 3 * 24 * 60) % (7 * 24 * 60))
    wanted = replace(wanted, window=Window((minute + 120) % (7 * 24 * 60), 30))
    device.updater.desire([wanted])
    begun_s = clock.wall_s()
    wait_s = await reached(device, S.STAGED)
    assert state(device) == (S.STAGED, "") and device.version == 1
    while state(device)[0] is S.STAGED:
        clock.pass_by(wait_s)
        wait_s = await device.step()
    assert state(device)[0] is S.TRIAL and device.version == 2
    assert 119 * 60 <= clock.wall_s() - begun_s <= 121 * 60


async def test_a_trial_that_is_started_too_often_goes_back_without_a_network(
    device: Device, registry: Registry, wanted: DesiredModel
) -> None:
    device.updater.desire([wanted])
    await reached(device, S.TRIAL)
    registry.error = LinkDownError("no network")
    for version, tries in ((2, 1), (2, 2), (2, 3), (1, 3)):
        device.start()
        assert device.version == version
        assert device.updater.updates()[0].tries == tries
    assert state(device) == (S.ROLLED_BACK, "tries")
    device.updater.desire([wanted])
    await device.run()
    assert device.version == 1


async def test_a_trial_whose_requests_fail_goes_back(device: Device, wanted: DesiredModel) -> None:
    device.updater.desire([wanted])
    await reached(device, S.TRIAL)
    device.serving.fails = True
    await device.run()
    assert state(device) == (S.ROLLED_BACK, "errors") and device.version == 1


async def test_somebody_goes_back_by_hand(device: Device, wanted: DesiredModel) -> None:
    with pytest.raises(UnknownModelError):
        await device.updater.roll_back("other")
    device.updater.desire([wanted])
    await device.run()
    await device.roll_back()
    assert state(device) == (S.ROLLED_BACK, "asked") and device.version == 1
    with pytest.raises(RequestError, match="nothing to go back to"):
        await device.roll_back()
    await device.run()
    assert device.version == 1


async def test_the_fleet_takes_an_update_back_without_anything_being_fetched(
    device: Device, registry: Registry, wanted: DesiredModel
) -> None:
    device.updater.desire([wanted])
    await device.run()
    sent_bytes = registry.sent_bytes
    device.updater.desire([replace(wanted, undone=True)])
    await device.run()
    assert state(device) == (S.ROLLED_BACK, "undone") and device.version == 1
    await device.run()
    assert device.version == 1 and registry.sent_bytes == sent_bytes


async def test_what_the_fleet_takes_back_while_it_is_tried_is_tried_no_more(
    device: Device, wanted: DesiredModel
) -> None:
    device.updater.desire([wanted])
    await reached(device, S.TRIAL)
    device.updater.desire([replace(wanted, undone=True)])
    await device.run()
    assert state(device) == (S.ROLLED_BACK, "undone") and device.version == 1


async def test_what_another_update_brought_is_not_undone(device: Device, wanted: DesiredModel) -> None:
    device.updater.desire([wanted])
    await device.run()
    device.updater.desire([replace(wanted, rollout="other", undone=True)])
    await device.run()
    assert state(device) == (S.COMMITTED, "") and device.version == 2


@pytest.mark.parametrize("undone", [True, False])
async def test_what_was_taken_back_while_the_device_was_away_runs_no_more(
    device: Device, registry: Registry, wanted: DesiredModel, tmp_path: Path, undone: bool
) -> None:
    device.updater.desire([wanted])
    await device.run()
    assert device.version == 2
    # Meanwhile that was aborted, and another rollout came, which cannot be installed here or was taken back as well.
    newer = registry.add(bundle_at(tmp_path / "three", 3), "r2")
    registry.error = SignatureError("no")
    device.updater.desire([replace(newer, undone=undone, withdrawn=(wanted.sha256,))])
    await device.run()
    assert device.version == 1
    assert state(device) == ((S.ROLLED_BACK, "undone") if undone else (S.REJECTED, "signature"))


async def test_a_trial_that_fails_goes_back_to_nothing_that_was_taken_back(
    device: Device, registry: Registry, wanted: DesiredModel, tmp_path: Path
) -> None:
    device.updater.desire([wanted])
    await device.run()
    newer = registry.add(bundle_at(tmp_path / "three", 3), "r2")
    device.serving.fails = True
    device.updater.desire([replace(newer, withdrawn=(wanted.sha256,))])
    await device.run()
    assert state(device) == (S.ROLLED_BACK, "errors") and device.version == 1


async def test_the_fleet_has_an_update_tried_again(device: Device, wanted: DesiredModel) -> None:
    device.updater.desire([wanted])
    device.serving.fails = True
    await device.run()
    assert state(device) == (S.ROLLED_BACK, "errors")
    device.serving.fails = False
    device.updater.desire([replace(wanted, attempt=2)])
    await device.run()
    assert state(device) == (S.COMMITTED, "") and device.version == 2


async def test_what_the_fleet_wants_no_more_is_given_up(
    device: Device, registry: Registry, wanted: DesiredModel, tmp_path: Path
) -> None:
    registry.cuts = 1.0
    device.updater.desire([wanted])
    step = asyncio.create_task(device.step())
    while not device.updater.updates() or device.updater.updates()[0].state is not S.DOWNLOADING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    device.updater.desire([])
    await step
    await device.step()
    assert state(device) == (S.CANCELLED, "superseded")
    registry.cuts = 0.0
    device.updater.desire([registry.add(bundle_at(tmp_path / "three", 3))])
    await device.run()
    assert device.version == 3


async def test_a_damaged_slot_makes_way_for_what_ran_before(device: Device, wanted: DesiredModel) -> None:
    device.updater.desire([wanted])
    await device.run()
    (device.folder / "models" / NAME / "a" / "edge.onnx").write_bytes(b"x")
    device.start()
    assert device.version == 1 and state(device) == (S.ROLLED_BACK, "damaged")


def test_damaged_files_are_no_guess(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "pointer").write_bytes(b"x\ny\n")
    (folder / "update").write_bytes(b"x\ny\n")
    assert ModelStore(tmp_path, repair=False).records == {} and (folder / "pointer").exists()
    store = ModelStore(tmp_path)
    assert store.pointer(NAME) == Pointer() and not (folder / "pointer").exists()
