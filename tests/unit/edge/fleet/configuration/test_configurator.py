"""Updates of the configuration: fetched, verified, bounded, tried, committed or rolled back, also after power cuts."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.updates import Cut, HastyClock, cut_after, full_disk, here

from firstline_core.errors import (
    ConfigError,
    FirstlineError,
    IntegrityError,
    LinkDownError,
    NoRoomError,
    NotFoundError,
    RequestError,
    UpdateError,
)
from firstline_core.fleet.configuration import LIMIT_BYTES, configuration_path
from firstline_core.fleet.twin import DesiredConfiguration, Window
from firstline_core.fleet.update import ENDED, UpdateState
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.configuration.configuration_store import ConfigurationStore, read_state, start_configuration
from firstline_edge.fleet.configuration.configurator import Configurator, fetch, find_file
from firstline_edge.fleet.updates.state_machine import TrialLimits
from firstline_edge.settings.settings import EdgeSettings

S = UpdateState
TEXT = 'name = "{}"\nversion = {}\n[budget]\nbytes_per_day = {}\n'


class Registry:
    """What is signed, and its bytes."""

    def __init__(self) -> None:
        self.signed: dict[str, SignedFile] = {}
        self.blobs: dict[str, bytes] = {}
        self.error: FirstlineError | None = None

    def add(self, version: int, bytes_per_day: int, *, name: str = "quiet", text: str = "") -> DesiredConfiguration:
        content = (text or TEXT.format(name, version, bytes_per_day)).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        path = configuration_path(name, version)
        self.signed[path] = SignedFile(path, len(content), sha256, {})
        self.blobs[sha256] = content
        return DesiredConfiguration(name, version, sha256, f"r{version}")

    async def files(self) -> dict[str, SignedFile]:
        if self.error is not None:
            raise self.error
        return self.signed

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        content = self.blobs[sha256]
        yield content[offset : size_bytes // 2]
        yield content[size_bytes // 2 :]


class Device:
    """One process of an agent after the other, over one disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fleet" / "configuration"
        self.own = edge_settings(folder)
        self.registry = Registry()
        self.clock = HastyClock(1.8e9)
        self.fails = False
        self.start()

    def start(self) -> None:
        state, self.settings = start_configuration(self.path, self.own, self.clock)
        self.store = ConfigurationStore(self.path, state, off_loop=here)
        self.configurator = Configurator(
            self.store,
            self.own,
            self.registry,
            adopt=self.adopt,
            failed=lambda: self.fails,
            clock=self.clock,
            rng=random.Random(1),
            limits=TrialLimits(2, 60.0),
        )

    def adopt(self, settings: EdgeSettings) -> None:
        self.settings = settings

    async def roll_back(self) -> None:
        """Rolls back on request, while the agent runs."""
        await asyncio.gather(self.configurator.roll_back(), self.configurator.step())

    @property
    def bytes_per_day(self) -> int:
        return self.settings.budget.bytes_per_day

    @property
    def state(self) -> tuple[UpdateState, str]:
        record = self.store.state.record
        assert record is not None
        return record.state, record.reason

    async def run(self, wanted: DesiredConfiguration, until: frozenset[UpdateState] = ENDED) -> None:
        self.configurator.desire(wanted)
        for _ in range(100):
            wait_s = await self.configurator.step()
            if self.store.state.record is not None and self.state[0] in until:
                return
            self.clock.pass_by(wait_s)
        raise AssertionError(f"never came so far: {self.store.state}")


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


async def test_a_configuration_is_tried_committed_and_survives_a_restart(device: Device) -> None:
    wanted = device.registry.add(1, 500)
    await device.run(wanted, frozenset({S.TRIAL}))
    assert device.bytes_per_day == 500
    await device.run(wanted)
    assert device.state == (S.COMMITTED, "") and device.store.state.running is not None
    assert device.store.state.running.sha256 == wanted.sha256
    device.start()
    assert device.bytes_per_day == 500


