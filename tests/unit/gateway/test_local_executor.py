from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image
from support.gateway import DIGITS, Doubler

from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Array, Tensor
from firstline_gateway.executors.base import ModelKey, Probabilities
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.repository import load_repository

M = ModelKey("m", 1)


class Meeting(Doubler):
    """A model that returns only once `parties` threads run it at the same moment."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(parties, timeout=10)
        self.met = False
        self.closed = False

    def run(self, rows: Array) -> Probabilities:
        self.met = True
        self.barrier.wait()
        return super().run(rows)

    def close(self) -> None:
        self.closed = True


async def test_as_many_batches_run_side_by_side_as_there_are_sessions() -> None:
    model = Meeting(3)
    executor = LocalExecutor({M: cast(LoadedModel, model)}, sessions=3, max_batch_rows=4)
    assert executor.slots == 3
    tensor = Tensor("x", np.ones((1, 1), np.float32))
    answers = await asyncio.gather(*(executor.run(M, [tensor], [None]) for _ in range(3)))
    assert [np.asarray(outcome).tolist() for (outcome,) in answers] == [[[2]]] * 3
    assert await executor.close(10)
    assert model.closed


async def test_closing_waits_so_long_and_says_what_runs_on() -> None:
    model = Meeting(2)
    executor = LocalExecutor({M: cast(LoadedModel, model)}, sessions=1, max_batch_rows=4)
    tensor = Tensor("x", np.ones((1, 1), np.float32))
    running = asyncio.create_task(executor.run(M, [tensor], [None]))
    while not model.met:  # noqa: ASYNC110 (it is in another thread)
        await asyncio.sleep(0.001)
    assert not await executor.close(0)
    assert not model.closed
    model.barrier.wait()
    (outcome,) = await running
    assert np.asarray(outcome).tolist() == [[2]]
    assert await executor.close(10)
    assert model.closed


async def test_a_real_bundle_answers_each_request_with_its_own_rows(tmp_path: Path) -> None:
    repository = load_repository(DIGITS, RuntimeOptions())
    executor = LocalExecutor({served.key: served.loaded for served in repository}, sessions=2, max_batch_rows=3)
    file = tmp_path / "blank.png"
    Image.new("L", (8, 8), 128).save(file)
    encoded = np.array([file.read_bytes()], dtype=np.object_)
    one, bad, four = await executor.run(
        ModelKey("digits", 1),
        [
            Tensor("image", encoded),
            Tensor("image", np.array([b"not an image"], dtype=np.object_)),
            Tensor("image", np.repeat(encoded, 4)),
        ],
        [None, None, None],
    )
    await executor.close(10)
    assert isinstance(bad, Exception)
    assert "Row 0" in str(bad) or "row 0" in str(bad)
    assert np.asarray(one).shape == (1, 10)
    np.testing.assert_allclose(np.asarray(four), np.repeat(np.asarray(one), 4, axis=0), atol=1e-6)
