"""Where a tier has to start: a root that is read-only, a locale that is not UTF-8, a port that is taken.

Each must end in an answer or in a sentence; a traceback is neither.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BUNDLE = Path(__file__).parents[2] / "models" / "digits" / "bundle"
_WAIT_S = 30.0
_MODULES = {"agent": "firstline_edge", "gateway": "firstline_gateway"}
_READ_ONLY = 'mount --make-rprivate / && {} mount -o remount,bind,ro "$1" && shift 2 && exec "$@"'
_ROOM = 'mount -t tmpfs tmpfs "$2" &&'


@dataclass(frozen=True, slots=True)
class Started:
    """How a start went.

    Args:
        answered: it became ready, and its health check said so.
        code: of a process that ended by itself; None where it was stopped here.
        log: all that it wrote to standard error.
    """

    answered: bool
    code: int | None
    log: str

    @property
    def honest(self) -> bool:
        """Whether it answers, or says in a sentence why not."""
        sentence = self.code not in (None, 0) and self.log.strip().endswith((".", "?"))
        return "Traceback" not in self.log and (self.answered or sentence)


def taken_port(tier: str) -> Started:
    """Another program listens there."""
    with _folder(tier) as folder, socket.create_server(("127.0.0.1", 0)) as other:
        return _start(tier, folder, port=other.getsockname()[1])


def plain_locale(tier: str) -> Started:
    """`LC_ALL=C` without Python's own rescue, in a folder whose name is not ASCII."""
    environ = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with _folder(tier, "prüfstand") as folder:
        return _start(tier, folder, environ=environ)


def read_only(tier: str, *, with_state: bool) -> Started:
    """Nothing may be written but, `with_state`, where its state is. Needs the right to mount."""
    script = _READ_ONLY.format(_ROOM if with_state else "")
    with _folder(tier) as folder:
        (folder / "state").mkdir()
        arguments = (_mount_of(folder), str(folder / "state"))
        return _start(tier, folder, before=("unshare", "--mount", "sh", "-c", script, "sh", *arguments))


def may_mount() -> bool:
    """Whether `read_only` can be tried here."""
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "--mount", "mount", "--make-rprivate", "/"], capture_output=True).returncode == 0
    )


def _mount_of(folder: Path) -> str:
    return next(str(path) for path in (folder, *folder.parents) if path.is_mount())


@contextmanager
def _folder(tier: str, name: str = "home") -> Iterator[Path]:
    """A configuration, a bundle, and room for state."""
    with tempfile.TemporaryDirectory(prefix="firstline-hardship-") as outer:
        folder = Path(outer) / name
        shutil.copytree(_BUNDLE, folder / "models" / "digits")
        settings = '[models]\ndirectories = ["models"]\n[agent]\nstate_dir = "state"\n'
        if tier == "gateway":
            settings = (
                '[models]\ndirectory = "models"\n[auth]\nmode = "off"\n[store]\nurl = "sqlite:///state/gateway.db"\n'
            )
        (folder / f"{tier}.toml").write_text(settings)
        yield folder


def _start(
    tier: str, folder: Path, *, port: int = 0, environ: dict[str, str] | None = None, before: tuple[str, ...] = ()
) -> Started:
    command = [sys.executable, "-m", _MODULES[tier], "run", "--config", str(folder / f"{tier}.toml")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*before, *command, "--port", str(port), "-o", "json"],
            cwd=folder,
            env=os.environ | path | (environ or {}),
            stdout=subprocess.PIPE,
            stderr=log,
        )
        line = process.stdout.readline()  # empty where it ended
        answered = bool(line) and _answers(json.loads(line)["url"])
        code = None if line else process.wait(_WAIT_S)
        process.terminate()
        process.communicate(timeout=_WAIT_S)
        log.seek(0)
        return Started(answered, code, log.read().decode(errors="replace"))


def _answers(url: str) -> bool:
    until_s = time.monotonic() + _WAIT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < until_s:
        try:
            with opener.open(f"{url}/v2/health/ready", timeout=5) as reply:
                if reply.status == 200:
                    return True
        except OSError:
            pass
        time.sleep(0.05)
    return False
