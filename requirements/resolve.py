"""Shows that a wheel of every package of every extra exists for the machines that Firstline supports.

    make resolve

Exits with 1 if an extra has no set of wheels for a machine and a Python version, or lacks its runtime; uv's reason goes
to stderr.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
RUNTIMES = {"edge": "onnxruntime", "litert": "ai-edge-litert", "tflite": "tflite-runtime"}


def resolved(extra: str, machine: str, python: str) -> bool:
    """Returns whether wheels satisfy an extra, its runtime included.

    The aarch64 wheel of tflite-runtime needs a newer system than all others do.
    """
    glibc = "2_34" if (extra, machine) == ("tflite", "aarch64") else "2_28"
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "pyproject.toml", "--extra", extra]
    command += ["--python-platform", f"{machine}-manylinux_{glibc}", "--python-version", python]
    command += ["--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet"]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode == 0 and f"{RUNTIMES.get(extra, 'numpy')}==" in done.stdout


def main() -> int:
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    failed = 0
    for extra, machine, python in product(extras, ("aarch64", "x86_64"), ("3.11", "3.12", "3.13")):
        if extra == "tflite" and python != "3.11":  # the newest that tflite-runtime was built for
            continue
        found = resolved(extra, machine, python)
        failed += not found
        print(f"[{extra}] on {machine}, Python {python}: {'every package has a wheel' if found else 'FAILS'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
