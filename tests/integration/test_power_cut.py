"""Power cuts under the outbox and the gateway's store: whatever was acknowledged is there afterwards, once.

`make -C bench chaos` cuts more often.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import store_faults
from support.agent import DIGITS
from support.faulty_disk import Recording, quick_folder, run_on
from support.outbox_faults import check_crash, recorded

from firstline_core.bundle.store import open_bundle
from firstline_core.storage.files import read_checked
from firstline_core.telemetry.decisions import lines
from firstline_edge.models.copies import BundleCopies


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def recording(disk: Path) -> Recording:
    return recorded(disk / "state", seed=1, steps=4)


async def test_nothing_acknowledged_is_lost_by_a_power_cut(recording: Recording, disk: Path) -> None:
    rng = random.Random(7)
    points = recording.points()
    assert len(recording.marks) > 20
    for point in [*points[:30], *sorted(rng.sample(points[30:], 120)), points[-1]]:
        await check_crash(recording, point, rng.randrange(1 << 30), disk / "crash")


def test_store_keeps_acknowledged_records_after_a_power_cut(disk: Path) -> None:
    at_work, rng = store_faults.recorded(disk / "store", seed=1, steps=4), random.Random(7)
    points = at_work.points()
    first = next(number for number, mark in at_work.marks if mark.startswith("delivered"))
    before = [point for point in points if point <= first]
    after = [point for point in points if point > first]
    assert len(at_work.marks) > 20
    for point in [*rng.sample(before, 10), *sorted(rng.sample(after, 80)), points[-1]]:
        store_faults.check_crash(at_work, point, rng.randrange(1 << 30), disk / "crash")


# Files that are replaced, a log that changes files, and a copy of a bundle: all that is not in a database.
_FILES = """
import sys
from pathlib import Path
from support.agent import DIGITS
from support.faulty_disk import mark
from firstline_core.bundle.store import open_bundle
from firstline_core.storage.files import make_folder, with_checksum, write_whole
from firstline_core.telemetry.decisions import DecisionLog
from firstline_edge.models.copies import BundleCopies

root = Path(sys.argv[1])
make_folder(root / "audits")
log = DecisionLog(root / "decisions.jsonl", max_bytes=1500)
for number in range(12):
    write_whole(root / "audits" / "certificates.json", with_checksum(b"%d" % number + b" " * 5000))
    mark(f"wrote {number}")
    for line in range(4):
        log.append({"request_id": "r", "number": 4 * number + line})
log.close()
BundleCopies(root / "bundles", 1 << 30).keep(open_bundle(DIGITS))
mark("copied 1")
"""


def test_files_are_whole_after_a_power_cut(disk: Path) -> None:
    root, crash = disk / "files", disk / "crash"
    root.mkdir()
    _, recording = run_on(root, _FILES)
    rng = random.Random(3)
    for point in recording.points():
        marks = recording.crash(point, rng, crash)
        written = [int(number) for what, number in marks if what == "wrote"]
        standing = crash / "audits" / "certificates.json"
        found = int(read_checked(standing)) if standing.exists() else -1
        assert found - (written[-1] if written else -1) in (0, 1)
        numbers = [line["number"] for line in lines(crash / "decisions.jsonl")]
        assert numbers == sorted(set(numbers))
        copy = BundleCopies(crash / "bundles", 1 << 30).of(DIGITS)
        assert copy is not None or ["copied", "1"] not in marks
        if copy is not None:
            assert open_bundle(copy).manifest.name == "digits"
