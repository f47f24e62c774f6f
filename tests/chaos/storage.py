"""Power cuts, flipped bits and failing disks under an outbox, many of them: `python -m chaos.storage --help`.

A recording of an outbox at work differs from run to run, by how its threads meet; the cuts made of it do not. Where one
fails, the recording is kept, with the point and the seed that repeat it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import time
from pathlib import Path

from support.disk_errors import errors_at
from support.faulty_disk import quick_folder
from support.outbox_faults import Kept, check_crash, filled, recorded


async def cut_power(folder: Path, seed: int, recordings: int, steps: int, cuts: int) -> dict[str, int]:
    """Cuts the power before every change of some recordings, `cuts` times each; how often that was."""
    rng, done, acknowledged = random.Random(seed), 0, 0
    for number in range(recordings):
        recording = recorded(folder / f"state{number}", rng.randrange(1 << 30), steps)
        acknowledged += len(recording.marks)
        for point in recording.points():
            for _ in range(cuts):
                of_this = rng.randrange(1 << 30)
                try:
                    await check_crash(recording, point, of_this, folder / "crash")
                except BaseException:
                    kept = shutil.copy(folder / f"state{number}.recording", Path.cwd() / "failed.recording")
                    print(f"{kept}: cut before change {point} with seed {of_this}", file=sys.stderr)
                    raise
                done += 1
    return {"power_cuts": done, "acknowledged": acknowledged, "lost": 0, "twice": 0}


async def flip_bits(folder: Path, seed: int, every_bytes: int) -> dict[str, int]:
    """Flips one bit in each stretch of an outbox's files, one at a time; what that cost."""
    rng, flips, lost, most = random.Random(seed), 0, 0, 0
    for closed in (True, False):
        kept = await filled(folder / f"kept{closed}", rng, closed=closed)
        for file in sorted(kept.folder.iterdir()):
            whole = file.read_bytes()
            for at in range(0, len(whole), every_bytes):
                content = bytearray(whole)
                content[min(len(whole) - 1, at + rng.randrange(every_bytes))] ^= 1 << rng.randrange(8)
                copy = Kept(folder / "work")
                shutil.rmtree(copy.folder, ignore_errors=True)
                shutil.copytree(kept.folder, copy.folder)
                (copy.folder / file.name).write_bytes(content)
                copy.promises, copy.answers = kept.promises, kept.answers
                cost, _ = await copy.check(lost_most=1)
                flips, lost, most = flips + 1, lost + cost, max(most, cost)
    return {"bit_flips": flips, "records_lost": lost, "most_lost_by_one": most, "wrong_answers": 0}


def main() -> None:
    """Runs all three, and prints what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recordings", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="rounds of promises in each of a recording's three parts")
    parser.add_argument("--cuts", type=int, default=1, help="different cuts before each change")
    parser.add_argument("--flip-every-bytes", type=int, default=4096)
    parser.add_argument("--fail-every", type=int, default=2, help="changes, of which one is made to fail")
    asked = parser.parse_args()
    started_s = time.monotonic()
    with quick_folder() as folder:
        found: dict[str, object] = dict(vars(asked))
        found["power"] = asyncio.run(cut_power(folder, asked.seed, asked.recordings, asked.steps, asked.cuts))
        found["flips"] = asyncio.run(flip_bits(folder, asked.seed, asked.flip_every_bytes))
    found["errors"] = errors_at(first=1, step=asked.fail_every)
    print(json.dumps(found | {"seconds": round(time.monotonic() - started_s, 1)}, indent=2))


if __name__ == "__main__":
    main()
