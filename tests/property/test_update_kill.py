"""Killed at every persisted step of an update: the device always answers with a bundle that verifies, and ends."""

import os
import random
import signal
import sys
from pathlib import Path

import pytest
from support.forks import run_forked
from support.updates import Cut, Device, HastyClock, Registry, bundle_at, cut_after

from firstline_core.fleet.update import ENDED, UpdateState

LOAD_THAT_KILLS = """
import asyncio, random, sys
from pathlib import Path

sys.path += sys.argv[3:]
from support.updates import Device, HastyClock, Registry

registry = Registry(random.Random(0))
device = Device(Path(sys.argv[1]), registry, HastyClock())
device.start()
device.serving.kills = {2}
asyncio.run(device.run(registry.add(Path(sys.argv[2]))))
print(device.version, *device.state)
"""
"""A process of a device that version 2 kills while it is loaded, before its trial."""
SEEDS = int(os.environ.get("FIRSTLINE_SEEDS", "20"))
"""`make -C tests update-kill` takes five hundred."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return [bundle_at(folder / str(version), version) for version in (2, 3, 4)]


async def lived(folder: Path, bundles: list[Path], seed: int, patch: pytest.MonkeyPatch) -> None:
    """One device's life: three updates, some of which are bad, each cut off somewhere, again and again."""
    rng = random.Random(seed)
    registry = Registry(rng)
    clock = HastyClock()
    device = Device(folder, registry, clock, tries=rng.randint(1, 3))
    bundle_at(device.setup, 1)
    device.start()
    good = {1}
    for bundle in bundles:
        desired = registry.add(bundle, f"r{bundle.name}")
        bad = rng.random() < 0.3
        device.breaks = {desired.version} if bad else set()
        registry.cuts = rng.choice((0.0, 0.2))
        good |= {desired.version}
        # Before it is killed for the last time it never runs for longer than this number of operations of the disk.
        for _ in range(rng.randint(0, 4)):
            with cut_after(rng.randint(0, 60), patch):
                try:
                    device.start()
                    device.updater.receive([desired])
                    assert device.version in good
                    await device.run()
                except Cut:
                    pass
        device.start()
        assert device.version in good
        device.updater.receive([desired])
        await device.run()
        record = device.installed.record
        assert record.state in ENDED and not device.installed.in_trial
        if bad:
            assert record.state in (UpdateState.REJECTED, UpdateState.ROLLED_BACK)
            assert device.version != desired.version
        if record.state is UpdateState.COMMITTED:
            assert device.version == desired.version
        device.start()
        assert device.version in good


@pytest.mark.parametrize("part", range(10))
async def test_a_killed_device_ends_on_a_valid_bundle(
    tmp_path: Path, bundles: list[Path], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(part * SEEDS // 10, (part + 1) * SEEDS // 10):
        await lived(tmp_path / str(seed), bundles, seed, monkeypatch)


async def test_a_kill_after_any_step_leaves_a_valid_bundle(
    tmp_path: Path, bundles: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One good update, cut after 0, 1, 2 ... operations, until one goes through without being cut."""
    for operations in range(1000):
        registry, clock = Registry(random.Random(0)), HastyClock()
        device = Device(tmp_path / str(operations), registry, clock)
        bundle_at(device.setup, 1)
        desired = registry.add(bundles[0])
        cut = False
        with cut_after(operations, monkeypatch):
            try:
                device.start()
                device.updater.receive([desired])
                await device.run()
            except Cut:
                cut = True
        device.start()
        assert device.version in (1, 2)
        device.updater.receive([desired])
        await device.run()
        assert device.installed.record.state is UpdateState.COMMITTED and device.version == 2
        if not cut:
            assert operations > 30
            return
    raise AssertionError("an update never ends")


def test_a_model_whose_loading_kills_the_agent_is_rejected(tmp_path: Path, bundles: list[Path]) -> None:
    device = Device(tmp_path / "device", Registry(random.Random(0)), HastyClock())
    bundle_at(device.setup, 1)

    script = tmp_path / "load.py"
    script.write_text(LOAD_THAT_KILLS)

    def process() -> tuple[int, str]:
        ended = run_forked(str(script), device.folder, bundles[0], *sys.path)
        return ended.returncode, ended.stdout.strip()

    for tries in range(1, device.tries + 1):
        assert process() == (-signal.SIGKILL, "")
        device.start()
        (update,) = device.updater.updates()
        assert (update.state, update.tries) == (UpdateState.STAGED, tries)
    for _ in range(2):
        assert process() == (0, "1 rejected tries"), "the agent runs with the previous model"
