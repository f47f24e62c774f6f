"""A refused survey process or a hanging driver affects nothing else."""

import asyncio
import errno
import subprocess
import sys
from pathlib import Path

import pytest
from support.boards import board
from support.logs import captured_lines

from firstline_core.clock import SimulatedClock, first_of
from firstline_core.hardware.kernel_files import Tree
from firstline_edge.hardware.surveyor import Surveyor

_HANGS = """
import asyncio, sys, threading
from pathlib import Path
from firstline_core.hardware.kernel_files import Tree
from firstline_edge.hardware.surveyor import Surveyor

begun = threading.Event()

class Hanging(Tree):
    def text(self, path, limit_bytes=4096):
        if path.endswith("thermal_zone0/type"):
            begun.set()
            threading.Event().wait()
        return super().text(path, limit_bytes)

async def main():
    folder = Path(sys.argv[1])
    task = asyncio.create_task(Surveyor(Hanging(folder / "dev"), folder).run())
    await asyncio.to_thread(begun.wait)
    task.cancel()

asyncio.run(main())
"""


async def test_a_refused_process_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []

    def refuse(*_: object, **__: object) -> None:
        requests.append("a process")
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    clock = SimulatedClock()
    with board("raspberry-pi-5", tmp_path / "dev") as root, captured_lines() as lines:
        surveyor = Surveyor(Tree(root), tmp_path, clock=clock)
        task = asyncio.create_task(surveyor.run())

        async def asked_thrice() -> None:
            while len(requests) < 3:
                await clock.advance(300.0) if clock.sleepers else await asyncio.sleep(0.001)

        await first_of(asked_thrice(), asyncio.sleep(30))
        assert len(requests) == 3
        assert not task.done()
        assert surveyor.catalogue is not None  # files say what they say
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [line["level"] for line in lines if "hardware not described yet" in line["event"]] == ["warning"]


def test_a_hanging_driver_does_not_block_stopping(tmp_path: Path) -> None:
    with board("jetson-orin-nano", tmp_path / "dev"):
        subprocess.run([sys.executable, "-c", _HANGS, str(tmp_path)], check=True, timeout=30)
