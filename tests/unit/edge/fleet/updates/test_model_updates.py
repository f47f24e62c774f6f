"""Updates of a model: download, refusal, trial, rollback, damaged files, and a disk that refuses writes."""

import asyncio
import errno
import os
import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.updates import NAME, Device, HastyClock, Registry, bundle_at, full_disk

from firstline_core import errors
from firstline_core.clock import end_tasks
from firstline_core.fleet.target import Hardware
from firstline_core.fleet.twin import UPDATES, DesiredModel, Window
from firstline_core.fleet.update import UpdateState
from firstline_edge.fleet.updates.installed import BY_REQUEST, COPY, Installed, UpdateRecord
from firstline_edge.fleet.updates.model_store import STATE, ModelStore

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
def desired(tmp_path: Path, registry: Registry) -> DesiredModel:
    return registry.add(bundle_at(tmp_path / "two", 2), "r1")


async def reached(device: Device, state: UpdateState) -> float:
    """Until an update is so far and can do no more for now; seconds after which to look again."""
    while (wait_s := await device.step()) == 0 or device.state[0] is not state:
        pass
    return wait_s


async def test_a_running_bundle_is_not_downloaded(device: Device, registry: Registry) -> None:
    await device.run(registry.add(device.setup, "r0"))
    assert device.state == (S.COMMITTED, "already") and registry.sent_bytes == 0


async def test_held_older_version_is_not_downloaded(device: Device, registry: Registry, desired: DesiredModel) -> None:
    await device.run(desired)
    sent_bytes = registry.sent_bytes
    await device.run(registry.add(device.setup, "back"))
    assert device.version == 1 and device.state[0] is S.COMMITTED and registry.sent_bytes == sent_bytes


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
async def test_a_rejected_bundle_never_answers(
    device: Device, registry: Registry, desired: DesiredModel, spoil: str, ended: tuple[UpdateState, str]
) -> None:
    hardware = Hardware(frozenset({"onnx"}), "x86_64", None, 1 << 40)
    if spoil == "unsigned":
        registry.error = errors.SignatureError("no")
    elif spoil == "unlisted":
        registry.signed.clear()
    elif spoil == "other manifest":
        desired = replace(desired, sha256="0" * 64)
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
        desired = replace(desired, expires_s=1.0)

    async def offered() -> Hardware:
        return hardware

    device.serving.hardware = offered
    await device.run(desired)
    assert device.state == ended and device.version == 1 and device.serving.versions == []
    (update,) = device.updater.updates()
    assert update.message.endswith(".") or spoil in ("unsigned", "breaks")
    await device.run(desired)  # the same desired state begins no new update
    assert device.state == ended


async def test_an_interrupted_download_resumes(device: Device, registry: Registry, desired: DesiredModel) -> None:
    registry.cuts = 0.3
    await device.run(desired)
    (update,) = device.updater.updates()
    assert device.state == (S.COMMITTED, "") and registry.sent_bytes == update.total_bytes
    assert update.rollout == "r1" and update.received_bytes == update.total_bytes > 0
    assert (device.installed.running, device.installed.previous, device.installed.in_trial) == ("a", None, False)


async def test_an_update_waits_for_its_window(device: Device, desired: DesiredModel, clock: HastyClock) -> None:
    minute = int((clock.wall_s() / 60 + 3 * 24 * 60) % (7 * 24 * 60))
    desired = replace(desired, window=Window((minute + 120) % (7 * 24 * 60), 30))
    device.updater.receive([desired])
    begun_s = clock.wall_s()
    wait_s = await reached(device, S.STAGED)
    assert device.state == (S.STAGED, "") and device.version == 1
    while device.state[0] is S.STAGED:
        clock.pass_by(wait_s)
        wait_s = await device.step()
    assert device.state[0] is S.TRIAL and device.version == 2
    assert 119 * 60 <= clock.wall_s() - begun_s <= 121 * 60


