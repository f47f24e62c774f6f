"""The built wheel in an environment of its own, as users have it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Runs a command outside of this environment, and returns what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=outside() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outside() -> dict[str, str]:
    """This process's environment without what points at this checkout."""
    return {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def make_environment(wheel: Path, folder: Path) -> Path:
    """An environment that holds the wheel, and sees the dependencies of this one but not its editable checkout."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    run(
        *(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"),
        *("--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile", wheel),
        cwd=folder,
    )
    # A path in a .pth is searched last, and .pth files in it (the editable install's) are not read.
    (site_packages / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return folder
