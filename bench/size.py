"""Measures what `firstline[edge]` takes on a device's disk: the built wheel and all that it brings."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import Figure, report

CHECKOUT = Path(__file__).parents[1]
LIMIT_MB = 200


def installed_mb(wheel: Path, extra: str) -> float:
    """Install one extra into a new environment and add up its files, bytecode included, without Python and pip.

    Returns:
        Megabytes of 10^6 bytes.
    """
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        empty = _size_bytes(Path(folder))
        subprocess.run(
            [
                *(uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", f"{folder}/bin/python"),
                *("--constraint", CHECKOUT / "requirements" / "dev.lock", f"{wheel.resolve()}[{extra}]"),
            ],
            check=True,
        )
        return (_size_bytes(Path(folder)) - empty) / 1e6


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def figures(wheel: Path) -> list[Figure]:
    """With a runtime, and without."""
    size_mb = round(installed_mb(wheel, "edge"), 1)
    core_mb = round(installed_mb(wheel, "edge-core"), 1)
    return [
        Figure("firstline[edge] installed", size_mb, "MB", f"< {LIMIT_MB}", size_mb < LIMIT_MB),
        Figure("firstline[edge-core] installed", core_mb, "MB", f"< {LIMIT_MB}", core_mb < LIMIT_MB),
    ]


if __name__ == "__main__":
    sys.exit(report("size", figures(Path(sys.argv[1]))))
