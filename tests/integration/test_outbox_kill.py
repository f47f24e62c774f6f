"""`kill -9` while promises are being stored: whatever was acknowledged is there afterwards."""

from pathlib import Path

import pytest
from support.forks import ForkedProcess

from firstline_core.types import Status
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.settings.settings import OutboxSection

# Puts from many tasks at once, so that the kill falls into a group commit, and says what was acknowledged.
_CHILD = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from firstline_core.types import Status
from firstline_edge.outbox.outbox import Outbox, OutboxItem
from firstline_edge.settings.settings import OutboxSection
from support.escalations import request, response

async def main():
    outbox = Outbox(Path(sys.argv[1]), OutboxSection(limit_items=1_000_000))

    async def put_forever():
        while True:
            asked = request(2)
            await outbox.put(OutboxItem(asked, (0, 2), response(asked, Status.PROVISIONAL, rows=3), 1.0e9))
            os.write(1, f"{asked.request_id}\\n".encode())

    await asyncio.gather(*(put_forever() for _ in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("kill_after", [1, 50, 400])
async def test_nothing_acknowledged_is_lost(tmp_path: Path, kill_after: int) -> None:
    path = tmp_path / "outbox" / "outbox.db"
    acknowledged = run_and_kill(path, kill_after)
    assert len(acknowledged) >= kill_after
    outbox = Outbox(path, OutboxSection(limit_items=1_000_000))
    try:
        found = await outbox.pending(1_000_000)
        stored_ids = {item.request.request_id for item in found}
        assert set(acknowledged) <= stored_ids
        assert outbox.depth == len(found)
        # What was on its way may be there too, but is then complete.
        assert len(stored_ids) <= len(acknowledged) + 8
        assert all(item.rows == (0, 2) and item.request.rows == 2 for item in found)
        answer = await outbox.answer(acknowledged[-1], "local")
        assert answer.answer.status is Status.PROVISIONAL
    finally:
        outbox.close()


def run_and_kill(path: Path, kill_after: int) -> list[str]:
    """Lets the child store until `kill_after` promises are acknowledged; all that it acknowledged by its end."""
    script = path.parents[1] / "child.py"
    script.write_text(_CHILD)
    child = ForkedProcess(str(script), path, Path(__file__).parents[1])
    assert child.stdout is not None and child.stderr is not None
    with child.stdout as output, child.stderr:
        acknowledged = [output.readline().strip() for _ in range(kill_after)]
        child.kill()
        acknowledged += output.read().split()
        assert child.wait() == -9
    assert all(len(request_id) == 36 for request_id in acknowledged)
    return acknowledged
