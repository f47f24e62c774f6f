"""Processes of the product, forked from a server that has imported it: a start takes a third of the processor time.

A `ForkedProcess` behaves as a `subprocess.Popen` of `python -m MODULE`, which remains in tests of how a process starts.
The server executes this file. It has no threads. A child takes its files, environment and folder, and runs the module.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

_LIMIT_BYTES = 1 << 17
_shared: list[Path] = []
_exit_codes: list[int] = []
_IMPORTED = (
    *("uvloop", "ai_edge_litert.interpreter", "PIL.PngImagePlugin", "firstline_core.telemetry.tracing"),
    *("firstline_gateway.app", "firstline_gateway.commands.serve", "firstline_gateway.tables"),
    *("firstline_core.protocol.sockets", "firstline_edge.app", "firstline_edge.cli.run", "firstline_edge.cli.status"),
    *("firstline.cli.app", "firstline.cli.bundle", "firstline.cli.rollout", "firstline.workbench.evaluate"),
    *("firstline.workbench.certify", "firstline.workbench.bundle", "firstline.client"),
    *(f"firstline_gateway.commands.{command}" for command in ("authority", "init", "keys", "run", "status")),
    *("firstline_gateway.commands.backup.command", "firstline_edge.cloud.http_link", "firstline_edge.cloud.mqtt_link"),
    *("firstline_edge.fleet.member", "firstline_edge.cli.doctor_links", "firstline_edge.cli.doctor_models"),
    *("anyio._backends._asyncio", "numpy.random", "PIL.BmpImagePlugin", "PIL.GifImagePlugin"),
    *("alembic.command", "tuf.ngclient", "securesystemslib.signer"),  # of the gateway's store, and of the registry
)
_DIGITS = Path(__file__).parents[2] / "models" / "digits" / "bundle"


class ForkedProcess:
    """`python -m MODULE` or `python SCRIPT` with these arguments.

    Args:
        module: a package of the product, or the path of a script that uses it.
        arguments: of its command.
        environ: of the process; this one's by default.
        cwd: its working directory.
        stdout: a file, or None for a pipe.
        stderr: likewise.
        script: the name by which an installed script calls the module, instead of `python -m`.

    Attributes:
        stdout: what it prints, or None if it prints to a file.
        stderr: likewise.
        returncode: None while it runs.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        script: str = "",
    ) -> None:
        self.args = [module, *map(str, arguments)]
        self.returncode: int | None = None
        self.stdout, out = _pipe() if stdout is None else (None, os.dup(stdout.fileno()))
        self.stderr, error = _pipe() if stderr is None else (None, os.dup(stderr.fileno()))
        order = {
            "module": module,
            "arguments": self.args[1:],
            "environ": dict(os.environ if environ is None else environ),
            "cwd": str(cwd or Path.cwd()),
            "script": script,
        }
        with Path(os.devnull).open("rb") as nothing:
            self._server = ordered(server(), order, [nothing.fileno(), out, error])
        for written in (out, error):
            os.close(written)
        self.pid = int(self._server.recv(64))

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; returns the exit code, or the negative number of the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._server.recv(64))
            self._server.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for its end; returns what it printed, which the pipes must hold."""
        self.wait(timeout)
        read = []
        for stream in (self.stdout, self.stderr):
            read.append("" if stream is None else stream.read())
            if stream is not None:
                stream.close()
        return read[0], read[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended; its server reports that later
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _pipe() -> tuple[IO[str], int]:
    read, write = os.pipe()
    return os.fdopen(read, encoding="utf-8", errors="replace"), write


def run_forked(module: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, as `subprocess.run` would with captured output; the options of `ForkedProcess`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = ForkedProcess(module, *arguments, stdout=out, stderr=error, **options)
        try:
            code = process.wait(60)
        finally:
            process.kill()
        for stream in (out, error):
            stream.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), error.read())


def share(address: Path) -> None:
    """Lets this process use a server that another one has started."""
    _shared.append(address)


@cache
def server() -> Path:
    """Starts the server, which ends with this process, or finds a shared one; returns the address of its socket."""
    if _shared:
        return _shared[-1]
    folder = tempfile.mkdtemp(prefix="firstline-forks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = Path(folder) / "socket"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(address))
    listener.listen(64)
    # It reads its standard input until this process ends.
    running = subprocess.Popen(
        [sys.executable, "-P", __file__, str(listener.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    listener.close()
    atexit.register(running.wait)
    atexit.register(running.stdin.close)
    return address


def ordered(address: Path, order: Mapping[str, object], files: list[int]) -> socket.socket:
    """Has the server fork a child; the connection returned says its process id, and later how it ended."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(address))
    socket.send_fds(connection, [json.dumps(order).encode()], files)
    return connection


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Forks a child for each order; kills it if its connection is closed. Returns the order in a child."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, "order")
    selector.register(sys.stdin, selectors.EVENT_READ, "end")
    running: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.data == "end":
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                return None
            if key.data == "order":
                connection, _ = listener.accept()
                content, files, *_ = socket.recv_fds(connection, _LIMIT_BYTES, 3)
                pid = os.fork()
                if not pid:
                    selector.close()  # as garbage it would close a file of the child later
                    for number, file in enumerate(files):
                        os.dup2(file, number)
                    # The server's stdout is a device that can seek.
                    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
                    os.closerange(3, max(8192, *files))
                    return json.loads(content)
                for file in files:
                    os.close(file)
                connection.send(str(pid).encode())
                running[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, -pid)
            elif key.data > 0:  # the connection was closed
                selector.unregister(key.fileobj)
                with suppress(ProcessLookupError):
                    os.kill(key.data, signal.SIGKILL)
            else:
                connection = running.pop(-key.data)
                _, status = os.waitpid(-key.data, 0)
                selector.unregister(key.fileobj)
                os.close(key.fd)
                with suppress(KeyError):
                    selector.unregister(connection)
                with suppress(OSError):
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
                connection.close()