@pytest.mark.parametrize(
    ("wanted", "state"),
    [
        (lambda registry: replace(registry.add(1, 5), sha256="0" * 64), (S.REJECTED, "integrity")),
        (lambda registry: DesiredConfiguration("quiet", 9, "0" * 64), (S.REJECTED, "not_found")),
        (lambda registry: registry.add(1, 0, text="[links]\n"), (S.REJECTED, "config")),
        (lambda registry: registry.add(1, 0, text=TEXT.format("other", 1, 5)), (S.REJECTED, "config")),
        (lambda registry: registry.add(1, 2000), (S.REJECTED, "config")),
    ],
)
async def test_a_rejected_configuration_changes_nothing(device: Device, wanted, state) -> None:  # type: ignore[no-untyped-def]
    device.own = replace(device.own, budget=replace(device.own.budget, bytes_per_day=1000))
    device.start()
    await device.run(wanted(device.registry))
    assert device.state[0] is state[0] and device.state[1].startswith(state[1]), device.store.state.record
    assert device.bytes_per_day == 1000 and device.store.state.running is None
    record = device.store.state.record
    assert record is not None and record.message.endswith(".")


@pytest.mark.parametrize("error", [NoRoomError("The metadata cannot be stored."), UpdateError("The disk refuses.")])
async def test_a_configuration_whose_metadata_cannot_be_stored_is_rejected(device: Device, error: UpdateError) -> None:
    device.registry.error = error
    await device.run(device.registry.add(1, 500))
    assert device.state == (S.REJECTED, error.code) and device.bytes_per_day == 0


async def test_unsigned_bytes_are_rejected(device: Device) -> None:
    wanted = device.registry.add(1, 500)
    device.registry.blobs[wanted.sha256] = b"x" * len(device.registry.blobs[wanted.sha256])
    await device.run(wanted)
    assert device.state == (S.REJECTED, "integrity")


async def test_an_absent_gateway_is_retried(device: Device) -> None:
    wanted = device.registry.add(1, 500)
    device.registry.error = LinkDownError("away")
    device.configurator.desire(wanted)
    for _ in range(3):
        device.clock.pass_by(await device.configurator.step())
    assert device.state == (S.OFFERED, "link_down")
    device.registry.error = None
    await device.run(wanted)
    assert device.state == (S.COMMITTED, "")


async def test_a_failing_configuration_is_rolled_back(device: Device) -> None:
    await device.run(device.registry.add(1, 500))
    wanted = device.registry.add(2, 400)
    await device.run(wanted, frozenset({S.TRIAL}))
    assert device.bytes_per_day == 400
    device.fails = True
    await device.run(wanted)
    assert device.state == (S.ROLLED_BACK, "errors") and device.bytes_per_day == 500


async def test_too_many_starts_end_a_trial(device: Device) -> None:
    wanted = device.registry.add(1, 500)
    await device.run(wanted, frozenset({S.TRIAL}))
    for left in (1, 0):
        device.start()
        assert device.bytes_per_day == 500 and device.store.state.tries_left == left
    device.start()
    assert device.state == (S.ROLLED_BACK, "tries") and device.bytes_per_day == 0
    await device.run(wanted)
    assert device.bytes_per_day == 0  # it is not tried again by itself
    await device.run(replace(wanted, attempt=2))
    assert device.state == (S.COMMITTED, "")


async def test_a_configuration_that_is_forbidden_now_is_rolled_back(device: Device) -> None:
    await device.run(device.registry.add(1, 300))
    await device.run(device.registry.add(2, 500))
    device.own = replace(device.own, budget=replace(device.own.budget, bytes_per_day=400))
    device.start()
    assert device.state == (S.ROLLED_BACK, "invalid") and device.bytes_per_day == 300
    device.own = replace(device.own, budget=replace(device.own.budget, bytes_per_day=200))
    device.start()
    assert device.bytes_per_day == 200 and device.store.state.running is None


