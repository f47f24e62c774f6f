"""An installation with no other interpreter than tflite-runtime (`make tflite`) serves models of each task."""

import base64
import csv
import io
import shutil
import zipfile
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from support.agent import edge_settings, serving_agent

from bench.support.bundles import model, write_manifest
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.processing.steps import DecodeAudio, InputSpec, Mono, Pad, Resample
from firstline_edge.app import EdgeAgent

pytestmark = [
    pytest.mark.tflite,
    pytest.mark.shared_data,
    pytest.mark.skipif(find_spec("onnxruntime") is not None, reason="ONNX Runtime is installed here"),
]

RECIPES = Path(__file__).parents[2] / "models"


def write_bundle(data: Path, folder: Path, recipe: str, variant: str = "") -> None:
    """A bundle of one edge variant of a recipe, without the checks of `bundle create`, which need ONNX."""
    spec = read_recipe(RECIPES / recipe / "recipe.toml", data / recipe)
    chosen = next(each for each in spec.edge if variant in (each.id, ""))
    folder.mkdir(parents=True)
    steps: dict[str, Any] = {"preprocess": chosen.preprocess, "postprocess": chosen.postprocess}
    file = Path(shutil.copyfile(chosen.file, folder / chosen.file.name))
    edge = model(file, folder, id="edge", output=chosen.output, **steps)
    policy = Policy(Score(str(spec.policy.score)), 0.0)
    write_manifest(folder, [edge], spec.labels, name=folder.name, task=spec.task, policy=policy)


@pytest.fixture
async def served(shared_data: Path, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    models = tmp_path / "models"
    write_bundle(shared_data, models / "classes", "imagenet-cascade", "v1-128")
    write_bundle(shared_data, models / "small", "cifar10-cascade")
    write_bundle(shared_data, models / "objects", "coco-cascade", "ssd")
    write_bundle(shared_data, models / "boxes", "coco-cascade", "dynamic-range")
    write_bundle(shared_data, models / "areas", "pascal-segmentation-cascade")
    # A busy machine takes longer than the default.
    settings = edge_settings(tmp_path / "state", models__directories=[str(models)], policy__default_timeout_ms=60_000)
    async with serving_agent(settings) as (_, url), httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def ask(client: httpx.AsyncClient, name: str, image: bytes) -> dict[str, Any]:
    reply = await client.post(f"/firstline/v1/models/{name}/infer", content=image)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    assert answer["tier"] == "edge"
    return answer


def rows(file: Path, count: int) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as opened:
        return list(csv.DictReader(opened))[:count]


async def test_every_task_is_served(served: httpx.AsyncClient, shared_data: Path) -> None:
    assert await classified(served, shared_data) >= 8
    assert await classified_small(served, shared_data) >= 12
    assert await overlap(served, shared_data) > 0.45
    for name in ("objects", "boxes"):
        assert await detected(served, shared_data, name) >= 6, name


async def classified(client: httpx.AsyncClient, data: Path) -> int:
    """Photographs with the right one of 1,000 labels, of 20."""
    folder = data / "imagenet-cascade" / "dev"
    right = 0
    for row in rows(folder / "labels.csv", 20):
        found = await ask(client, "classes", (folder / "images" / row["file"]).read_bytes())
        right += found["label"] == row["name"]
    return right


async def classified_small(client: httpx.AsyncClient, data: Path) -> int:
    """Pictures with the right one of ten labels, of 20."""
    folder = data / "cifar10-cascade"
    labels = (folder / "labels.txt").read_text().split()
    right = 0
    with zipfile.ZipFile(folder / "dev" / "images.zip") as archive:
        for row in rows(folder / "dev" / "labels.csv", 20):
            found = await ask(client, "small", archive.read(row["file"]))
            right += found["label"] == labels[int(row["label"])]
    return right


async def detected(client: httpx.AsyncClient, data: Path, name: str) -> int:
    """Images whose best object is one of the labelled ones, of 10."""
    folder = data / "coco-cascade"
    labels = (folder / "labels.txt").read_text().splitlines()
    right = 0
    for row in rows(folder / "dev" / "images.csv", 10):
        found = await ask(client, name, (folder / "dev" / "images" / row["file"]).read_bytes())
        assert (found["width"], found["height"]) == (int(row["width"]), int(row["height"]))
        boxes = (folder / "dev" / "labels" / row["file"]).with_suffix(".txt").read_text().splitlines()
        right += bool(found["objects"]) and found["objects"][0]["label"] in {
            labels[int(box.split()[0])] for box in boxes
        }
    return right


async def overlap(client: httpx.AsyncClient, data: Path) -> float:
    """Mean over four images of the mean intersection over union with the labelled masks."""
    folder, images = data / "pascal-segmentation-cascade" / "dev", data / "coco-cascade" / "dev" / "images"
    found = []
    for row in [row for row in rows(folder / "images.csv", 10) if row["mask"]][:4]:
        answer = await ask(client, "areas", (images / row["file"]).read_bytes())
        truth = np.asarray(Image.open(folder / row["mask"]))
        small = Image.open(io.BytesIO(base64.b64decode(answer["mask"]["png"])))
        mask = np.asarray(small.resize(truth.shape[::-1], Image.Resampling.NEAREST))
        labelled = truth != 255
        seen = [(mask == each, truth == each) for each in np.union1d(mask[labelled], truth[labelled])]
        shares = [(ours & theirs & labelled).sum() / ((ours | theirs) & labelled).sum() for ours, theirs in seen]
        found.append(np.mean(shares))
    return float(np.mean(found))


@pytest.mark.skipif(find_spec("soundfile") is not None, reason="the extra audio is installed here")
async def test_a_model_of_recordings_names_the_extra_that_is_missing(shared_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "words"
    folder.mkdir(parents=True)
    any_model = shared_data / "cifar10-cascade" / "models" / "mlperf_resnet8_int8.tflite"
    file = Path(shutil.copyfile(any_model, folder / any_model.name))
    edge = model(file, folder, preprocess=(DecodeAudio(), Mono(), Resample(8000), Pad(8000)))
    write_manifest(folder, [edge], ("a", "b"), inputs=(InputSpec("clip", "BYTES", (-1,), "audio"),))
    settings = edge_settings(tmp_path / "state", models__directories=[str(folder.parent)])
    async with EdgeAgent(settings) as agent:
        [device_model] = agent.models.all
        assert device_model.edge is None
        assert "A model that takes audio files needs the package 'soundfile'" in device_model.problem
        assert "pip install 'firstline[audio]'" in device_model.problem
