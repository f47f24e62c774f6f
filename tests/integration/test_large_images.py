"""Where both tiers prepare inputs: small ones where the model runs, large ones in the threads for images."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from support.agent import DIGITS
from support.either_tier import either_tier
from support.gateway import serving
from support.images import grey, image_threads
from support.inference import post
from support.small_models import small_gateway

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.ids import new_request_id
from firstline_core.processing.cost import LIGHT_BYTES, LIGHT_PIXELS
from firstline_core.processing.steps import BandEnergies, InputSpec
from firstline_core.tasks.regression import Regression
from firstline_core.types import InferRequest, Tensor

SIDE = int(LIGHT_PIXELS**0.5)


@asynccontextmanager
async def mixed_gateway(folder: Path) -> AsyncIterator[str]:
    """A gateway that runs the model itself, and has another engine too."""
    executors = {"here": {"engine": "local"}, "far": {"engine": "oip", "endpoints": ["http://127.0.0.1:1"]}}
    async with serving(small_gateway(folder, executors=executors)) as url:
        yield url


@pytest.mark.parametrize("tier", ["gateway", "agent", "mixed"])
async def test_only_large_images_are_decoded_in_a_thread_for_images(tier: str, tmp_path: Path) -> None:
    before = image_threads()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "digits").symlink_to(DIGITS)
    opened = mixed_gateway(tmp_path) if tier == "mixed" else either_tier(tier, tmp_path)
    async with (
        opened as found,
        httpx.AsyncClient(base_url=found if isinstance(found, str) else found[0], trust_env=False, timeout=30) as http,
    ):
        for side, threads in ((SIDE, 0), (SIDE + 1, 1)):
            answer = await http.post("/firstline/v1/models/digits/infer", content=grey(side=side))
            assert answer.status_code == 200, answer.text
            assert len(image_threads() - before) == threads


@pytest.mark.parametrize("tier", ["gateway", "agent"])
async def test_only_long_signals_are_prepared_within_the_budget_of_memory(tier: str, tmp_path: Path) -> None:
    before = image_threads()
    root = tmp_path / "models" / "bands"
    root.mkdir(parents=True)
    steps = (BandEnergies(1000.0, (1.0, 2.0, 3.0)),)
    edge = model(linear(root / "edge.onnx", np.eye(2, dtype=np.float32)), root, preprocess=steps)
    signal = InputSpec("signal", "FP32", (-1, -1))
    full = msgspec.structs.replace(edge, id="full")
    fields = {"name": "bands", "inputs": (signal,), "full": full, "policy": Policy(Score("small_values"), 0.0)}
    write_manifest(root, [edge], (), task=Regression(("a", "b"), absolute=1), **fields)
    async with (
        either_tier(tier, tmp_path) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
    ):
        for samples, threads in ((1000, 0), (LIGHT_BYTES // 8, 1)):
            values = Tensor("signal", np.ones((1, samples), np.float32))
            answer = await post(http, InferRequest("bands", (values,), new_request_id(), deadline_s=30))
            assert answer.status_code == 200, answer.text
            assert len(image_threads() - before) == threads
