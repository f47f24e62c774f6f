"""Provisional answers of each task while the link is down, and their corrections."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from support.agent import edge_settings, serving_agent
from support.gateway import serving
from support.sample_bundles import NUMBERS
from support.small_models import small_gateway
from support.waiting import until

from bench.support.bundles import artefact, model, write_manifest
from bench.support.onnx_models import linear
from firstline.demo.cuttable_link import CuttableLink
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.processing.steps import Columns, Gallery, PostStep, Spread, Threshold
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.embedding import Embedding
from firstline_core.tasks.regression import Regression

SAME, OTHER = [1.0, 0.5], [0.5, 1.0]
"""Rows about which the edge model (first number) and the full model (first minus second) agree, or do not."""


class Case(NamedTuple):
    """A task, the steps of both models, and what the answers to OTHER say."""

    task: Task
    steps: tuple[PostStep, ...]
    edge: Mapping[str, Any]
    full: Mapping[str, Any]


CASES = {
    "regression": Case(
        Regression(absolute=0.75),
        (Columns((0,)), Spread(columns=(1,))),
        {"values": {"value": 0.5}},
        {"values": {"value": -0.5}},
    ),
    "anomaly": Case(
        Anomaly(),
        (Columns((0,)), Threshold(0.1)),
        {"anomalous": True, "score": 0.5},
        {"anomalous": False, "score": -0.5},
    ),
    "embedding": Case(
        Embedding(1, labels=("up", "down")),
        (Columns((0,)), Gallery(artefact=None)),  # type: ignore[arg-type]
        {"neighbour": "up", "similarity": 1.0},
        {"neighbour": "down", "similarity": 1.0},
    ),
    "tags": Case(Classification(("plain", "fancy"), independent=True), (), {"labels": ["plain"]}, {"labels": []}),
}


def write(folder: Path, name: str) -> None:
    """Writes a bundle whose edge model is never sure enough."""
    case = CASES[name]
    folder.mkdir(parents=True)
    weights = {"edge": [[1, 0], [0, 0]], "full": [[1, 0], [-1, 0]]}
    files = {key: linear(folder / f"{key}.onnx", np.array(value, np.float32)) for key, value in weights.items()}
    np.save(folder / "gallery.npy", np.array([[1], [-1]], np.float32))
    gallery = Gallery(artefact(folder / "gallery.npy", folder))
    steps = tuple(gallery if isinstance(step, Gallery) else step for step in case.steps)
    if name == "tags":
        weights_of_tags = {"edge": [[1, 0], [0, 0]], "full": [[1, 0], [-0.5, 0]]}
        files = {k: linear(folder / f"{k}.onnx", np.array(v, np.float32)) for k, v in weights_of_tags.items()}
    edge, full = (model(file, folder, id=key, postprocess=steps) for key, file in files.items())
    score = Score("margin" if name == "tags" else case.task.score_kinds[-1])
    policy = Policy(score, 1.0)
    write_manifest(folder, [edge], (), name=name, task=case.task, inputs=(NUMBERS,), full=full, policy=policy)


async def corrected(client: httpx.AsyncClient, request_id: str) -> dict[str, Any]:
    """The answer that follows a provisional one."""
    found: dict[str, Any] = {}

    async def final() -> bool:
        found.update((await client.get(f"/firstline/v1/answers/{request_id}")).json())
        return bool(found["status"] == "final")

    await until(final)
    return found


@pytest.mark.parametrize("row", [SAME, OTHER], ids=["same", "other"])
async def test_an_answer_is_provisional_and_then_corrected(tmp_path: Path, row: list[float]) -> None:
    for name in CASES:
        write(tmp_path / "models" / name, name)
    gateway = small_gateway(tmp_path)
    async with serving(gateway) as far, CuttableLink(int(far.rpartition(":")[2])) as wire:
        link = {"kind": "http", "url": f"http://127.0.0.1:{wire.port}"}
        settings = edge_settings(
            tmp_path / "state",
            models__directories=[str(tmp_path / "models")],
            links=[link],
            breaker__open_ms=50,
            breaker__open_max_ms=100,
        )
        async with serving_agent(settings) as (_, url), httpx.AsyncClient(base_url=url, timeout=20) as client:
            await wire.cut()
            first = {}
            for name in CASES:
                reply = await client.post(f"/firstline/v1/models/{name}/infer", json={"x": [row]})
                first[name] = reply.json()
                assert first[name]["status"] == "provisional", reply.text
            await wire.restore()
            for name, case in CASES.items():
                final = await corrected(client, first[name]["request_id"])
                assert (final["status"], final["tier"]) == ("final", "cloud")
                assert final["changed"] == (row == OTHER), (name, final)
                if row == OTHER:
                    assert first[name] | case.edge == first[name]
                    assert final | case.full == final
