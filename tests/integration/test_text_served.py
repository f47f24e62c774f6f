"""Bundles of models that answer with text, on both tiers."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper
from support.either_tier import either_tier

from bench.support.onnx_models import write_graph
from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline.workbench.step_syntax import parse_postprocess
from firstline_core.tasks.text import Text

pytest.importorskip("rapidfuzz", reason="the extra text is not installed")

_SYMBOLS = "-gopst"  # the blank first


@pytest.mark.parametrize("tier", ["agent", "gateway"])
async def test_both_tiers_answer_with_text(tier: str, tmp_path: Path) -> None:
    size = ["n", 6, len(_SYMBOLS)]
    file = write_graph(
        tmp_path / "m.onnx",
        [helper.make_node("Mul", ["x", "x"], ["logits"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, size)],
        [],
    )
    (tmp_path / "symbols.txt").write_text("\n".join(_SYMBOLS[1:]))
    model = ModelSpec(file, postprocess=parse_postprocess("softmax,ctc:symbols.txt", tmp_path))
    task = Text(keywords=("stop", "go"))
    spec = BundleSpec("words", 1, (), (model,), model, PolicySpec("lowest_probability", threshold=0.5), configured=task)
    create_bundle(spec, tmp_path / "models" / "words")
    rows = np.zeros((2, 6, len(_SYMBOLS)), np.float32)
    for row, said in enumerate(("stoop-", "go----")):
        rows[row, range(6), [_SYMBOLS.index(symbol) for symbol in said]] = 3
    async with either_tier(tier, tmp_path) as (url, _), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        found = await client.post("/firstline/v1/models/words/infer", json={"x": rows.tolist()})
        assert found.status_code == 200, found.text
        assert [(row["text"], row["keywords"]) for row in found.json()["results"]] == [
            ("stop", ["stop"]),
            ("go", ["go"]),
        ]
        body = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, *rows.shape[1:]], "data": rows.ravel().tolist()}]
        }
        [output] = (await client.post("/v2/models/words/infer", json=body)).json()["outputs"]
        assert (output["name"], output["datatype"], output["data"]) == ("text", "BYTES", ["stop", "go"])
