"""Updates of the configuration: fetched, verified, bounded, tried, committed or rolled back, also after power cuts."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.updates import CONFIGURATION_TEXT, ConfigurationDevice, Cut, cut_after, full_disk

from firstline_core.errors import ConfigError, IntegrityError, NoRoomError, UpdateError
from firstline_core.fleet.configuration import LIMIT_BYTES, configuration_path
from firstline_core.fleet.twin import DesiredConfiguration, Window
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.configuration.configurator import fetch, find_file
from firstline_edge.fleet.configuration.installed_configuration import open_configuration

S = UpdateState


@pytest.fixture
def device(tmp_path: Path) -> ConfigurationDevice:
    return ConfigurationDevice(tmp_path)


@pytest.mark.parametrize(
    ("desired_from", "reason"),
    [
        (lambda registry: replace(registry.add(1, 5), sha256="0" * 64), "integrity"),
        (lambda registry: DesiredConfiguration("quiet", 9, "0" * 64), "not_found"),
        (lambda registry: registry.add(1, 0, text="[links]\n"), "config"),
        (lambda registry: registry.add(1, 0, text=CONFIGURATION_TEXT.format("other", 1, 5)), "config"),
        (lambda registry: registry.add(1, 2000), "config"),
    ],
)
async def test_a_rejected_configuration_changes_nothing(device: ConfigurationDevice, desired_from, reason) -> None:
    device.own = replace(device.own, budget=replace(device.own.budget, bytes_per_day=1000))
    device.start()
    await device.run(desired_from(device.registry))
    assert device.state == (S.REJECTED, reason), device.file.state.record
    assert device.bytes_per_day == 1000 and device.file.state.running is None
    assert device.file.state.record.message.endswith(".")


@pytest.mark.parametrize("error", [NoRoomError("The metadata cannot be stored."), UpdateError("The disk refuses.")])
async def test_unstorable_metadata_rejects_the_configuration(device: ConfigurationDevice, error: UpdateError) -> None:
    device.registry.error = error
    await device.run(device.registry.add(1, 500))
    assert device.state == (S.REJECTED, error.code) and device.bytes_per_day == 0


async def test_a_configuration_that_is_forbidden_now_is_rolled_back(device: ConfigurationDevice) -> None:
    await device.run(device.registry.add(1, 300))
    await device.run(device.registry.add(2, 500))
    device.own = replace(device.own, budget=replace(device.own.budget, bytes_per_day=400))
    device.start()
    assert device.state == (S.ROLLED_BACK, "invalid") and device.bytes_per_day == 300
    device.own = replace(device.own, budget=replace(device.own.budget, bytes_per_day=200))
    device.start()
    assert device.bytes_per_day == 200 and device.file.state.running is None


async def test_a_rollback_during_a_download_cancels_the_configuration(device: ConfigurationDevice) -> None:
    await device.run(device.registry.add(1, 300))
    desired = device.registry.add(2, 400)
    content = device.registry.read

    async def read(sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        async for part in content(sha256, offset, size_bytes):
            if device.file.state.can_roll_back:
                await device.configurator.roll_back()
            yield part

    device.registry.read = read
    await device.run(desired)
    assert device.state == (S.CANCELLED, "asked") and device.bytes_per_day == 0
    device.start()
    assert device.bytes_per_day == 0


async def test_a_superseded_configuration_is_not_tried(device: ConfigurationDevice) -> None:
    desired, newer = device.registry.add(1, 300), device.registry.add(2, 400)
    adopted: list[int] = []
    device.adopt = lambda settings: adopted.append(settings.budget.bytes_per_day)
    device.start()
    content = device.registry.read

    async def read(sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        device.configurator.receive(newer)
        async for part in content(sha256, offset, size_bytes):
            yield part

    device.registry.read = read
    device.configurator.receive(desired)
    for _ in range(20):
        device.clock.pass_by(await device.configurator.step())
    assert adopted == [400] and device.state == (S.COMMITTED, "")


async def test_nothing_is_cancelled_before_the_desired_state_arrives(device: ConfigurationDevice) -> None:
    desired = replace(device.registry.add(1, 300), not_before_s=device.clock.wall_s() + 100)
    device.configurator.receive(desired)
    await device.configurator.step()
    device.start()
    await device.configurator.step()
    assert device.state[0] is S.STAGED
    device.configurator.receive(None)
    await device.configurator.step()
    assert device.state == (S.CANCELLED, "superseded")


async def test_a_configuration_waits_for_its_window_and_expires(device: ConfigurationDevice) -> None:
    desired = replace(device.registry.add(1, 300), not_before_s=device.clock.wall_s() + 100, window=Window(0, 10_080))
    device.configurator.receive(desired)
    await device.configurator.step()
    assert device.state[0] is S.STAGED and device.bytes_per_day == 0
    await device.run(desired)
    assert device.bytes_per_day == 300
    late = replace(device.registry.add(2, 400), expires_s=device.clock.wall_s() - 1)
    await device.run(late, frozenset({S.EXPIRED}))
    assert device.bytes_per_day == 300


async def test_a_full_disk_is_reported_and_the_update_continues(
    device: ConfigurationDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    await device.run(device.registry.add(1, 500))
    desired = device.registry.add(2, 400)
    device.configurator.receive(desired)
    with full_disk(monkeypatch):
        for _ in range(3):
            device.clock.pass_by(await device.configurator.step())
        record = device.file.state.record
        assert record.target == desired
        assert (record.state, record.reason) == (S.OFFERED, "no_room")
        assert "make some in the state directory" in record.update().message
        assert device.bytes_per_day == 500
    await device.run(desired)
    assert device.state == (S.COMMITTED, "") and device.bytes_per_day == 400
    device.start()
    assert device.state == (S.COMMITTED, "") and device.bytes_per_day == 400


async def test_an_empty_configuration_restores_the_devices_settings(device: ConfigurationDevice) -> None:
    await device.run(device.registry.add(1, 300))
    await device.run(device.registry.add(2, 0, text='name = "quiet"\nversion = 2\n'))
    assert device.bytes_per_day == 0 and device.settings == device.own
    assert device.file.state.running.version == 2


async def test_a_rollback_to_a_configuration_that_is_not_allowed_is_reported(device: ConfigurationDevice) -> None:
    await device.run(device.registry.add(1, 500))
    await device.run(device.registry.add(2, 300))
    device.own = replace(device.own, budget=replace(device.own.budget, bytes_per_day=400))
    device.start()
    assert device.bytes_per_day == 300
    await device.roll_back()
    assert device.bytes_per_day == 400 and device.reported[-2:] == [1, None]


async def test_the_previous_configuration_may_be_tried_again(device: ConfigurationDevice) -> None:
    first = device.registry.add(1, 300)
    await device.run(first)
    await device.run(device.registry.add(2, 400))
    await device.run(replace(first, rollout="again"))
    assert device.state == (S.COMMITTED, "") and device.bytes_per_day == 300
    await device.roll_back()
    assert device.bytes_per_day == 400


def test_a_damaged_file_is_set_aside_and_own_settings_are_used(device: ConfigurationDevice) -> None:
    device.path.parent.mkdir(parents=True, exist_ok=True)
    device.path.write_bytes(b"nonsense\n")
    device.start()
    assert device.bytes_per_day == 0 and not device.path.exists()


async def test_a_power_cut_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of operations that a disk may have done before the power went."""
    for operations in range(100):
        device = ConfigurationDevice(tmp_path / str(operations))
        await device.run(device.registry.add(1, 300))
        desired = device.registry.add(2, 400)
        cut = False
        with cut_after(operations, monkeypatch):
            try:
                await device.run(desired)
            except Cut:
                cut = True
        device.start()
        assert device.bytes_per_day in (300, 400)
        assert open_configuration(device.path).state == device.file.state
        await device.run(desired)
        assert (device.state, device.bytes_per_day) == ((S.COMMITTED, ""), 400)
        if not cut:
            return
    raise AssertionError("the update never came through")


CONTENT = 'name = "quiet"\nversion = 1\n# für alle\n'.encode()


class Site:
    """A registry that lists signed files, and sends their content a few bytes at a time.

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
    fetched = await fetch(site, file, site.wanted)
    assert (fetched.name, fetched.version, fetched.text.encode()) == ("quiet", 1, CONTENT)
    assert fetched.sha256 == site.wanted.sha256


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
