"""What comes between the steps of an update: other words of the fleet, damaged files, a disk that refuses."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.updates import NAME, Device, HastyClock, Registry, bundle_at, full_disk

from firstline_core.errors import LinkDownError
from firstline_core.fleet.twin import DesiredModel, Window
from firstline_core.fleet.update import UpdateState
from firstline_edge.fleet.updates.model_store import ModelStore, Pointer
from firstline_edge.fleet.updates.state_machine import BY_REQUEST

S = UpdateState


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
def registry(clock: HastyClock) -> Registry:
    return Registry(random.Random(5), clock)


@pytest.fixture
def device(tmp_path: Path, registry: Registry, clock: HastyClock) -> Device:
    found = Device(tmp_path / "device", registry, clock)
    bundle_at(found.setup, 1)
    found.start()
    return found


@pytest.fixture
def wanted(tmp_path: Path, registry: Registry) -> DesiredModel:
    return registry.add(bundle_at(tmp_path / "two", 2), "r1")


@pytest.fixture
def third(tmp_path: Path, registry: Registry) -> DesiredModel:
    return registry.add(bundle_at(tmp_path / "three", 3), "r2")


def closed(clock: HastyClock) -> Window:
    """A window that opens in two days."""
    minute = int((clock.wall_s() / 60 + 3 * 24 * 60) % (7 * 24 * 60))
    return Window((minute + 2 * 24 * 60) % (7 * 24 * 60), 30)


def state(device: Device) -> tuple[UpdateState, str]:
    (update,) = device.updater.updates()
    return update.state, update.reason


async def committed(device: Device, wanted: DesiredModel) -> None:
    device.updater.desire([wanted])
    await device.run()
    assert state(device)[0] is S.COMMITTED


async def staged(device: Device, wanted: DesiredModel, clock: HastyClock) -> None:
    device.updater.desire([replace(wanted, window=closed(clock))])
    for _ in range(5):
        await device.step()
    assert state(device)[0] is S.STAGED


async def test_what_runs_is_found_damaged_while_its_successor_waits(
    device: Device, wanted: DesiredModel, third: DesiredModel, clock: HastyClock
) -> None:
    await committed(device, wanted)
    await staged(device, third, clock)
    (device.folder / "models" / NAME / "a" / "edge.onnx").write_bytes(b"x")
    device.start()
    assert device.version == 1
    device.updater.desire([third])
    await device.run()
    assert state(device) == (S.COMMITTED, "") and device.version == 3


async def test_going_back_on_the_disk_ends_an_update_that_waits(
    device: Device, wanted: DesiredModel, third: DesiredModel, clock: HastyClock
) -> None:
    await committed(device, wanted)
    await staged(device, third, clock)
    ModelStore(device.folder / "models").roll_back(NAME, BY_REQUEST, "", clock.wall_s())
    device.start()
    device.updater.desire([third])
    await device.run()
    assert state(device) == (S.CANCELLED, "asked") and device.version == 1


@pytest.mark.parametrize("other", [("narrow", 2), (NAME, 7)])
async def test_a_bundle_that_is_signed_as_another_is_rejected(
    device: Device, registry: Registry, tmp_path: Path, other: tuple[str, int]
) -> None:
    folder = bundle_at(tmp_path / "other", other[1], other[0])
    wanted = registry.add(folder)
    wanted = registry.relabelled(wanted, NAME, 2)
    device.updater.desire([wanted])
    await device.run()
    assert state(device) == (S.REJECTED, "integrity") and device.version == 1 and device.serving.versions == []


async def test_a_download_that_outlives_its_time_is_not_tried(
    device: Device, registry: Registry, wanted: DesiredModel, clock: HastyClock
) -> None:
    registry.pause_s = 100.0
    device.updater.desire([replace(wanted, expires_s=clock.wall_s() + 50)])
    await device.run()
    assert state(device) == (S.EXPIRED, "expired") and device.serving.versions == []


async def test_a_download_that_never_comes_expires(
    device: Device, registry: Registry, wanted: DesiredModel, clock: HastyClock
) -> None:
    registry.cuts = 1.0
    device.updater.desire([replace(wanted, expires_s=clock.wall_s() + 3600)])
    async with asyncio.timeout(10):
        await device.run()
    assert state(device) == (S.EXPIRED, "expired")


async def test_the_word_that_ends_another_update_ends_no_trial(
    device: Device, wanted: DesiredModel, third: DesiredModel
) -> None:
    device.updater.desire([wanted])
    while state(device)[0] is not S.TRIAL if device.updater.updates() else True:
        await device.step()
    device.updater.desire([replace(third, undone=True)])
    await device.run()
    assert state(device) == (S.COMMITTED, "") and device.version == 2


async def test_the_word_that_ends_another_update_cancels_one_under_way(
    device: Device, wanted: DesiredModel, third: DesiredModel, clock: HastyClock
) -> None:
    await staged(device, wanted, clock)
    device.updater.desire([replace(third, undone=True)])
    await device.run()
    assert state(device) == (S.CANCELLED, "superseded")


async def test_a_download_that_is_stuck_holds_up_no_other_model(
    device: Device, registry: Registry, wanted: DesiredModel, tmp_path: Path
) -> None:
    """The trial of one ends, though the other's bytes never come."""
    stuck = registry.add(bundle_at(tmp_path / "another", 5, "another"))
    registry.never |= {file.sha256 for path, file in registry.signed.items() if path.startswith(f"{stuck.name}/")}
    device.updater.desire([wanted, stuck])
    running = asyncio.create_task(device.updater.run())
    try:
        async with asyncio.timeout(10):
            while [u.state for u in device.updater.updates() if u.name == NAME] != [S.COMMITTED]:  # noqa: ASYNC110
                await asyncio.sleep(0)
    finally:
        running.cancel()
    assert device.version == 2


