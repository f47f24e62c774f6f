"""The cost of a request on the device: one hash of its input, no copy, no thread and no task."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import AsyncIterator
from concurrent.futures import wait
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.images import encode, images

from bench.support.bundles import artefact, with_certificate
from bench.support.onnx_models import linear
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, Policy, encode_manifest
from firstline_core.clock import SimulatedClock
from firstline_core.ids import new_request_id
from firstline_core.processing import images as image_processing
from firstline_core.processing.steps import InputSpec, ModelInput, Softmax
from firstline_core.routing.certificate import Histogram
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.tasks.classification import Classification
from firstline_core.types import InferRequest, InferResponse, Route, Tensor, Tier, take_rows
from firstline_edge.app import EdgeAgent
from firstline_edge.requests import context

FEATURES = 1 << 16


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[EdgeAgent]:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    path = linear(bundle / "edge.onnx", np.zeros((FEATURES, 2), np.float32))
    model = Model("edge", artefact(path, bundle), "onnx", "fp32", (ModelInput("x"),), postprocess=(Softmax(),))
    manifest = Manifest(
        name="wide",
        version=1,
        task=Classification(("yes", "no")),
        inputs=(InputSpec("x", "FP32", (-1, FEATURES)),),
        edge=(model,),
        full=replace(model, id="full"),
        policy=Policy(threshold=0.0),
    )
    histogram = Histogram((0.4, 0.6), (0.2, 0.4, 0.4))
    certified = with_certificate(model, manifest, 0.0, histogram=histogram)
    (bundle / MANIFEST_NAME).write_bytes(encode_manifest(replace(manifest, edge=(certified,))))
    settings = edge_settings(tmp_path / "state", models__directories=[str(bundle)])
    # In simulated time no turn of the loop ends for taking long: this machine may be busy.
    async with EdgeAgent(settings, clock=SimulatedClock()) as running:
        yield running


def row(value: float) -> Any:
    return np.full((1, FEATURES), value, np.float32)


def ask(agent: EdgeAgent, array: Any) -> InferResponse:
    """Answered without ever waiting: no task, no thread, no timer is on the way."""
    asking = agent.data_plane.infer(InferRequest("wide", (Tensor("x", array),), new_request_id()))
    with pytest.raises(StopIteration) as answered:
        asking.send(None)
    return answered.value.value


def tier(response: InferResponse) -> Tier:
    return response.answer.tier


async def test_the_input_is_hashed_once(agent: EdgeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[object] = []
    digest = context._content_digest
    monkeypatch.setattr(context, "_content_digest", lambda name, row: hashed.append(row) or digest(name, row))
    array = row(1.0)
    for expected in (Tier.EDGE, Tier.CACHE):
        hashed.clear()
        assert tier(ask(agent, array)) is expected
        assert len(hashed) == 1 and np.shares_memory(hashed[0], array)  # type: ignore[arg-type]


async def test_the_input_is_not_copied(agent: EdgeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[Any] = []
    run = OnnxRuntime._run
    monkeypatch.setattr(OnnxRuntime, "_run", lambda self, feeds: fed.append(feeds["x"]) or run(self, feeds))
    ask(agent, row(0.0))
    arrays = [row(2.0 + number) for number in range(5)]
    grown: dict[Tier, list[int]] = {Tier.EDGE: [], Tier.CACHE: []}
    tracemalloc.start()
    try:
        for array in arrays:
            for expected, bytes_ in grown.items():
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                assert tier(ask(agent, array)) is expected
                _, peak = tracemalloc.get_traced_memory()
                bytes_.append(peak - before)
    finally:
        tracemalloc.stop()
    # Other threads' memory is traced too, so that one of five may have grown by what is not its own.
    assert all(min(bytes_) < arrays[0].nbytes / 4 for bytes_ in grown.values())
    assert [each.ctypes.data for each in fed[1:]] == [array.ctypes.data for array in arrays]


async def test_the_header_of_an_image_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    header = image_processing.checked_header
    monkeypatch.setattr(image_processing, "checked_header", lambda *args: read.append(args[0]) or header(*args))
    digit = encode(np.zeros((8, 8), np.uint8))
    async with EdgeAgent(edge_settings(tmp_path)) as running:
        read.clear()
        request = InferRequest("digits", (images(digit),), new_request_id(), route=Route.EDGE)
        assert tier(await running.data_plane.infer(request)) is Tier.EDGE
    assert read == [digit]


async def test_an_image_next_to_a_cached_one_keeps_its_size(tmp_path: Path) -> None:
    small, large = encode(np.zeros((8, 8), np.uint8)), encode(np.tile(np.arange(24, dtype=np.uint8) * 10, (16, 1)))

    async def tiers_of(*encoded: bytes) -> list[Tier]:
        request = InferRequest("digits", (images(*encoded),), new_request_id(), route=Route.EDGE)
        response = await running.data_plane.infer(request)
        return [each.tier for each in response.answer.rows or (response.answer,)]

    async with EdgeAgent(edge_settings(tmp_path)) as running:
        assert await tiers_of(small) == [Tier.EDGE]
        assert await tiers_of(small, large) == [Tier.CACHE, Tier.EDGE]
        assert await tiers_of(large, small) == [Tier.CACHE, Tier.CACHE]


class Counting:
    """How many functions of Python's are entered while it is."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __enter__(self) -> Counting:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_qualname
        if event == "call" and not name.startswith(("Counting", "SimulatedClock", "gc_")):  # pytest plugins watch gc
            self.calls.append(name)


@pytest.mark.parametrize(("cached", "most"), [(True, 51), (False, 110)])
async def test_the_work_of_an_answer_is_bounded(agent: EdgeAgent, *, cached: bool, most: int) -> None:
    """Calls, unlike times, are the same on every machine: a step that is added to every request shows here."""
    rows = [row(float(value)) for value in range(3)]
    for array in rows if cached else rows[:1]:
        ask(agent, array)
    on_disk = agent.cache._disk
    assert on_disk._cache is not None
    while (outcome := on_disk._writing) is not None:
        wait([outcome])
        assert on_disk.problem == ""  # which hears of it
    ask(agent, rows[0])  # of this turn of the loop the first, which sets the timers
    asking = agent.data_plane.infer(InferRequest("wide", (Tensor("x", rows[2]),), new_request_id()))
    with pytest.raises(StopIteration) as answered, Counting() as counting:
        asking.send(None)
    assert tier(answered.value.value) is (Tier.CACHE if cached else Tier.EDGE)
    assert len(counting.calls) <= most, "\n".join(counting.calls)


async def test_the_caller_may_write_into_the_answer(agent: EdgeAgent) -> None:
    array = row(3.0)
    for _ in range(3):
        probabilities = ask(agent, array).output("probabilities")
        assert probabilities.tolist() == [[0.5, 0.5]]
        probabilities[:] = 7


async def test_rows_together_are_fed_as_they_came(agent: EdgeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[Any] = []
    run = OnnxRuntime._run
    monkeypatch.setattr(OnnxRuntime, "_run", lambda self, feeds: fed.append(feeds["x"]) or run(self, feeds))
    array = np.concatenate([row(4.0), row(5.0), row(6.0)])
    model = agent.models.find("wide")
    model.edge.run(take_rows({"x": array}, [0, 1, 2]))
    model.edge.run(take_rows({"x": array}, [1, 2]))
    model.edge.run(take_rows({"x": array}, [2, 0]))
    assert [np.shares_memory(each, array) for each in fed] == [True, True, False]
