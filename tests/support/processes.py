"""A tier as the process that users start."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from support.forks import ForkedProcess

Module = Literal["firstline_edge", "firstline_gateway"]
_END_S = 30.0


class TierProcess:
    """`MODULE run` with these arguments; runs within its `with` block, and is killed if that leaves it.

    Args:
        module: the tier's package, or the path of a script that runs it.
        arguments: of `run`, in addition to the port and the output format.
        log: receives its standard error, of all its starts.
        port: 0 for a free one, which it keeps when it is started again.
        environ: of the process; this one's by default.
        cwd: its working directory.
        within: puts a command before it.
        forked: whether it is forked from a process that has imported the tier; not with `within`.

    Attributes:
        url: of the latest start.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        log: Path,
        port: int = 0,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        within: Callable[[Sequence[str]], Sequence[str]] | None = None,
        forked: bool = True,
    ) -> None:
        self._command = [module, "run", *map(str, arguments), "-o", "json", "--port"]
        self._environ, self._cwd, self._within = environ, cwd, within
        self._forked = forked and within is None
        self.process: subprocess.Popen[str] | ForkedProcess
        self.log = log
        self.port = port
        self.url = ""

    def start(self) -> Self:
        """Starts it, and returns when it has said that it is ready."""
        with self.log.open("a") as log:  # an unread pipe would fill and block the process
            command = [*self._command, str(self.port)]
            if self._forked:
                self.process = ForkedProcess(*command, environ=self._environ, cwd=self._cwd, stderr=log)
            else:
                command = [sys.executable, "-m", *command]
                self.process = subprocess.Popen(
                    self._within(command) if self._within is not None else command,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self._environ,
                    cwd=self._cwd,
                )
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        ready = json.loads(line)
        assert ready["event"] == "ready"
        self.url = ready["url"]
        self.port = int(self.url.rpartition(":")[2])
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; nothing more may have been printed. Returns the exit code."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=_END_S)
        assert out == ""
        return self.process.returncode

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
