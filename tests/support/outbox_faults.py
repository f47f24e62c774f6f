"""An outbox on a faulty disk, and the checks of the files that a power cut leaves."""

import random
import shutil
from pathlib import Path

from support.escalations import request, response
from support.faulty_disk import Recording, run_on

from firstline_core.clock import SimulatedClock
from firstline_core.errors import UnknownAnswerError
from firstline_core.protocol.oip import encode_request
from firstline_core.storage.seals import Seal
from firstline_core.types import InferResponse, Status
from firstline_edge.outbox.database import Receiver
from firstline_edge.outbox.item import pack_response
from firstline_edge.outbox.outbox import Outbox, OutboxItem
from firstline_edge.settings.settings import OutboxSection

LIMITS = OutboxSection(limit_items=1_000_000)

# Promises of one page and of many, several at a time so that they share commits; some end, some are announced. The
# log is taken over into the database often, and the outbox closed and opened again in between.
_WORKLOAD = """
import asyncio, random, sys
from pathlib import Path
from support.escalations import request, response
from support.faulty_disk import mark
from support.outbox_faults import LIMITS
from firstline_core.clock import SimulatedClock
from firstline_core.types import Status
from firstline_edge.outbox.database import Receiver
from firstline_edge.outbox.outbox import Outbox, OutboxItem

receiver, rng = Receiver.APPLICATIONS, random.Random(int(sys.argv[2]))
steps = int(sys.argv[3])

async def main():
    clock, waiting = SimulatedClock(), []
    for _ in range(3):
        path = Path(sys.argv[1]) / "outbox" / "outbox.db"
        outbox = Outbox(path, LIMITS, announcing=lambda: [receiver], clock=clock)
        outbox._database.connection.execute("PRAGMA wal_autocheckpoint = 30")

        async def put():
            asked = request(2, id="x" * rng.choice([1, 1, 5_000, 30_000]))
            await outbox.put(OutboxItem(asked, (0, 2), response(asked, Status.PROVISIONAL, rows=3), clock.wall_s()))
            mark(f"put {asked.request_id}")
            waiting.append(asked)

        async def end(asked):
            await outbox.finish(asked.request_id, response(asked, Status.FINAL, rows=3))
            mark(f"end {asked.request_id}")

        for _ in range(steps):
            ending = [waiting.pop(rng.randrange(len(waiting))) for _ in range(min(len(waiting), rng.randint(0, 2)))]
            await asyncio.gather(*(put() for _ in range(rng.randint(1, 4))), *(end(asked) for asked in ending))
            if rng.random() < 0.2:
                announced = [request_id for request_id, _ in await outbox.unannounced(receiver, 2)]
                await outbox.mark_announced(receiver, announced)
        outbox.close()

asyncio.run(main())
"""


def recorded(root: Path, seed: int, steps: int) -> Recording:
    """An outbox's life on a watched disk."""
    root.mkdir(mode=0o700)
    _, recording = run_on(root, _WORKLOAD, str(seed), str(steps))
    return recording


async def check_crash(recording: Recording, point: int, seed: int, into: Path) -> None:
    """Cuts the power, opens what is left, and compares it with what was acknowledged.

    Raises:
        AssertionError: something acknowledged is lost or there twice, something is wrong, or damage is reported.
    """
    marks = recording.crash(point, random.Random(seed), into)
    put, ended = ({request_id for word, request_id in marks if word == what} for what in ("put", "end"))
    outbox = Outbox(
        into / "outbox" / "outbox.db", LIMITS, announcing=lambda: [Receiver.APPLICATIONS], clock=SimulatedClock()
    )
    try:
        assert outbox.damage == ""
        found = await outbox.pending(1_000_000)
        waiting = {item.request.request_id for item in found}
        assert len(waiting) == len(found) == outbox.depth
        assert put - ended <= waiting | await answered(outbox, put - ended - waiting)
        assert await answered(outbox, ended) == ended
        assert not waiting & ended
        assert all(item.rows == (0, 2) and item.request.rows == 2 for item in found)
        assert outbox.damage == ""
    finally:
        outbox.close()


