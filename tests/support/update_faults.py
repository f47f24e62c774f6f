"""A device's updates on a disk of which each change fails in turn, or which loses power after any of them."""

import random
from pathlib import Path

from support.faulty_disk import Recording, counts_on, run_on
from support.updates import Device, HastyClock, Registry, bundle_at

from firstline_core.fleet.twin import DesiredModel
from firstline_core.fleet.update import ENDED, UpdateState

VERSIONS = (2, 3, 4)

_LIFE = """
import asyncio, sys
from pathlib import Path
from support.faulty_disk import mark
from support.update_faults import live, site

device, models = site(Path(sys.argv[1]), Path(sys.argv[2]))
asyncio.run(live(device, models))
mark("over")
"""

# Each change that a device's updates make fails in turn.
_ERRORS = """
import asyncio, json, shutil, sys
from pathlib import Path
from support.faulty_disk import calls, fail, failures
from support.update_faults import ended, live, site

root, bundles = Path(sys.argv[1]), Path(sys.argv[2])

async def main():
    before = calls()
    device, models = site(root / "sample", bundles)
    await live(device, models)
    changes = calls() - before
    rounds, states = 0, {}
    for after, break_disk in failures(range(int(sys.argv[3]), changes + 1, int(sys.argv[4]))):
        device, models = site(root / str(after), bundles)
        break_disk()
        await live(device, models, ends=False)
        fail(-1, 0)
        state = await ended(device, models[-1])  # the process goes on
        states[state] = states.get(state, 0) + 1
        device.start()
        assert await ended(device, models[-1]) == state  # and so does the next one
        shutil.rmtree(root / str(after))
        rounds += 1
    print(json.dumps({"changes": changes, "rounds": rounds, "states": states}))

asyncio.run(main())
"""


def bundles_at(folder: Path) -> None:
    """What the device is set up with, and what comes from the fleet: on another disk, which never fails."""
    for version in (1, *VERSIONS):
        bundle_at(folder / str(version), version)


def site(disk: Path, bundles: Path) -> tuple[Device, list[DesiredModel]]:
    """A device that keeps what it has on `disk`, and what its fleet desires of it, one after the other."""
    registry = Registry(random.Random(1))
    models = [registry.add(bundles / str(version), f"r{version}") for version in VERSIONS]
    device = Device(disk, registry, HastyClock())
    device.setup = bundles / "1"
    return device, models


async def live(device: Device, models: list[DesiredModel], *, ends: bool = True) -> None:
    """All updates, with a restart while each is tried; whatever the disk does, something that verifies answers."""
    device.start()
    for model in models:
        device.updater.receive([model])
        restarted = False
        for _ in range(40):
            wait_s = await device.step()
            assert device.version in (1, *VERSIONS)
            record = device.installed.record
            if record is not None and record.target == model and record.ended:
                break
            if record is not None and record.state is UpdateState.TRIAL and not restarted:
                restarted = True
                device.start()
                assert device.version in (1, *VERSIONS)
                device.updater.receive([model])
            device.clock.pass_by(wait_s)
        else:
            assert not ends, device.installed.record


async def ended(device: Device, model: DesiredModel) -> str:
    """How the update ends, with a disk that is well."""
    assert device.version in (1, *VERSIONS)
    device.updater.receive([model])
    await device.run()
    record = device.installed.record
    assert record.state in ENDED and not device.installed.in_trial
    assert (device.version == model.version) is (record.state is UpdateState.COMMITTED)
    left = [path for path in (device.folder / "models").rglob("fetch/*") if path.is_file()]
    assert left == [], "what was on its way is in the way"
    return record.state.value


def recorded(root: Path, bundles: Path) -> Recording:
    """The life of a device, change by change."""
    _, recording = run_on(root, _LIFE, str(bundles))
    return recording


async def check_crash(recording: Recording, point: int, seed: int, crash: Path, bundles: Path) -> None:
    """After a power cut before that change the device answers with what verifies, and gets where it was to get."""
    recording.crash(point, random.Random(seed), crash)
    device, models = site(crash, bundles)
    device.start()
    assert device.version in (1, *VERSIONS)
    assert await ended(device, models[-1]) == UpdateState.COMMITTED


def errors_at(root: Path, bundles: Path, first: int, step: int) -> dict[str, object]:
    """Lets every `step`-th change fail; what happened."""
    return counts_on(root, _ERRORS, bundles, first, step)
