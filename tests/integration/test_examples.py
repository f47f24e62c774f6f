"""The examples of docs/examples, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.gateway import DIGITS
from support.needs import program

from bench.support.line import Line, line
from firstline.workbench.dataset import open_dataset
from firstline_core.bundle.loading import load_edge, load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Tensor

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
    contents = [content for content, _ in open_dataset(DIGITS.parent / "heldout", 20).read()]
    probabilities = load_edge(open_bundle(DIGITS), RuntimeOptions()).predict(images(*contents))
    file = tmp_path_factory.mktemp("scans") / "scan.png"
    file.write_bytes(contents[int(probabilities.max(axis=1).argmax())])
    return file


def images(*contents: bytes) -> Tensor:
    return Tensor("image", np.array(contents, dtype=np.object_))


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
def test_a_file_in_and_a_label_out(running: Line, scan: Path, command: list[str], name: str) -> None:
    bundle = open_bundle(DIGITS)
    assert bundle.manifest.full is not None
    options = RuntimeOptions()
    model = load_edge(bundle, options) if name == "agent" else load_model(bundle, bundle.manifest.full, options)
    probabilities = model.predict(images(scan.read_bytes()))[0]
    label, score = bundle.manifest.labels[int(probabilities.argmax())], probabilities.max()

    tier = running.tiers[name]
    done = run(command, tier.url, scan, token=tier.token)
    assert (done.returncode, done.stderr) == (0, "")
    told = "cloud: requested, final" if name == "gateway" else "edge: confident, final"
    if done.stdout.count("cache:"):  # the other language asked first
        told = told.replace("edge", "cache")
    assert done.stdout == f"{label} ({score:.3f}), {told}\n"


def test_each_answer_as_it_comes(running: Line, tmp_path: Path, node: str) -> None:
    bundle, options = open_bundle(DIGITS), RuntimeOptions()
    assert bundle.manifest.full is not None
    contents = [content for content, _ in open_dataset(DIGITS.parent / "heldout", 60).read()]
    edge, full = load_edge(bundle, options), load_model(bundle, bundle.manifest.full, options)
    first, last = edge.predict(images(*contents)), full.predict(images(*contents))
    row = int(first.max(axis=1).argmin())
    file = tmp_path / "unsure.png"
    file.write_bytes(contents[row])

    def said(probabilities: np.ndarray) -> str:
        return f"{bundle.manifest.labels[int(probabilities.argmax())]} ({probabilities.max():.3f})"

    command = [node, str(EXAMPLES / "stream.mjs")]
    done = run(command, running.agent.url, file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{said(first[row])}, edge: provisional\n{said(last[row])}, cloud: final\n"
    refused = run(command, running.agent.url, EXAMPLES / "infer.py")
    assert refused.returncode == 1 and "Row 0 of input 'image'" in refused.stderr


def test_a_refusal_is_told(running: Line, command: list[str]) -> None:
    done = run(command, running.agent.url, EXAMPLES / "infer.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Row 0 of input 'image'" in done.stderr


def test_without_arguments_it_is_a_sentence(command: list[str]) -> None:
    done = run(command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("usage: ")
