"""Tiers as processes that start in a tenth of a second: forked from one that has imported everything already.

Each is a process of its own with its own files and threads, started by the tier's own `main`, and dies as one.
"""

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.waiting import until

_IMPORTED = {
    "firstline_edge": ("firstline_edge.cli.run", "firstline_edge.cloud.mqtt_link", "firstline_core.runtime.onnx"),
    "firstline_gateway": ("firstline_gateway.api.sockets", "firstline_gateway.app", "uvloop"),
}
_START_TIMEOUT_S = 60.0
_LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Process:
    """A tier that was started.

    Args:
        said: its standard output, a file.
        log: its standard error, a file.
    """

    pid: int
    said: Path
    log: Path

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state != "Z"

    async def ready(self) -> str:
        """Its URL, once it answers.

        Raises:
            RuntimeError: it ended before; its last words are quoted.
        """
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not (said := self.said.read_text()).endswith("\n"):
                if not self.runs:
                    raise RuntimeError(f"It did not start. It said: {self.log.read_text()[-2000:]}")
                await asyncio.sleep(_LOOK_S)
        return json.loads(said)["url"]

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal, and returns once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        await until(lambda: not self.runs)


class Nursery:
    """Where they come from; see `nursery`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._count = 0

    async def start(self, config: Path) -> Process:
        """Begins to run the tier with this configuration, on a port that the system chooses."""
        self._count += 1
        said, log = (self._folder / f"{config.stem}-{self._count}.{kind}" for kind in ("out", "log"))
        said.touch()
        order = {"argv": ["run", "--config", str(config), "--port", "0", "-o", "json"], "out": str(said)}
        self._process.stdin.write(json.dumps(order | {"err": str(log)}).encode() + b"\n")
        return Process(int(await self._process.stdout.readline()), said, log)


@asynccontextmanager
async def nursery(module: str, folder: Path, constants: Mapping[str, float] | None = None) -> AsyncIterator[Nursery]:
    """A process that has imported a tier, and forks it on demand.

    Args:
        module: "firstline_edge" or "firstline_gateway".
        folder: for what its children say.
        constants: of the tier's modules, such as "firstline_gateway.jobs.jobs._LEASE_S", and their values there.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.nursery", module, json.dumps(dict(constants or {}))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        yield Nursery(process, folder)
    finally:
        process.kill()
        await process.wait()


def _serve(module: str, constants: Mapping[str, float]) -> None:
    for name in (f"{module}.__main__", *_IMPORTED[module]):
        importlib.import_module(name)
    for name, value in constants.items():
        home, _, constant = name.rpartition(".")
        getattr(sys.modules[home], constant)  # one that is not there is no constant
        setattr(sys.modules[home], constant, value)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their exit codes are never read
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _be(module, order)
        print(pid, flush=True)


def _be(module: str, order: dict[str, object]) -> None:
    """The child, until its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name, number in (("out", 1), ("err", 2)):
        opened = os.open(str(order[name]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 1
    try:
        sys.argv = [module, *order["argv"]]  # type: ignore[misc]
        code = sys.modules[f"{module}.__main__"].main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 (its outermost loop)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
