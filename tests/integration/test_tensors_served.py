"""Bundles of the task tensors on both tiers, also of a full model alone."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
from support.either_tier import either_tier

from bench.support.onnx_models import linear
from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline_core.tasks.tensors import DeclaredTensor, Tensors

_TASK = Tensors((DeclaredTensor("depth", "FP32", (-1, 2)),), absolute=0.1)


@pytest.mark.parametrize("tier", ["agent", "gateway"])
async def test_both_tiers_answer_with_declared_tensors(tier: str, tmp_path: Path) -> None:
    model = ModelSpec(linear(tmp_path / "m.onnx", np.array([[1, 0], [0, 2]], np.float32)))
    edge = (model,) if tier == "agent" else ()
    spec = BundleSpec("depths", 1, (), edge, model, PolicySpec("none", threshold=0.0), configured=_TASK)
    create_bundle(spec, tmp_path / "models" / "depths")
    async with either_tier(tier, tmp_path) as (url, _), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        found = await client.post("/firstline/v1/models/depths/infer", json={"x": [[1, 2]]})
        assert (found.status_code, found.json()["outputs"]) == (200, {"depth": [[1, 4]]}), found.text
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]}
        reply = (await client.post("/v2/models/depths/infer", json=body)).json()
        assert [(each["name"], each["data"]) for each in reply["outputs"]] == [("depth", [1, 4, 3, 8])]
