"""`firstline run` and `pair --serve` as processes, and `firstline infer` on the tiers that they start."""

import json
import os
import shlex
import signal
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.forks import ForkedProcess, run_forked
from support.images import encode
from support.sample_bundles import colour_bundle, detector_bundle, solid
from support.sample_models import average_colours

from bench.support.bundles import write_manifest
from firstline.client.sync_client import Client
from firstline_core.bundle.store import Bundle

SIDE = 64
PICTURE = encode(np.full((SIDE, SIDE, 3), 255, np.uint8))


def _full_only(folder: Path) -> Bundle:
    edge = colour_bundle(folder)
    (model,) = edge.manifest.edge
    return write_manifest(folder, (), edge.manifest.labels, full=model)


def _detectors(folder: Path) -> Bundle:
    return detector_bundle(folder)


@pytest.mark.parametrize(
    ("make", "tiers"), [(_detectors, {"agent", "gateway"}), (colour_bundle, {"agent"}), (_full_only, {"gateway"})]
)
def test_a_bundle_is_served_until_ctrl_c(tmp_path: Path, make: object, tiers: set[str]) -> None:
    folder, scratch, picture = tmp_path / "bundle", tmp_path / "scratch", tmp_path / "picture.png"
    folder.mkdir()
    scratch.mkdir()
    picture.write_bytes(PICTURE)
    assert callable(make)
    make(folder)
    serving = ForkedProcess("firstline", "run", folder, "-o", "json", environ=os.environ | {"TMPDIR": str(scratch)})
    try:
        ready = json.loads(serving.stdout.readline())
        assert {"agent", "gateway"} & set(ready) == tiers
        curl_command = [str(picture) if part == "@FILE" else part for part in shlex.split(ready["curl"])]
        assert curl_command[:3] == ["curl", "--data-binary", str(picture)]
        asking = ("infer", ready["model"], picture, "--url", ready["url"], "-o", "json", "--draw", tmp_path / "drawn")
        done = run_forked("firstline", *asking)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["file"] == str(picture)
        assert answer.get("label") or answer["objects"]
        with Image.open(tmp_path / "drawn" / "picture.png") as drawn:
            side = SIDE if "objects" in answer else 128  # a small picture is enlarged for its label
            assert drawn.size == (side, side)
            assert len(drawn.getcolors() or ()) > 1
        serving.send_signal(signal.SIGINT)
        _, errors = serving.communicate(timeout=30)
        assert (serving.returncode, errors) == (0, "")
        assert list(scratch.glob("firstline-run-*")) == []
    finally:
        serving.kill()
        serving.wait()


def test_a_pair_of_files_is_served_until_ctrl_c(tmp_path: Path) -> None:
    average_colours(tmp_path / "colours.onnx", size=4)
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")
    (tmp_path / "images").mkdir()
    for number, level in enumerate(range(40, 240, 2)):
        pixels = solid(number % 3, 8) // 255 * level
        (tmp_path / "images" / f"{number:03}.png").write_bytes(encode(pixels.astype(np.uint8)))
    arguments = ["--edge", "colours.onnx", "--full", "colours.onnx", "--data", "images", "--name", "colours"]
    # Pixels from 0 to 1 in the order RGB: without labels, no settled model tells them.
    arguments += ["--choose", "full=3", "--choose", "full=1"]
    serving = ForkedProcess("firstline", "pair", *arguments, "--serve", "-o", "json", cwd=tmp_path)
    try:
        lines = iter(serving.stdout.readline, "")
        report = "".join(takewhile(lambda line: line != "}\n", lines)) + "}"
        assert json.loads(report)["bundle"] == "pair/bundle"
        ready = json.loads(next(lines))
        with Client(ready["url"]) as client:
            assert client.infer_document("colours", tmp_path / "images" / "001.png")["label"] == "green"
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=30)
        assert serving.returncode == 0
    finally:
        serving.kill()
        serving.wait()
