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
"""


CLIENTS = """
import pytest

@pytest.mark.clients
def test_marked():
    pass

def test_fixture(clients_python):
    pass
"""


def outcome(folder: Path, sample: str = SAMPLE, **environment: str) -> str:
    """Run a sample under this suite's conftest; pytest's closing line without its duration."""
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "test_sample.py").write_text(sample)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {TESTS}\nmarkers =\n  mosquitto: x\n  shared_data: x\n  clients: x\n"
    )
    kept = {key: value for key, value in os.environ.items() if key != "CI"}
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
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip().splitlines()[-1].rpartition(" in ")[0]


def test_without_a_broker_a_person_s_tests_skip(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    assert outcome(tmp_path, FIRSTLINE_MOSQUITTO=absent, FIRSTLINE_SHARED_DATA=absent) == "4 skipped"


def test_without_a_broker_ci_fails(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    summary = outcome(tmp_path, FIRSTLINE_MOSQUITTO=absent, FIRSTLINE_SHARED_DATA=absent, CI="true")
    assert summary == "2 skipped, 2 errors"


@pytest.mark.mosquitto
def test_with_all_there_they_run(tmp_path: Path) -> None:
    assert outcome(tmp_path, FIRSTLINE_SHARED_DATA=str(tmp_path), CI="true") == "4 passed"


def test_missing_clients_skip_locally_and_fail_in_ci(tmp_path: Path) -> None:
    folder = tmp_path / "checkout" / "tests"
    folder.mkdir(parents=True)
    assert outcome(folder, CLIENTS) == "2 skipped"
    assert outcome(folder, CLIENTS, CI="true") == "2 errors"
