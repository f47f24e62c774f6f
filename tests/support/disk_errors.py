"""An outbox on a disk of which each change fails in turn."""

from pathlib import Path

from support.faulty_disk import counts_on, quick_folder

# Each change that an outbox's life makes fails in turn.
_OUTBOX = """
import asyncio, json, shutil, sys
from pathlib import Path
from support.faulty_disk import calls, fail, failures
from support.outbox_faults import LIMITS, promise
from support.escalations import response
from firstline_core.clock import SimulatedClock
from firstline_core.errors import CapacityError
from firstline_core.types import Status
from firstline_edge.outbox.outbox import Outbox

root = Path(sys.argv[1])

async def life(path, kept):
    refused = 0
    try:
        outbox = Outbox(path, LIMITS, clock=SimulatedClock())
        outbox.check()
    except CapacityError:
        return None, 1
    outbox._database.connection.execute("PRAGMA wal_autocheckpoint = 5")
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
    for after, break_disk in failures(range(int(sys.argv[2]), changes + 1, int(sys.argv[3]))):
        path, kept = root / f"{after}" / "outbox.db", {}
        break_disk()
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


# A damaged outbox, whose replacement fails at each change in turn; then it is opened again.
_REPLACEMENT = """
import asyncio, json, shutil, sys
from pathlib import Path
from support.faulty_disk import calls, fail, failures
from support.outbox_faults import LIMITS, promise
from firstline_core.clock import SimulatedClock
from firstline_core.errors import CapacityError
from firstline_edge.outbox.outbox import Outbox

root = Path(sys.argv[1])

def opened(folder):
    outbox = Outbox(folder / "outbox.db", LIMITS, clock=SimulatedClock())
    outbox.check()
    return outbox

async def main():
    kept, rounds, refused = root / "kept", 0, 0
    outbox = opened(kept)
    items = [promise(size) for size in (1, 3_000, 1)]
    for item in items:
        await outbox.put(item)
    outbox.close()
    content = bytearray((kept / "outbox.db").read_bytes())
    content[63] ^= 1  # of the version
    (kept / "outbox.db").write_bytes(content)
    work = root / "work"
    shutil.copytree(kept, work)
    before = calls()
    opened(work).close()
    for after, break_disk in failures(range(1, calls() - before + 1, int(sys.argv[2]))):
        shutil.rmtree(work)
        shutil.copytree(kept, work)
        break_disk()
        try:
            opened(work).close()
        except CapacityError:
            refused += 1
        fail(-1, 0)
        outbox = opened(work)
        found = {item.request.request_id for item in await outbox.pending(9)}
        assert found == {item.request.request_id for item in items}, (after, len(found), outbox.damage)
        outbox.close()
        rounds += 1
    print(json.dumps({"rounds": rounds, "refusing": refused}))

asyncio.run(main())
"""


# The whole agent: started, and from some change on its disk refuses everything; then it is well again.
_AGENT = """
import asyncio, errno, json, sys
from pathlib import Path
from support.agent import edge_settings
from support.faulty_disk import fail
from firstline_edge.app import EdgeAgent

picture = Path(sys.argv[2]).read_bytes()

async def main():
    promised = refused = 0
    for after in range(1, 100, 11):  # the agent writes other files at the same time, so the last have room for promises
        links = [{"kind": "http", "url": "http://127.0.0.1:9"}]
        settings = edge_settings(Path(sys.argv[1]) / f"state{after}", links=links, policy__min_threshold=1.0)
        durable = []
        async with EdgeAgent(settings) as agent:
            fail(after, errno.EIO if after % 2 else errno.ENOSPC, times=-1, torn=not after % 2)
            for _ in range(6):
                answer = (await agent.data_plane.infer_file("digits", picture)).answer  # whatever the disk does
                durable += [answer.request_id] if answer.durable else []
                assert answer.durable or answer.reason.value == "outbox_full"
                assert agent.outbox.depth == len(durable)
            refused += 6 - len(durable)
            fail(-1, 0)
            assert agent.data_plane.ready() and agent.operations.status()["outbox"]["items"] == len(durable)
        async with EdgeAgent(settings) as agent:
            assert agent.outbox.depth == len(durable)
            for request_id in durable:
                assert (await agent.outbox.answer(request_id, "local")).answer.durable
        promised += len(durable)
    print(json.dumps({"promised": promised, "refused": refused}))

asyncio.run(main())
"""


def errors_at(first: int, step: int) -> dict[str, int]:
    """Lets every `step`-th change fail; what happened."""
    return _counts_of(_OUTBOX, first, step)


def replacement_errors(step: int) -> dict[str, int]:
    """Lets every `step`-th change that the replacement of a damaged outbox makes fail; what happened."""
    return _counts_of(_REPLACEMENT, step)


def agent_on_a_failing_disk(picture: Path) -> dict[str, int]:
    """Answers of agents whose disk begins to fail at one change or another; how many were promised a correction."""
    return _counts_of(_AGENT, picture)


def _counts_of(script: str, *arguments: object) -> dict[str, int]:
    with quick_folder() as folder:
        root = folder / "disk"
        root.mkdir()
        return counts_on(root, script, *arguments)