async def test_a_test_that_ends_with_an_error_uses_up_no_try(
    device: Device, desired: DesiredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(path: Path) -> Path:
        raise OSError(errno.EIO, "Input/output error")

    device.updater.receive([desired])
    with monkeypatch.context() as within:
        within.setattr(device.serving, "load_for_trial", refused)
        await reached(device, S.STAGED)
        for _ in range(device.tries + 1):
            device.clock.pass_by(await device.step())
            assert device.state[0] is S.STAGED and device.updater.updates()[0].tries == 0
    await reached(device, S.TRIAL)
    assert device.version == 2


async def test_stops_during_the_test_use_up_no_try(
    device: Device, desired: DesiredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = asyncio.Event()

    async def endless(_: Path) -> None:
        loading.set()
        await asyncio.Event().wait()

    for _ in range(device.tries + 1):
        monkeypatch.setattr(device.serving, "load_for_trial", endless)
        device.updater.receive([desired])
        running = asyncio.create_task(reached(device, S.TRIAL))
        await loading.wait()
        loading.clear()
        await end_tasks(running)
        device.start()
    device.updater.receive([desired])
    await reached(device, S.TRIAL)
    assert device.version == 2


async def test_an_unknown_model_is_not_rolled_back(device: Device) -> None:
    with pytest.raises(errors.UnknownModelError):
        await device.updater.roll_back("other")


async def test_a_failed_trial_skips_withdrawn_versions(
    device: Device, registry: Registry, desired: DesiredModel, tmp_path: Path
) -> None:
    await device.run(desired)
    newer = registry.add(bundle_at(tmp_path / "three", 3), "r2")
    device.serving.fails = True
    await device.run(replace(newer, withdrawn=(desired.sha256,)))
    assert device.state == (S.ROLLED_BACK, "errors") and device.version == 1


async def test_a_damaged_slot_is_rolled_back(device: Device, desired: DesiredModel) -> None:
    await device.run(desired)
    (device.folder / "models" / NAME / "a" / "edge.onnx").write_bytes(b"x")
    device.start()
    assert device.version == 1 and device.state == (S.ROLLED_BACK, "damaged")


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    file = tmp_path / NAME / STATE
    file.parent.mkdir()
    file.write_bytes(b"x\ny\n")
    with pytest.raises(errors.IntegrityError, match=r"is damaged: its checksum does not fit\. Start the agent"):
        ModelStore(tmp_path, repair=False).file(NAME)
    assert file.exists()
    assert ModelStore(tmp_path).file(NAME).state == Installed() and not file.exists()


async def test_a_device_without_its_state_recovers(device: Device, registry: Registry, desired: DesiredModel) -> None:
    await committed(device, desired)
    for name in (STATE, STATE + COPY):
        (device.folder / "models" / NAME / name).write_bytes(b"x\ny\n")
        device.start()
        assert device.version == (1 if name != STATE else 2)
    await device.run(desired)
    assert device.version == 2 and device.state == (S.COMMITTED, "")


def test_a_report_has_room_for_all_updates(device: Device, desired: DesiredModel) -> None:
    for number in range(UPDATES + 16):
        name = f"m{number:02}"
        record = UpdateRecord(replace(desired, name=name), S.COMMITTED)
        device.store.file(name).write(Installed(record=record))
    device.start()
    assert [update.name for update in device.updater.updates()] == [f"m{number:02}" for number in range(UPDATES)]


@pytest.fixture
def third(tmp_path: Path, registry: Registry) -> DesiredModel:
    return registry.add(bundle_at(tmp_path / "three", 3), "r2")


def closed(clock: HastyClock) -> Window:
    """A window that opens in two days."""
    minute = int((clock.wall_s() / 60 + 3 * 24 * 60) % (7 * 24 * 60))
    return Window((minute + 2 * 24 * 60) % (7 * 24 * 60), 30)


async def committed(device: Device, desired: DesiredModel) -> None:
    await device.run(desired)
    assert device.state[0] is S.COMMITTED


async def staged(device: Device, desired: DesiredModel, clock: HastyClock) -> None:
    device.updater.receive([replace(desired, window=closed(clock))])
    for _ in range(5):
        await device.step()
    assert device.state[0] is S.STAGED


async def test_a_staged_update_survives_a_damaged_running_slot(
    device: Device, desired: DesiredModel, third: DesiredModel, clock: HastyClock
) -> None:
    await committed(device, desired)
    await staged(device, third, clock)
    (device.folder / "models" / NAME / "a" / "edge.onnx").write_bytes(b"x")
    device.start()
    assert device.version == 1
    await device.run(third)
    assert device.state == (S.COMMITTED, "") and device.version == 3


async def test_a_rollback_on_disk_cancels_a_staged_update(
    device: Device, desired: DesiredModel, third: DesiredModel, clock: HastyClock
) -> None:
    await committed(device, desired)
    await staged(device, third, clock)
    ModelStore(device.folder / "models").file(NAME).roll_back(BY_REQUEST, "", clock.wall_s())
    device.start()
    await device.run(third)
    assert device.state == (S.CANCELLED, "asked") and device.version == 1


@pytest.mark.parametrize("other", [("narrow", 2), (NAME, 7)])
async def test_a_bundle_signed_under_another_name_is_rejected(
    device: Device, registry: Registry, tmp_path: Path, other: tuple[str, int]
) -> None:
    folder = bundle_at(tmp_path / "other", other[1], other[0])
    desired = registry.add(folder)
    desired = registry.relabelled(desired, NAME, 2)
    await device.run(desired)
    assert device.state == (S.REJECTED, "integrity") and device.version == 1 and device.serving.versions == []


async def test_a_stuck_download_does_not_delay_other_models(
    device: Device, registry: Registry, desired: DesiredModel, tmp_path: Path
) -> None:
    """The trial of one ends, though the other's bytes never come."""
    stuck = registry.add(bundle_at(tmp_path / "another", 5, "another"))
    registry.never |= {file.sha256 for path, file in registry.signed.items() if path.startswith(f"{stuck.name}/")}
    device.updater.receive([desired, stuck])
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


async def test_partial_files_are_deleted_after_a_superseded_update(
    device: Device, registry: Registry, desired: DesiredModel, third: DesiredModel, clock: HastyClock
) -> None:
    registry.cuts = 0.5
    registry.cut_off_after = 300
    device.updater.receive([replace(desired, expires_s=clock.wall_s() + 3600)])
    step = asyncio.create_task(device.step())
    while not partial_files(device):  # noqa: ASYNC110
        await asyncio.sleep(0)
    device.updater.receive([])
    await step
    await device.run()
    assert device.state == (S.CANCELLED, "superseded") and partial_files(device) == []
    registry.cuts, registry.cut_off_after = 0.0, None
    await committed(device, third)
    assert device.version == 3


async def test_the_overwritten_slot_counts_as_free_space(
    device: Device, registry: Registry, desired: DesiredModel, third: DesiredModel, tmp_path: Path
) -> None:
    await committed(device, desired)
    await committed(device, third)
    fourth = registry.add(bundle_at(tmp_path / "four", 4))
    spare = device.folder / "models" / NAME / "a"
    freed = sum(path.stat().st_size for path in spare.iterdir())
    hardware = (await device.serving.hardware())._replace(free_bytes=(16 << 20) + freed // 2)

    async def offered() -> object:
        return hardware

    device.serving.hardware = offered
    await committed(device, fourth)
    assert device.version == 4


async def test_only_arrived_bytes_count_as_received(device: Device, registry: Registry, desired: DesiredModel) -> None:
    registry.cuts = 1.0
    device.updater.receive([desired])
    step = asyncio.create_task(device.step())
    while not device.updater.updates() or device.updater.updates()[0].state is not S.DOWNLOADING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(20):
        assert device.updater.updates()[0].received_bytes == 0
        await asyncio.sleep(0)
    step.cancel()


async def test_a_file_without_an_end_is_retried_with_backoff(
    device: Device, registry: Registry, desired: DesiredModel, clock: HastyClock
) -> None:
    for sha256 in registry.blobs:
        registry.blobs[sha256] += b"more"
    began_s = clock.monotonic_s()
    device.updater.receive([desired])
    step = asyncio.create_task(device.step())
    while not device.updater.updates() or clock.monotonic_s() - began_s < 7200:  # noqa: ASYNC110
        await asyncio.sleep(0)
    (update,) = device.updater.updates()
    assert update.state is S.DOWNLOADING and update.received_bytes < update.total_bytes
    assert registry.sent_bytes < 100 * update.total_bytes
    step.cancel()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_full_disk_is_reported_although_it_cannot_be_stored(
    device: Device, desired: DesiredModel, third: DesiredModel, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    device.updater.receive([desired])
    if begun:
        device.registry.error = errors.LinkDownError("away")
        assert await device.step() > 0 and device.state == (S.OFFERED, "link_down")
        device.registry.error = None
    with full_disk(monkeypatch):
        assert await device.step() > 0
        assert device.state == (S.FAILED, "no_room") and device.version == 1
        (update,) = device.updater.updates()
        assert update.rollout == "r1" and "make some in the state directory" in update.message
        device.updater.receive([third])
        assert await device.step() > 0
        (update,) = device.updater.updates()
        assert (update.rollout, update.version, update.state) == ("r2", 3, S.FAILED)
    await device.step()
    device.start()
    assert device.state == (S.FAILED, "no_room")  # the disk knows it as soon as it can
    await device.run(replace(third, attempt=2))
    assert device.state == (S.COMMITTED, "") and device.version == 3


async def test_a_complete_download_waits_for_the_disk(
    device: Device, desired: DesiredModel, clock: HastyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await staged(device, desired, clock)
    device.updater.receive([desired])
    with full_disk(monkeypatch):
        for _ in range(5):
            device.clock.pass_by(await device.step())
        assert device.state == (S.STAGED, "no_room") and device.version == 1
        assert device.serving.versions == []
    device.updater.receive([replace(desired, window=closed(clock))])
    await device.step()
    assert device.state == (S.STAGED, "")
    await device.run(desired)
    assert device.state == (S.COMMITTED, "") and device.version == 2


async def test_a_trial_goes_on_while_the_disk_refuses_its_commit(
    device: Device, desired: DesiredModel, third: DesiredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    device.updater.receive([desired])
    await reached(device, S.TRIAL)
    device.clock.pass_by(60)
    with full_disk(monkeypatch):
        assert await device.step() > 0
    assert device.state[0] is S.TRIAL and device.installed.in_trial
    await device.step()
    assert device.state[0] is S.COMMITTED
    device.updater.receive([third])
    with monkeypatch.context() as patch:
        patch.setattr(device.serving, "replace", refuse)
        await reached(device, S.TRIAL)
    assert await device.step() > 0
    assert device.state[0] is S.TRIAL and device.installed.in_trial


async def test_a_rollback_during_a_download_cancels_the_update(
    device: Device, registry: Registry, desired: DesiredModel, third: DesiredModel
) -> None:
    await committed(device, desired)
    registry.cuts = 1.0
    device.updater.receive([third])
    running = asyncio.create_task(device.updater.run())
    while device.state[0] is not S.DOWNLOADING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.wait_for(device.updater.roll_back(NAME), 10)
    running.cancel()
    assert device.state == (S.CANCELLED, "asked") and device.version == 1
