"""Measures what each extra of the built wheel takes on disk, and the memory of a running agent.

    python -m bench.size dist/firstline-*.whl

Each extra is installed into an environment of its own, with the locked versions. The agent runs from the environment
of `firstline[edge]` with the digits bundle and the settings of `edge-agent init`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.request import Request, urlopen

from bench.figures import Figure, plain, report
from bench.resolve import extras

CHECKOUT = Path(__file__).parents[1]
EDGE_LIMIT_MB = 215
AGENT_LIMIT_MB = 100
# PyTorch brings several GB of CUDA libraries, which depend on the machine.
NOT_MEASURED = {"train"}
# Extras whose packages contradict those of the development environment.
LOCKS = {"ray": "ray", "tflite": "tflite"}
REQUESTS = 500

Result = TypeVar("Result")


def installed(wheel: Path, extra: str, use: Callable[[Path], Result]) -> tuple[float, Result]:
    """Installs the wheel with one extra, "" for none, into a new environment.

    Args:
        wheel: the built wheel.
        extra: a name of pyproject.toml.
        use: is called with the environment's folder.

    Returns:
        Megabytes of 10^6 bytes that its files take, bytecode included, without Python and pip; and the result of `use`.
    """
    uv = Path(sys.executable).with_name("uv")
    lock = CHECKOUT / "requirements" / f"{LOCKS.get(extra, 'dev')}.lock"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        empty = _size_bytes(folder)
        subprocess.run(
            [
                *(uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", folder / "bin" / "python"),
                *("--constraint", lock, f"{wheel.resolve()}[{extra}]" if extra else wheel.resolve()),
            ],
            check=True,
        )
        return (_size_bytes(folder) - empty) / 1e6, use(folder)


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def agent_mb(environment: Path) -> float:
    """Returns the resident memory of an environment's agent after `REQUESTS` images (MB of 10^6 bytes)."""
    command = environment / "bin" / "edge-agent"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([command, "init"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (folder / "models" / "digits").symlink_to(CHECKOUT / "models" / "digits" / "bundle")
        agent = subprocess.Popen(
            [command, "run", "--config", "edge-agent.toml", "--port", "0", "-o", "json"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with agent:
            try:
                assert agent.stdout is not None
                url = json.loads(agent.stdout.readline())["url"]
                for image in _images(REQUESTS):
                    urlopen(Request(f"{url}/firstline/v1/models/digits/infer", image)).read()
                status = Path(f"/proc/{agent.pid}/status").read_text()
            finally:
                agent.terminate()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def _images(count: int) -> list[bytes]:
    with zipfile.ZipFile(CHECKOUT / "models" / "digits" / "heldout" / "images.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".png")]
        return [archive.read(names[index % len(names)]) for index in range(count)]


def figures(wheel: Path) -> list[Figure]:
    """Returns the size of each extra, and the agent's memory."""
    found = [plain("no extra installed", installed(wheel, "", lambda _: None)[0], "MB", 1)]
    for extra in extras():
        if extra in NOT_MEASURED:
            continue
        name = f"firstline[{extra}] installed"
        if extra != "edge":
            found.append(plain(name, installed(wheel, extra, lambda _: None)[0], "MB", 1))
            continue
        size_mb, resident_mb = installed(wheel, extra, agent_mb)
        found.append(_below(name, size_mb, EDGE_LIMIT_MB))
        found.append(_below("edge-agent resident, digits bundle", resident_mb, AGENT_LIMIT_MB))
    return found


def _below(name: str, value: float, limit: float) -> Figure:
    return plain(name, value, "MB", 1)._replace(aim=f"< {limit:g}", holds=value < limit)


if __name__ == "__main__":
    sys.exit(report("size", figures(Path(sys.argv[1]))))