def _open_tiers() -> None:
    """Does what each process would do once: analyse types of settings and manifests, and SQL statements.

    The gateway has no model, because ONNX Runtime starts a thread, which a child would not have.
    """
    from firstline_core.bundle.store import open_bundle
    from firstline_edge.settings.load import load as load_edge
    from firstline_gateway.app import open_gateway
    from firstline_gateway.settings.load import load

    load_edge(None, environ={})
    open_bundle(_DIGITS)
    with tempfile.TemporaryDirectory() as folder:
        places = {"store.url": f"sqlite:///{folder}/store.db", "identity.directory": folder, "models.directory": folder}
        gateway = open_gateway(load(None, environ={}, overrides=places))
        gateway.store.close()
        gateway.store.database.close()
    end_s = time.monotonic() + 10
    while len(list(Path("/proc/self/task").iterdir())) > 1:  # a thread is listed for a moment after it was joined
        assert time.monotonic() < end_s
        time.sleep(0.001)


def _leave() -> None:
    """Ends a process without freeing its objects, which would copy all memory that a child shares with the server.

    Exit handlers run in reverse order, so that this one, registered first, is the last.
    """
    if _exit_codes:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(_exit_codes[-1])


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    atexit.register(_leave)
    gc.disable()
    for module in _IMPORTED:
        importlib.import_module(module)
    _open_tiers()
    gc.freeze()
    gc.enable()
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    if order is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    tempfile.tempdir = None  # depends on the environment
    sys.argv = [order["script"] or order["module"], *order["arguments"]]
    try:
        _run(order)
        _exit_codes.append(0)
    except SystemExit as ended:
        _exit_codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise


def _run(order: dict[str, Any]) -> None:
    if order["script"]:
        sys.exit(importlib.import_module(f"{order['module']}.__main__").main())
    if order["module"].endswith(".py"):
        sys.path.insert(0, str(Path(order["module"]).absolute().parent))
        runpy.run_path(order["module"], run_name="__main__")
    else:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
