"""The examples of docs/examples, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.digits import predictions
from support.gateway import DIGITS
from support.needs import program

from bench.support.line import Line, line
from firstline_core.bundle.store import open_bundle

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def node() -> str:
    return program("node", "`make node`")


@pytest.fixture(params=["python", "javascript"])
def command(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "python":
        return [sys.executable, str(EXAMPLES / "infer.py")]
    return [request.getfixturevalue("node"), str(EXAMPLES / "infer.mjs")]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with line(tmp_path_factory.mktemp("line")) as found:
        yield found


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scan that the edge model is surest of."""
    file = tmp_path_factory.mktemp("scans") / "scan.png"
    file.write_bytes(predictions(20).surest)
    return file


def in_words(probabilities: np.ndarray) -> str:
    return f"{open_bundle(DIGITS).manifest.labels[int(probabilities.argmax())]} ({probabilities.max():.3f})"


def run(command: list[str], *arguments: object, token: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "FIRSTLINE_TOKEN": token}
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        env=environ,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("name", ["agent", "gateway"])
def test_example_prints_the_label_of_a_file(running: Line, scan: Path, command: list[str], name: str) -> None:
    found = predictions(20)
    probabilities = (found.edge if name == "agent" else found.full)[int(found.scores.argmax())]
    tier = running.tiers[name]
    done = run(command, tier.url, scan, token=tier.token)
    assert (done.returncode, done.stderr) == (0, "")
    origin = "cloud: requested, final" if name == "gateway" else "edge: confident, final"
    if done.stdout.count("cache:"):  # the other language asked first
        origin = origin.replace("edge", "cache")
    assert done.stdout == f"{in_words(probabilities)}, {origin}\n"


def test_streaming_example_prints_both_answers(running: Line, tmp_path: Path, node: str) -> None:
    found = predictions(60)
    row = int(found.scores.argmin())
    file = tmp_path / "unsure.png"
    file.write_bytes(found.contents[row])
    command = [node, str(EXAMPLES / "stream.mjs")]
    done = run(command, running.agent.url, file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{in_words(found.edge[row])}, edge: provisional\n{in_words(found.full[row])}, cloud: final\n"
    refused = run(command, running.agent.url, EXAMPLES / "infer.py")
    assert refused.returncode == 1 and "Row 0 of input 'image'" in refused.stderr


def test_refusal_is_printed(running: Line, command: list[str]) -> None:
    done = run(command, running.agent.url, EXAMPLES / "infer.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Row 0 of input 'image'" in done.stderr


def test_missing_arguments_print_usage(command: list[str]) -> None:
    done = run(command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("usage: ")