async def answered(outbox: Outbox, request_ids: set[str]) -> set[str]:
    """Returns the requests that have their final answer."""
    found = set()
    for request_id in request_ids:
        answer = (await outbox.answer(request_id, "local")).answer
        if answer is not None and answer.status is Status.FINAL:
            found.add(request_id)
    return found


class Kept:
    """A folder with an outbox in it, and what that holds.

    Args:
        folder: of the database and its log.
        promises: packed requests and answers by id, also of those that have ended.
        answers: packed answers by id, of those that have.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.promises: dict[str, tuple[bytes, bytes]] = {}
        self.answers: dict[str, bytes] = {}

    async def check(self, *, lost_most: int) -> tuple[int, str]:
        """Opens it, and compares; returns the number of lost records and the reported damage.

        Raises:
            AssertionError: something there is not what was stored, or more is lost than may be.
        """
        outbox = Outbox(self.folder / "outbox.db", LIMITS, clock=SimulatedClock())
        try:
            # A time that was damaged ends no other promise, and no other answer makes room for it.
            assert await outbox.overdue(3600.0, 1_000_000) == []
            await outbox.put(newer := promise())
            await outbox.finish(newer.request.request_id, response(newer.request, Status.FINAL, rows=3))
            there = {item.request.request_id: item for item in await outbox.pending(1_000_000)}
            assert all(self.promises[request_id] == _packed(item) for request_id, item in there.items())
            for request_id, (_, provisional) in self.promises.items():
                if request_id not in there and request_id not in self.answers:
                    answer = await _answer(outbox, request_id)
                    if answer is not None:  # its request was damaged, and what was answered was not
                        assert answer.answer.status is Status.EXPIRED
                        assert answer.outputs[0].array.tobytes() in provisional
            lost = len(self.promises.keys() - self.answers.keys() - there.keys())
            for request_id, packed in self.answers.items():
                answer = await _answer(outbox, request_id)
                if request_id not in there:  # without its answer a promise stands again, and is kept again
                    assert answer is None or pack_response(answer) == packed
                    lost += answer is None
            assert lost <= lost_most, f"{lost} of {len(self.promises)} promises and answers lost"
            await outbox.put(promise())
            assert outbox.depth == len(there) + 1
            return lost, outbox.damage
        finally:
            outbox.close()


def promise(size_bytes: int = 1) -> OutboxItem:
    """A promise to correct two of three rows."""
    infer_request = request(2, id="x" * size_bytes)
    return OutboxItem(infer_request, (0, 2), response(infer_request, Status.PROVISIONAL, rows=3), 1_800_000_000.0)


async def filled(folder: Path, rng: random.Random, *, closed: bool, count: int = 40, seal: Seal | None = None) -> Kept:
    """An outbox with promises and answers of all sizes, as a stopped agent leaves it, or one that was killed."""
    found, live = Kept(folder), folder.with_name(folder.name + ".live")
    outbox = Outbox(live / "outbox.db", LIMITS, clock=SimulatedClock(), seal=lambda: seal or Seal())
    items = [promise(rng.choice([1, 1, 1, 3_000, 20_000])) for _ in range(count)]
    for number, item in enumerate(items):
        await outbox.put(item)
        request_id = item.request.request_id
        found.promises[request_id] = _packed(item)
        if number % 3 == 2:
            final = response(item.request, Status.FINAL, rows=3, value=number / 100)
            await outbox.finish(request_id, final)
            found.answers[request_id] = pack_response(final)
    if closed:
        outbox.close()
    shutil.copytree(live, folder, ignore=shutil.ignore_patterns("*-shm"))
    if not closed:
        outbox.close()
    shutil.rmtree(live)
    return found


def _packed(item: OutboxItem) -> tuple[bytes, bytes]:
    return encode_request(item.request, binary=True).body, pack_response(item.provisional)


async def _answer(outbox: Outbox, request_id: str) -> InferResponse | None:
    try:
        return await outbox.answer(request_id, "local")
    except UnknownAnswerError:
        return None