def partial_files(device: Device) -> list[Path]:
    return [path for path in (device.folder / "models").rglob("fetch/*") if path.is_file()]


async def test_what_was_on_its_way_is_gone_where_an_update_ends(
    device: Device, registry: Registry, wanted: DesiredModel, clock: HastyClock
) -> None:
    registry.cuts = 0.5
    registry.cut_off_after = 300
    device.updater.desire([replace(wanted, expires_s=clock.wall_s() + 3600)])
    step = asyncio.create_task(device.step())
    while not partial_files(device):  # noqa: ASYNC110
        await asyncio.sleep(0)
    device.updater.desire([])
    await step
    await device.run()
    assert state(device) == (S.CANCELLED, "superseded") and partial_files(device) == []


async def test_the_slot_that_is_overwritten_makes_room(
    device: Device, registry: Registry, wanted: DesiredModel, third: DesiredModel, tmp_path: Path
) -> None:
    await committed(device, wanted)
    await committed(device, third)
    fourth = registry.add(bundle_at(tmp_path / "four", 4))
    spare = device.folder / "models" / NAME / "a"
    freed = sum(path.stat().st_size for path in spare.iterdir())
    hardware = (await device.serving.hardware())._replace(free_bytes=(16 << 20) + freed // 2)

    async def offered() -> object:
        return hardware

    device.serving.hardware = offered  # type: ignore[method-assign,assignment]
    await committed(device, fourth)
    assert device.version == 4


async def test_nothing_counts_as_received_before_it_came(
    device: Device, registry: Registry, wanted: DesiredModel
) -> None:
    registry.cuts = 1.0
    device.updater.desire([wanted])
    step = asyncio.create_task(device.step())
    while not device.updater.updates() or device.updater.updates()[0].state is not S.DOWNLOADING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(20):
        assert device.updater.updates()[0].received_bytes == 0
        await asyncio.sleep(0)
    step.cancel()


async def test_a_start_that_cannot_be_counted_tries_nothing(
    device: Device, wanted: DesiredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.updater.desire([wanted])
    while not device.serving.versions:
        await device.step()
    with full_disk(monkeypatch):
        device.start()
        assert device.version == 1
        device.updater.desire([wanted])
        assert await device.step() > 0
        assert device.version == 1
    await device.run()
    assert state(device) == (S.ROLLED_BACK, "disk") and device.version == 1
    device.start()
    assert device.version == 1 and state(device) == (S.ROLLED_BACK, "disk")


async def test_a_failing_trial_ends_though_the_disk_refuses(
    device: Device, wanted: DesiredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.updater.desire([wanted])
    while not device.serving.versions:
        await device.step()
    device.serving.fails = True
    with full_disk(monkeypatch):
        await device.step()
        assert device.version == 1
        device.serving.fails = False
        for _ in range(20):
            device.clock.pass_by(await device.step())
        assert device.version == 1
    await device.run()
    assert state(device) == (S.ROLLED_BACK, "errors") and device.version == 1
    device.start()
    assert device.version == 1


async def test_a_disk_that_is_full_when_a_trial_would_begin_costs_the_update_and_no_more(
    device: Device, wanted: DesiredModel, clock: HastyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await staged(device, wanted, clock)
    device.updater.desire([wanted])
    with full_disk(monkeypatch):
        for _ in range(5):
            device.clock.pass_by(await device.step())
        assert device.version == 1 and device.serving.versions == []
    await device.run()
    assert state(device)[0] in (S.COMMITTED, S.FAILED)
    before = state(device)
    device.start()
    assert state(device) == before


@pytest.mark.parametrize("begun", [False, True])
async def test_the_fleet_hears_of_a_disk_that_takes_no_word(
    device: Device,
    wanted: DesiredModel,
    third: DesiredModel,
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,
) -> None:
    device.updater.desire([wanted])
    if begun:
        device.registry.error = LinkDownError("away")
        assert await device.step() > 0 and state(device) == (S.OFFERED, "link_down")
        device.registry.error = None
    with full_disk(monkeypatch):
        assert await device.step() > 0
        assert state(device) == (S.FAILED, "no_room") and device.version == 1
        (update,) = device.updater.updates()
        assert update.rollout == "r1" and "make some in the state directory" in update.message
        device.updater.desire([third])
        assert await device.step() > 0
        (update,) = device.updater.updates()
        assert (update.rollout, update.version, update.state) == ("r2", 3, S.FAILED)
    await device.step()
    device.start()
    assert state(device) == (S.FAILED, "no_room")  # the disk knows it as soon as it can
    device.updater.desire([replace(third, attempt=2)])
    await device.run()
    assert state(device) == (S.COMMITTED, "") and device.version == 3


async def test_what_is_whole_waits_for_the_disk_and_the_fleet_hears_for_what(
    device: Device, wanted: DesiredModel, clock: HastyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await staged(device, wanted, clock)
    device.updater.desire([wanted])
    with full_disk(monkeypatch):
        await device.step()
        assert state(device) == (S.STAGED, "no_room")
    device.updater.desire([replace(wanted, window=closed(clock))])
    await device.step()
    assert state(device) == (S.STAGED, "")
    device.updater.desire([wanted])
    await device.run()
    assert state(device) == (S.COMMITTED, "") and device.version == 2


async def test_a_lost_pointer_is_known_from_the_record(device: Device, wanted: DesiredModel) -> None:
    await committed(device, wanted)
    (device.folder / "models" / NAME / "pointer").write_bytes(b"x\ny\n")
    device.start()
    assert device.version == 2 and state(device) == (S.COMMITTED, "")


async def test_a_trial_of_which_nothing_is_known_ends(device: Device, wanted: DesiredModel) -> None:
    device.updater.desire([wanted])
    while not device.serving.versions:
        await device.step()
    (device.folder / "models" / NAME / "update").write_bytes(b"x\ny\n")
    device.start()
    assert device.version == 1 and device.store.pointer(NAME) == Pointer()


async def test_going_back_while_files_come_ends_the_update(
    device: Device, registry: Registry, wanted: DesiredModel, third: DesiredModel
) -> None:
    await committed(device, wanted)
    registry.cuts = 1.0
    device.updater.desire([third])
    running = asyncio.create_task(device.updater.run())
    while state(device)[0] is not S.DOWNLOADING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.wait_for(device.updater.roll_back(NAME), 10)
    running.cancel()
    assert state(device) == (S.CANCELLED, "asked") and device.version == 1


async def test_a_registry_that_is_away_for_long_is_no_verdict(
    device: Device, registry: Registry, wanted: DesiredModel
) -> None:
    registry.error = LinkDownError("away")
    device.updater.desire([wanted])
    for _ in range(50):
        device.clock.pass_by(await device.step())
    assert state(device) == (S.OFFERED, "link_down")
