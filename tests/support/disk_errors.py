"""An outbox on a disk of which each change fails in turn."""

from __future__ import annotations

import json

from support.faulty_disk import quick_folder, run_on

# For each change that an outbox's life makes, in turn: it fails (once, or from there on until somebody frees space),
# as a full disk or a failing one does, with what was to be written left out or half there.
_OUTBOX = """
import asyncio, errno, itertools, json, shutil, sys
from pathlib import Path
from support.faulty_disk import calls, fail
from support.outbox_faults import LIMITS, promise
from support.escalations import response
from firstline_core.clock import SimulatedClock
from firstline_core.errors import CapacityError
from firstline_core.types import Status
from firstline_edge.outbox.store import Outbox

root = Path(sys.argv[1])

async def life(path, kept):
    refused = 0
    try:
        outbox = Outbox(path, LIMITS, clock=SimulatedClock())
    except CapacityError:
        return None, 1
    outbox._writer._connection.execute("PRAGMA wal_autocheckpoint = 5")
    for number in range(4):
        item = promise(10_000 if number == 2 else 1)
        try:
            await outbox.put(item)
            kept[item.request.request_id] = False
        except CapacityError:
            refused += 1
    for request_id in list(kept)[:2]:
        try:
            await outbox.finish(request_id, response(item.request, Status.FINAL, rows=3))
            kept[request_id] = True
        except CapacityError:
            refused += 1
    return outbox, refused

async def compare(outbox, kept):
    waiting = {item.request.request_id for item in await outbox.pending(99)}
    assert outbox.depth == len(waiting)
    for request_id, ended in kept.items():
        found = (await outbox.answer(request_id, "local")).answer
        assert (found is not None) and (request_id not in waiting if ended else request_id in waiting)
    return waiting

async def main():
    rounds = refusals = 0
    sample = calls()
    outbox, _ = await life(root / "sample" / "outbox.db", {})
    outbox.close()
    changes = calls() - sample
    for after, (error, torn), times in itertools.product(
        range(int(sys.argv[2]), changes + 1, int(sys.argv[3])), ((errno.ENOSPC, True), (errno.EIO, False)), (1, -1)
    ):
        path, kept = root / f"{after}" / "outbox.db", {}
        fail(after, error, times=times, torn=torn)
        outbox, refused = await life(path, kept)
        if outbox is not None:
            waiting = await compare(outbox, kept)
            assert waiting <= set(kept), "a refused promise is counted"
        fail(-1, 0)
        if outbox is not None:
            await outbox.put(item := promise())  # the service stayed up
            kept[item.request.request_id] = False
            await compare(outbox, kept)
            outbox.close()
        outbox = Outbox(path, LIMITS, clock=SimulatedClock())
        assert outbox.damage == "", outbox.damage
        await compare(outbox, kept)
        outbox.close()
        shutil.rmtree(path.parent)
        rounds, refusals = rounds + 1, refusals + bool(refused)
    print(json.dumps({"changes": changes, "rounds": rounds, "refusing": refusals}))

asyncio.run(main())
"""


def errors_at(first: int, step: int) -> dict[str, int]:
    """Lets every `step`-th change fail; what happened."""
    with quick_folder() as folder:
        root = folder / "disk"
        root.mkdir()
        said, _ = run_on(root, _OUTBOX, str(first), str(step), record=False)
    found: dict[str, int] = json.loads(said)
    return found
