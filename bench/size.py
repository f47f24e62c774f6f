"""Measures what each extra of the built wheel takes on disk, the memory of an agent, and the time to a first answer.

    python -m bench.size dist/firstline-*.whl

Each extra is installed into an environment of its own, with the locked versions. The agent runs from the environment
of `firstline[edge]` with the digits bundle and the settings of `edge-agent init`. The first answer comes from
`firstline run`, with an empty home, no program on the path, and packages that are downloaded again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.request import Request, urlopen

from bench.figures import Figure, plain
from bench.page import report

CHECKOUT = Path(__file__).parents[1]
DIGITS = CHECKOUT / "models" / "digits"
EDGE_LIMIT_MB = 215
AGENT_LIMIT_MB = 100
FIRST_ANSWER_LIMIT_S = 60
# PyTorch brings several GB of CUDA libraries, which depend on the machine.
NOT_MEASURED = {"train"}
# Extras whose packages contradict those of the development environment.
LOCKS = {"ray": "ray", "tflite": "tflite"}
REQUESTS = 500

Result = TypeVar("Result")
Environ = Mapping[str, str] | None


def installed(wheel: Path, extra: str, use: Callable[[Path], Result]) -> tuple[float, Result]:
    """Installs the wheel with one extra, "" for none, into a new environment.

    Args:
        wheel: the built wheel.
        extra: a name of pyproject.toml.
        use: is called with the environment's folder.

    Returns:
        Megabytes of 10^6 bytes that its files take, bytecode included, without Python and pip; and the result of `use`.
    """
    lock = CHECKOUT / "requirements" / f"{LOCKS.get(extra, 'dev')}.lock"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        empty = _size_bytes(folder)
        _install(wheel, extra, folder, "--compile-bytecode", "--constraint", lock)
        return (_size_bytes(folder) - empty) / 1e6, use(folder)


def _install(wheel: Path, extra: str, folder: Path, *options: str | Path, environ: Environ = None) -> None:
    """Installs the wheel with one extra, "" for none, into the environment of a folder."""
    uv, what = Path(sys.executable).with_name("uv"), f"{wheel.resolve()}[{extra}]" if extra else wheel.resolve()
    python = folder / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *options, what], check=True, env=environ)


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def agent_mb(environment: Path) -> float:
    """Returns the resident memory of an environment's agent after `REQUESTS` images (MB of 10^6 bytes)."""
    command = environment / "bin" / "edge-agent"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([command, "init"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (folder / "models" / "digits").symlink_to(DIGITS / "bundle")
        run: list[str | Path] = [command, "run", "--config", "edge-agent.toml", "--port", "0", "-o", "json"]
        with _serving(run, folder) as (url, pid):
            for image in _images(REQUESTS):
                _ask(url, image)
            status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def first_answer_s(wheel: Path) -> float:
    """Returns the seconds from an empty environment to the first answer of the wheel's demo models."""
    (image,) = _images(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environ |= {"HOME": str(folder), "PATH": "", "XDG_CACHE_HOME": str(folder / "cache")}
        python = folder / "env" / "bin" / "python"
        begun_s = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, env=environ)
        _install(wheel, "workbench", folder / "env", environ=environ)
        find = "from firstline.demo.site import digits_folder; print(digits_folder() / 'bundle')"
        bundle = subprocess.run([python, "-c", find], check=True, env=environ, capture_output=True, text=True).stdout
        run: list[str | Path] = [python.with_name("firstline"), "run", bundle.strip(), "-o", "json"]
        with _serving(run, folder, environ) as (url, _):
            _ask(url, image)
            return time.monotonic() - begun_s


@contextlib.contextmanager
def _serving(command: Sequence[str | Path], folder: Path, environ: Environ = None) -> Iterator[tuple[str, int]]:
    """Runs a command that prints its address as JSON; yields the address and the process's id."""
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.terminate()


def _ask(url: str, image: bytes) -> None:
    with urlopen(Request(f"{url}/firstline/v1/models/digits/infer", image)) as answer:
        answer.read()


def _images(count: int) -> list[bytes]:
    with zipfile.ZipFile(DIGITS / "heldout" / "images.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".png")]
        return [archive.read(names[index % len(names)]) for index in range(count)]


def figures(wheel: Path) -> list[Figure]:
    """Returns the size of each extra, the agent's memory and the time to a first answer."""
    # The faster of two, because other work on the machine and the index is not Firstline's.
    answered_s = min(first_answer_s(wheel) for _ in range(2))
    found = [_below("first answer from the wheel", answered_s, FIRST_ANSWER_LIMIT_S, "s")]
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    for extra in ("", *project["optional-dependencies"]):
        name = f"firstline[{extra}] installed" if extra else "no extra installed"
        if extra == "edge":
            size_mb, resident_mb = installed(wheel, extra, agent_mb)
            found.append(_below(name, size_mb, EDGE_LIMIT_MB))
            found.append(_below("edge-agent resident, digits bundle", resident_mb, AGENT_LIMIT_MB))
        elif extra not in NOT_MEASURED:
            found.append(plain(name, installed(wheel, extra, lambda _: None)[0], "MB", 1))
    return found


def _below(name: str, value: float, limit: float, unit: str = "MB") -> Figure:
    return plain(name, value, unit, 1)._replace(aim=f"< {limit:g}", holds=value < limit)


if __name__ == "__main__":
    sys.exit(report("size", figures(Path(sys.argv[1]))))
