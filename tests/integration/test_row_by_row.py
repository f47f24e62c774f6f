"""Models with `batch: 1`, whose rows depend on each other: a row's answer is the same whatever it runs with."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import pytest
from msgspec import structs
from support.agent import edge_settings, serving_agent
from support.gateway import serving
from support.impure_models import dynamically_quantised
from support.small_models import small_gateway

from bench.support.bundles import model, write_manifest
from firstline.workbench.data.dataset import open_dataset
from firstline_core.bundle.loading import load_model
from firstline_core.processing.steps import Decode, InputSpec, Layout, Resize, Scale, Softmax
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Array, Arrays, join_rows
from firstline_gateway.executors.local import run_batch

_ROWS, _BATCH, _THRESHOLD = 128, 32, 0.9


@pytest.fixture(scope="module")
def quantised(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that onnxruntime's dynamic quantisation makes of ResNet-20."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # only here, because it imports much

    file = tmp_path_factory.mktemp("resnet20") / "resnet20.onnx"
    source = shared_data / "cifar10-cascade" / "models" / "resnet20_cifar10.onnx"
    quantize_dynamic(source, file, weight_type=QuantType.QUInt8)
    return file


def answers(file: Path, inputs: list[Arrays], size: int, batch: Literal[1] | None) -> Array:
    """Probabilities (rows, classes) of requests of one row, `size` of them in each batch of the executor."""
    declared = model(
        file,
        file.parent,
        preprocess=(
            Decode("RGB"),
            Resize(32, 32),
            Scale((0.0,), (255.0,)),
            Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            Layout("NCHW"),
        ),
        postprocess=(Softmax(),),
        batch=batch,
    )
    bundle = write_manifest(file.parent, [declared], [str(label) for label in range(10)])
    found: list[Any] = []
    with closing(load_model(bundle, bundle.manifest.models[0], RuntimeOptions())) as loaded:
        for start in range(0, len(inputs), size):
            found += run_batch(loaded, inputs[start : start + size], size)
    return join_rows(found)[PROBABILITIES]


@pytest.mark.shared_data
def test_a_certificate_describes_what_a_gateway_runs(shared_data: Path, quantised: Path) -> None:
    """The check of `bundle create` writes `batch: 1` for this model; a certificate counts its answers row by row."""
    dataset = open_dataset(shared_data / "cifar10-cascade" / "dev", _ROWS)
    inputs = [{"image": np.array([encoded], dtype=np.object_)} for encoded in dataset.contents()]
    assert len(inputs) == _ROWS
    alone = answers(quantised, inputs, 1, None)

    together = answers(quantised, inputs, _BATCH, None)
    assert np.abs(together - alone).max() > 1e-2  # what a threshold and a certificate must not meet

    obeyed = answers(quantised, inputs, _BATCH, 1)
    assert (obeyed.argmax(axis=1) == alone.argmax(axis=1)).all()
    assert ((obeyed.max(axis=1) >= _THRESHOLD) == (alone.max(axis=1) >= _THRESHOLD)).all()
    np.testing.assert_array_equal(obeyed, alone)


@pytest.mark.parametrize("threshold", [0.0, 1.1], ids=["local", "escalated"])
async def test_both_tiers_answer_a_batch_row_by_row(tmp_path: Path, threshold: float) -> None:
    folder = tmp_path / "models" / "small"
    folder.mkdir(parents=True)
    declared = model(dynamically_quantised(folder / "m.onnx"), folder, postprocess=(Softmax(),), batch=1)
    edge = structs.replace(declared, id="edge")
    write_manifest(folder, [edge], ("a", "b", "c"), full=declared, inputs=(InputSpec("x", "FP32", (-1, 4)),))
    rows = (np.random.default_rng(2).standard_normal((8, 4)) * np.resize([0.2, 5], 8)[:, None]).tolist()
    async with serving(small_gateway(tmp_path)) as gateway_url, httpx.AsyncClient(timeout=20) as client:
        settings = edge_settings(
            tmp_path / "state",
            models__directories=[str(folder)],
            links=[{"kind": "http", "url": gateway_url}],
            policy__min_threshold=threshold,
            cache__memory_limit_bytes=0,
            cache__disk_limit_bytes=0,
        )
        async with serving_agent(settings) as (_, url):

            async def ask(tier: str, part: list[list[float]]) -> list[float]:
                input_tensor = {"name": "x", "datatype": "FP32", "shape": [len(part), 4], "data": part}
                reply = await client.post(f"{tier}/v2/models/small/infer", json={"inputs": [input_tensor]})
                return reply.json()["outputs"][0]["data"]

            config = (await client.get(f"{gateway_url}/v2/models/small/config")).json()
            assert "dynamic_batching" not in config  # a gateway in front of this one would refuse it
            alone = [value for row in rows for value in await ask(gateway_url, [row])]
            for tier in (gateway_url, url):
                assert await ask(tier, rows) == pytest.approx(alone, abs=1e-6)
                at_once = await asyncio.gather(*[ask(tier, [row]) for row in rows])
                assert [value for each in at_once for value in each] == pytest.approx(alone, abs=1e-6)