async def test_an_undone_configuration_is_rolled_back(device: Device) -> None:
    await device.run(device.registry.add(1, 300))
    wanted = device.registry.add(2, 500)
    await device.run(wanted)
    device.configurator.desire(replace(wanted, undone=True))
    await device.configurator.step()
    assert device.state == (S.ROLLED_BACK, "undone") and device.bytes_per_day == 300
    await device.configurator.step()
    assert device.bytes_per_day == 300


async def test_a_configuration_is_rolled_back_on_request_once(device: Device) -> None:
    with pytest.raises(RequestError):
        await device.roll_back()
    await device.run(device.registry.add(1, 300))
    await device.roll_back()
    assert device.state == (S.ROLLED_BACK, "asked") and device.bytes_per_day == 0
    with pytest.raises(RequestError):
        await device.roll_back()


async def test_a_rollback_during_a_download_cancels_the_configuration(device: Device) -> None:
    await device.run(device.registry.add(1, 300))
    wanted = device.registry.add(2, 400)
    content = device.registry.read

    async def read(sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        async for part in content(sha256, offset, size_bytes):
            if device.store.state.can_roll_back:
                await device.configurator.roll_back()
            yield part

    device.registry.read = read  # type: ignore[method-assign]
    await device.run(wanted)
    assert device.state == (S.CANCELLED, "asked") and device.bytes_per_day == 0
    device.start()
    assert device.bytes_per_day == 0


async def test_a_superseded_configuration_is_not_tried(device: Device) -> None:
    wanted, newer = device.registry.add(1, 300), device.registry.add(2, 400)
    adopted: list[int] = []
    device.adopt = lambda settings: adopted.append(settings.budget.bytes_per_day)  # type: ignore[method-assign]
    device.start()
    content = device.registry.read

    async def read(sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        device.configurator.desire(newer)
        async for part in content(sha256, offset, size_bytes):
            yield part

    device.registry.read = read  # type: ignore[method-assign]
    device.configurator.desire(wanted)
    for _ in range(20):
        device.clock.pass_by(await device.configurator.step())
    assert adopted == [400] and device.state == (S.COMMITTED, "")


async def test_nothing_is_cancelled_before_the_desired_state_arrives(device: Device) -> None:
    wanted = replace(device.registry.add(1, 300), not_before_s=device.clock.wall_s() + 100)
    device.configurator.desire(wanted)
    await device.configurator.step()
    device.start()
    await device.configurator.step()
    assert device.state[0] is S.STAGED
    device.configurator.desire(None)
    await device.configurator.step()
    assert device.state == (S.CANCELLED, "superseded")


async def test_a_configuration_waits_for_its_window_and_expires(device: Device) -> None:
    wanted = replace(device.registry.add(1, 300), not_before_s=device.clock.wall_s() + 100, window=Window(0, 10_080))
    device.configurator.desire(wanted)
    await device.configurator.step()
    assert device.state[0] is S.STAGED and device.bytes_per_day == 0
    await device.run(wanted)
    assert device.bytes_per_day == 300
    late = replace(device.registry.add(2, 400), expires_s=device.clock.wall_s() - 1)
    await device.run(late, frozenset({S.EXPIRED}))
    assert device.bytes_per_day == 300


async def test_undoing_another_update_ends_no_trial(device: Device) -> None:
    wanted, other = device.registry.add(1, 300), device.registry.add(2, 400)
    await device.run(wanted, frozenset({S.TRIAL}))
    device.configurator.desire(replace(other, undone=True))
    for _ in range(30):
        device.clock.pass_by(await device.configurator.step())
    assert device.state == (S.COMMITTED, "") and device.bytes_per_day == 300


async def test_undoing_another_update_cancels_a_staged_one(device: Device) -> None:
    wanted = replace(device.registry.add(1, 300), not_before_s=device.clock.wall_s() + 1000)
    device.configurator.desire(wanted)
    await device.configurator.step()
    device.configurator.desire(replace(device.registry.add(2, 400), undone=True))
    await device.configurator.step()
    assert device.state == (S.CANCELLED, "superseded")


async def test_a_configuration_that_expires_while_downloading_is_not_tried(device: Device) -> None:
    wanted = replace(device.registry.add(1, 300), expires_s=device.clock.wall_s() + 50)
    content = device.registry.read

    async def read(sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        device.clock.pass_by(100)
        async for part in content(sha256, offset, size_bytes):
            yield part

    device.registry.read = read  # type: ignore[method-assign]
    await device.run(wanted)
    assert device.state == (S.EXPIRED, "expired") and device.bytes_per_day == 0


async def test_a_full_disk_is_reported_and_the_update_continues(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    await device.run(device.registry.add(1, 500))
    wanted = device.registry.add(2, 400)
    device.configurator.desire(wanted)
    with full_disk(monkeypatch):
        for _ in range(3):
            device.clock.pass_by(await device.configurator.step())
        record = device.store.state.record
        assert record is not None
        assert record.target == wanted
        assert (record.state, record.reason) == (S.OFFERED, "no_room")
        assert "make some in the state directory" in record.update().message
        assert device.bytes_per_day == 500
    await device.run(wanted)
    assert device.state == (S.COMMITTED, "") and device.bytes_per_day == 400
    device.start()
    assert device.state == (S.COMMITTED, "") and device.bytes_per_day == 400


async def test_a_start_that_cannot_be_stored_ends_the_trial(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    await device.run(device.registry.add(1, 500))
    wanted = device.registry.add(2, 400)
    await device.run(wanted, frozenset({S.TRIAL}))
    with full_disk(monkeypatch):
        device.start()
        assert device.bytes_per_day == 500
        device.configurator.desire(wanted)
        for _ in range(5):
            device.clock.pass_by(await device.configurator.step())
        assert device.bytes_per_day == 500
    await device.run(wanted)
    assert device.state == (S.ROLLED_BACK, "disk") and device.bytes_per_day == 500
    await device.configurator.step()
    device.start()
    assert device.state == (S.ROLLED_BACK, "disk") and device.bytes_per_day == 500


@pytest.mark.parametrize("undone", [True, False])
async def test_a_configuration_withdrawn_while_offline_is_rolled_back(device: Device, undone: bool) -> None:
    first, wanted = device.registry.add(1, 400), device.registry.add(2, 300)
    for each in (first, wanted):
        await device.run(each)
    assert device.bytes_per_day == 300
    newer = replace(device.registry.add(3, 200), withdrawn=(wanted.sha256,), undone=undone)
    device.registry.error = NotFoundError("It is not listed any more.")
    await device.run(newer, frozenset({S.ROLLED_BACK if undone else S.REJECTED}))
    assert device.bytes_per_day == 400
    assert device.state == ((S.ROLLED_BACK, "undone") if undone else (S.REJECTED, "not_found"))


async def test_a_failing_configuration_is_rolled_back_on_a_full_disk(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    await device.run(device.registry.add(1, 500))
    wanted = device.registry.add(2, 400)
    await device.run(wanted, frozenset({S.TRIAL}))
    device.fails = True
    with full_disk(monkeypatch):
        await device.configurator.step()
        assert device.bytes_per_day == 500
        device.fails = False
        for _ in range(30):
            device.clock.pass_by(await device.configurator.step())
        assert device.bytes_per_day == 500
    await device.configurator.step()
    device.start()
    assert device.state == (S.ROLLED_BACK, "errors") and device.bytes_per_day == 500


async def test_a_running_configuration_is_not_tried_again(device: Device) -> None:
    wanted = device.registry.add(1, 300)
    await device.run(wanted)
    await device.run(replace(wanted, rollout="another"))
    assert device.state == (S.COMMITTED, "already")


async def test_an_empty_configuration_restores_the_devices_settings(device: Device) -> None:
    await device.run(device.registry.add(1, 300))
    await device.run(device.registry.add(2, 0, text='name = "quiet"\nversion = 2\n'))
    assert device.bytes_per_day == 0 and device.settings == device.own
    assert device.store.state.running is not None and device.store.state.running.version == 2


def test_a_damaged_file_is_set_aside_and_own_settings_are_used(device: Device) -> None:
    device.path.parent.mkdir(parents=True, exist_ok=True)
    device.path.write_bytes(b"nonsense\n")
    device.start()
    assert device.bytes_per_day == 0 and not device.path.exists()


async def test_a_power_cut_at_any_write_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of operations that a disk may have done before the power went."""
    for operations in range(100):
        device = Device(tmp_path / str(operations))
        await device.run(device.registry.add(1, 300))
        wanted = device.registry.add(2, 400)
        cut = False
        with cut_after(operations, monkeypatch):
            try:
                await device.run(wanted)
            except Cut:
                cut = True
        device.start()
        assert device.bytes_per_day in (300, 400)
        assert read_state(device.path) == device.store.state
        await device.run(wanted)
        assert (device.state, device.bytes_per_day) == ((S.COMMITTED, ""), 400)
        if not cut:
            return
    raise AssertionError("the update never came through")


CONTENT = 'name = "quiet"\nversion = 1\n# für alle\n'.encode()


class Site:
    """One that lists what is signed, and sends what it has, a few bytes at a time.

    Args:
        content: that is signed.
        sent: instead of it.
    """

    def __init__(self, content: bytes = CONTENT, sent: bytes | None = None) -> None:
        sha256 = hashlib.sha256(content).hexdigest()
        self.file = SignedFile(configuration_path("quiet", 1), len(content), sha256, {})
        self.wanted = DesiredConfiguration("quiet", 1, sha256)
        self.sent = content if sent is None else sent
        self.taken_bytes = 0

    async def files(self) -> dict[str, SignedFile]:
        return {self.file.path: self.file}

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        assert (sha256, offset, size_bytes) == (self.file.sha256, 0, self.file.size_bytes)
        for at in range(0, len(self.sent), 5):
            self.taken_bytes += len(self.sent[at : at + 5])
            yield self.sent[at : at + 5]


async def test_a_signed_configuration_is_fetched_unchanged() -> None:
    site = Site()
    file = await find_file(site, site.wanted)
    held = await fetch(site, file, site.wanted)
    assert (held.name, held.version, held.text.encode()) == ("quiet", 1, CONTENT)
    assert held.sha256 == site.wanted.sha256


async def test_another_signed_digest_is_not_fetched() -> None:
    site = Site()
    with pytest.raises(IntegrityError, match=f"signed as {site.file.sha256[:12]} .* bbbbbbbbbbbb is desired"):
        await find_file(site, replace(site.wanted, sha256="b" * 64))
    assert site.taken_bytes == 0


async def test_a_too_large_file_is_not_fetched() -> None:
    site = Site(b"#" * LIMIT_BYTES)
    assert await find_file(site, site.wanted) == site.file
    site = Site(b"#" * (LIMIT_BYTES + 1))
    with pytest.raises(IntegrityError, match=f"{LIMIT_BYTES + 1} bytes"):
        await find_file(site, site.wanted)


@pytest.mark.parametrize("sent", [b"", CONTENT[:-1], CONTENT.replace(b"1", b"2"), CONTENT + b"#"])
async def test_different_bytes_are_refused(sent: bytes) -> None:
    site = Site(sent=sent)
    with pytest.raises(IntegrityError, match="other bytes than were signed"):
        await fetch(site, site.file, site.wanted)


async def test_an_endless_answer_is_not_read() -> None:
    site = Site(sent=CONTENT * 1000)
    with pytest.raises(IntegrityError):
        await fetch(site, site.file, site.wanted)
    assert site.taken_bytes <= len(CONTENT) + 5


async def test_a_binary_file_is_refused() -> None:
    site = Site(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is no text"):
        await fetch(site, site.file, site.wanted)
