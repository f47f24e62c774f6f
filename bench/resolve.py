"""Shows that a wheel of every package of every extra exists for the machines that Firstline supports."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.figures import Figure, report

CHECKOUT = Path(__file__).parents[1]
MACHINES = ("aarch64", "x86_64")
PYTHONS = ("3.11", "3.12", "3.13")
GLIBC = "2.28"
TFLITE_PYTHONS = ("3.11",)  # the newest that tflite-runtime was built for
TFLITE_GLIBC = {"aarch64": "2.34"}  # its aarch64 wheel needs a newer system than all the others do


def extras() -> list[str]:
    """The names of the extras, as pyproject.toml declares them."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"])


def resolved(extra: str, platform: str, python: str) -> list[str]:
    """The packages, `name==version` each, that a device would install for one extra, wheels only.

    Returns:
        An empty list where no set of wheels satisfies the extra; uv's reason goes to stderr.
    """
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("uv"), "pip", "compile", "pyproject.toml", "--extra", extra),
            *("--python-platform", platform, "--python-version", python, "--only-binary", ":all:"),
            *("--no-header", "--no-annotate", "--quiet"),
        ],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout.split() if done.returncode == 0 else []


def has_what_it_promises(extra: str, packages: list[str]) -> bool:
    """Whether the runtime that gives the extra its name is there, and not left out by a marker."""
    names = {package.split("==")[0] for package in packages}
    runtimes = {"edge": "onnxruntime", "litert": "ai-edge-litert", "tflite": "tflite-runtime"}
    if extra == "edge-core":
        return bool(names) and names.isdisjoint(runtimes.values())
    return bool(names) and runtimes.get(extra, "numpy") in names


def check(target: tuple[str, str, str]) -> Figure:
    """One figure: how many wheels (extra, machine, Python) resolves to."""
    extra, machine, python = target
    glibc = TFLITE_GLIBC.get(machine, GLIBC) if extra == "tflite" else GLIBC
    packages = resolved(extra, f"{machine}-manylinux_{glibc.replace('.', '_')}", python)
    name = f"[{extra}] on {machine}, glibc {glibc}, Python {python}"
    aim = "every package has a wheel"
    return Figure(name, len(packages), "packages", aim, has_what_it_promises(extra, packages))


def main() -> int:
    targets = [
        (extra, machine, python)
        for extra in extras()
        for machine in MACHINES
        for python in (TFLITE_PYTHONS if extra == "tflite" else PYTHONS)
    ]
    with ThreadPoolExecutor(max_workers=4) as pool:  # each waits for the index, not for a core
        return report("resolve", list(pool.map(check, targets)))


if __name__ == "__main__":
    sys.exit(main())
