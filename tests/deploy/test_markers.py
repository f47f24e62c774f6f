"""Tests that need something this machine may lack skip for a person and fail in CI where CI must have it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SAMPLE = """
import pytest

@pytest.mark.mosquitto
def test_marked():
    pass

def test_fixture(mosquitto):
    pass

@pytest.mark.shared_data
def test_data():
    pass

def test_data_fixture(shared_data):
    pass

@pytest.mark.clients
def test_clients():
    pass

def test_clients_fixture(clients_python):
    pass
"""


def outcome(checkout: Path, **environment: str) -> str:
    """Run a sample under this suite's conftest; pytest's closing line without its duration."""
    folder = checkout / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {TESTS}\nmarkers =\n  mosquitto: x\n  shared_data: x\n  clients: x\n"
    )
    inherited = {key: value for key, value in os.environ.items() if key != "CI"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-pno:cacheprovider",
            "-pno:schemathesis",
            "--import-mode=importlib",
            ".",
        ],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip().splitlines()[-1].rpartition(" in ")[0]


@pytest.mark.parametrize(("ci", "summary"), [({}, "6 skipped"), ({"CI": "true"}, "2 skipped, 4 errors")])
def test_a_missing_need_skips_a_test_and_fails_ci(tmp_path: Path, ci: dict[str, str], summary: str) -> None:
    absent = str(tmp_path / "absent")
    assert outcome(tmp_path, FIRSTLINE_MOSQUITTO=absent, FIRSTLINE_SHARED_DATA=absent, **ci) == summary


@pytest.mark.mosquitto
def test_with_all_there_they_run(tmp_path: Path) -> None:
    (tmp_path / ".venv-clients" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-clients" / "bin" / "python").touch()
    assert outcome(tmp_path, FIRSTLINE_SHARED_DATA=str(tmp_path), CI="true") == "6 passed"
