"""The examples of docs/examples, run as a reader would run them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.digits import predictions
from support.either_tier import either_tier
from support.forks import run_forked
from support.gateway import DIGITS
from support.images import encode
from support.line import Line
from support.needs import program
from support.sample_bundles import detector_bundle

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
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scan that the edge model is surest of."""
    file = tmp_path_factory.mktemp("scans") / "scan.png"
    file.write_bytes(predictions(20).surest)
    return file


def in_words(probabilities: np.ndarray) -> str:
    return f"{open_bundle(DIGITS).manifest.labels[int(probabilities.argmax())]} ({100 * probabilities.max():.4g} %)"


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


def run_again(command: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """The same for an example that another test runs; one in Python is forked, which a reader would not notice."""
    interpreter, *rest = command
    return run_forked(*rest, *arguments) if interpreter == sys.executable else run(command, *arguments)


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


def test_agent_runs_in_a_program(scan: Path, tmp_path: Path) -> None:
    example = EXAMPLES / "agent.py"
    config = tmp_path / "edge-agent.toml"
    config.write_text(f'[agent]\nstate_dir = "{tmp_path / "state"}"\n[models]\ndirectories = ["{DIGITS}"]\n')
    done = run([sys.executable, str(example)], config, "digits", scan)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("scan.png: {'probabilities': [[")
    assert done.stdout.endswith("]]}, edge: confident, final\n")
    refused = run_again([sys.executable, str(example)], config, "digits", example)
    assert refused.returncode == 1 and "Row 0 of input 'image'" in refused.stderr
    page = EXAMPLES.parent / "how-to" / "agent-in-a-program.md"
    assert f"```python\n{example.read_text()}```" in page.read_text()


def served_detector(folder: Path) -> Path:
    """Stores the bundle `pets` in `models`, and an image in which it finds a dog."""
    (folder / "models" / "pets").mkdir(parents=True)
    detector_bundle(folder / "models" / "pets", name="pets")
    file = folder / "bright.png"
    file.write_bytes(encode(np.full((80, 80, 3), 255, np.uint8)))
    return file


async def test_examples_print_answers_of_any_task(tmp_path: Path, node: str) -> None:
    file = served_detector(tmp_path)
    async with either_tier("agent", tmp_path) as (url, _):
        python = await asyncio.to_thread(run_again, [sys.executable, str(EXAMPLES / "infer.py")], url, file, "pets")
        others = [
            await asyncio.to_thread(run, [node, str(EXAMPLES / name)], url, file, "pets")
            for name in ("infer.mjs", "stream.mjs")
        ]
    assert (python.stdout[:16], python.stderr) == ("dog (50 %), edge", "")
    for done in others:
        assert done.stderr == "" and '"objects":[{"label":"dog","score":0.5,' in done.stdout
        assert "request_id" not in done.stdout and "final" in done.stdout


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_detecting_example_draws_objects(tmp_path: Path, language: str, request: pytest.FixtureRequest) -> None:
    interpreter, suffix = (sys.executable, "py") if language == "python" else (request.getfixturevalue("node"), "mjs")
    file, out = served_detector(tmp_path), tmp_path / "drawn.jpg"
    async with either_tier("gateway", tmp_path) as (url, _):
        command = [interpreter, str(EXAMPLES / f"detect.{suffix}")]
        done = await asyncio.to_thread(run, command, url, file, out, "pets")
        refused = await asyncio.to_thread(run_again, command, url, EXAMPLES / "infer.py", out, "pets")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "dog (0.50) at 0,20 to 40,60\n1 in 80x80 pixels, cloud: final\n"
    with Image.open(out) as drawn:
        assert (drawn.format, drawn.size, drawn.getpixel((75, 75)) != drawn.getpixel((0, 40))) == (
            "JPEG",
            (80, 80),
            True,
        )
    assert refused.returncode == 1 and "Row 0 of input 'image'" in refused.stderr
    usage = run_again(command)
    assert (usage.returncode, usage.stdout, usage.stderr[:7]) == (1, "", "usage: ")


def test_refusal_is_printed(running: Line, command: list[str]) -> None:
    done = run_again(command, running.agent.url, EXAMPLES / "infer.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Row 0 of input 'image'" in done.stderr


def test_missing_arguments_print_usage(command: list[str]) -> None:
    done = run_again(command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("usage: ")
