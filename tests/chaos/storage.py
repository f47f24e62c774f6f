"""Power cuts, flipped bits and failing disks under an outbox, and power cuts under a gateway's store; many of them.

A recording of either at work differs from run to run, by how its threads meet; the cuts made of it do not. Where one
fails, the recording is kept, with the point and the seed that repeat it.
"""

import asyncio
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support import store_faults
from support.faulty_disk import Recording
from support.outbox_faults import Kept, check_crash, filled, recorded

_STEPS = 5  # rounds of promises in each of a recording's three parts


class Cuts(NamedTuple):
    """What was cut: how often, and how much had been acknowledged in all."""

    cuts: int
    acknowledged: int


@dataclass(slots=True)
class Flips:
    """What single flipped bits cost.

    Args:
        flips: one bit each.
        costly: that lost a record or more.
        unopened: after which SQLite could not open the database, so that all records were lost.
        silent: that lost a record without a report.
    """

    flips: int = 0
    costly: int = 0
    unopened: int = 0
    silent: int = 0


class Workload(NamedTuple):
    """What is recorded: an outbox at work, or a gateway's SQLite store with deliveries, audits, keys and devices."""

    name: str
    record: Callable[[Path, int, int], Recording]
    check_crash: Callable[[Recording, int, int, Path], None]


def _check_outbox(recording: Recording, point: int, seed: int, into: Path) -> None:
    asyncio.run(check_crash(recording, point, seed, into))


OUTBOX = Workload("outbox", recorded, _check_outbox)
STORE = Workload("gateway's store", store_faults.recorded, store_faults.check_crash)


def cut_power(workload: Workload, folder: Path, seed: int, recordings: int, report: Callable[[str], None]) -> Cuts:
    """Cuts the power before every change of some recordings.

    Raises:
        AssertionError: something acknowledged was lost or counts twice, or the store does not open.
    """
    rng, done, acknowledged = random.Random(f"{seed} {workload.name}"), 0, 0
    for number in range(recordings):
        kept = folder / f"{workload.name} {number}"
        recording = workload.record(kept, rng.randrange(1 << 30), _STEPS)
        acknowledged += len(recording.marks)
        for point in recording.points():
            of_this = rng.randrange(1 << 30)
            try:
                workload.check_crash(recording, point, of_this, folder / "crash")
            except BaseException:
                _keep(kept.with_name(f"{kept.name}.recording"), point, of_this)
                raise
            done += 1
        report(f"{done} power cuts of the {workload.name}")
    return Cuts(done, acknowledged)


async def flip_bits(folder: Path, seed: int, every_bytes: int) -> Flips:
    """Flips one bit in each stretch of an outbox's files, one at a time.

    Raises:
        AssertionError: something wrong was given out.
    """
    rng, found = random.Random(seed), Flips()
    for closed in (True, False):
        original = await filled(folder / f"kept{closed}", rng, closed=closed)
        for file in sorted(original.folder.iterdir()):
            whole = file.read_bytes()
            for at in range(0, len(whole), every_bytes):
                content = bytearray(whole)
                content[min(len(whole) - 1, at + rng.randrange(every_bytes))] ^= 1 << rng.randrange(8)
                copy = Kept(folder / "work")
                shutil.rmtree(copy.folder, ignore_errors=True)
                shutil.copytree(original.folder, copy.folder)
                (copy.folder / file.name).write_bytes(content)
                copy.promises, copy.answers = original.promises, original.answers
                cost, damage = await copy.check(lost_most=len(original.promises))
                found.flips += 1
                found.costly += cost > 0
                found.unopened += "SQLite cannot open it" in damage
                found.silent += cost > 0 and not damage
    return found


def _keep(recording: Path, point: int, seed: int) -> None:
    copy = shutil.copy(recording, Path.cwd() / "failed.recording")
    print(f"{copy}: cut before change {point} with seed {seed}", file=sys.stderr)
