import threading
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.databases import sqlite_store
from support.gateway import DIGITS, request_of
from support.waiting import until

from firstline_core.processing import GENERATION
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, AuditNote, InferRequest, Tensor
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.serving import data_plane, request_digest
from firstline_gateway.serving.response_cache import ResponseCache, answer_key
from firstline_gateway.settings.load import load

ANSWER = {PROBABILITIES: np.array([[0.25, 0.75]], np.float32)}


@pytest.fixture(scope="module")
def served() -> ServedModel:
    (found,) = ModelsFolder(DIGITS).load(RuntimeOptions())
    return found


def test_a_cached_answer_is_a_copy_of_its_rows() -> None:
    cache = ResponseCache(10_000)
    batch = np.repeat(ANSWER[PROBABILITIES], 64, axis=0)
    cache.put(b"k", {PROBABILITIES: batch[3:4]})
    found = cache.get(b"k")[PROBABILITIES]
    assert found.tolist() == ANSWER[PROBABILITIES].tolist()
    assert found.base is None
    assert not found.flags.writeable


def test_the_least_recently_used_answers_are_evicted() -> None:
    cache = ResponseCache(3 * 450)
    for key in (b"a", b"b", b"c"):
        cache.put(key, ANSWER)
    cache.get(b"a")
    cache.put(b"d", ANSWER)
    assert cache.size_bytes <= 3 * 450
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.get(key) is not None] == [b"a", b"c", b"d"]
    cache.put(b"large", {PROBABILITIES: np.zeros((100, 100), np.float32)})
    assert cache.get(b"large") is None
    assert len(cache) == 3


def test_a_key_depends_on_the_answer_and_the_principal(served: ServedModel) -> None:
    array = np.array([[1.0], [2.0]], np.float32)
    infer_request = replace(request_of(1.0), inputs=(Tensor("image", array),))
    others = [
        replace(infer_request, inputs=(Tensor("image", array + 1),)),
        replace(infer_request, principal="application:b"),
        replace(infer_request, inputs=(Tensor("image", array.reshape(1, 2)),)),
        replace(infer_request, inputs=(Tensor("image", array.view(np.int32)),)),
        replace(infer_request, inputs=(Tensor("image", np.array([b"ab", b"c"], np.object_)),)),
        replace(infer_request, inputs=(Tensor("image", np.array([b"a", b"bc"], np.object_)),)),
    ]
    keys = {answer_key(each, served) for each in (infer_request, *others)}
    assert len(keys) == 1 + len(others)
    assert all(key is not None and len(key) == 32 for key in keys)
    assert answer_key(replace(infer_request, id="x", request_id="y", version="1"), served) in keys


def test_a_key_depends_on_the_processings_generation(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = answer_key(request_of(1.0), served)
    monkeypatch.setattr("firstline_core.processing.GENERATION", GENERATION + 1)
    assert answer_key(request_of(1.0), served) != earlier


def test_audits_and_promises_are_always_computed(served: ServedModel) -> None:
    note = AuditNote(propensity=1.0, epsilon=0.05, threshold=0.5, edge_digest="0" * 64)
    assert answer_key(request_of(1.0, audit=note), served) is None
    assert answer_key(request_of(1.0, promised=True), served) is None


def gateway_of(folder: Path) -> Gateway:
    settings = load(
        None,
        overrides={
            "auth.mode": "off",
            "models.directory": str(DIGITS),
            "store.url": sqlite_store(folder).url,
            "identity.directory": str(folder / "identity"),
            "cache.limit_bytes": "100000",
        },
    )
    return open_gateway(settings)


def pixels(value: int = 100) -> InferRequest:
    tensor = Tensor("image", np.full((1, 8, 8, 1), value, np.uint8))
    return InferRequest(model="digits", inputs=(tensor,), request_id="r")


@pytest.mark.parametrize("size", ["small", "large"])
async def test_a_cache_runs_an_input_once(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And hashes a large one where that does not hold up the event loop."""
    hashed_here = []

    def hashed(request: InferRequest, served: ServedModel) -> bytes | None:
        hashed_here.append(threading.current_thread() is threading.main_thread())
        return answer_key(request, served)

    monkeypatch.setattr(data_plane, "answer_key", hashed)
    if size == "large":
        monkeypatch.setattr(request_digest, "_HASHED_HERE_BYTES", 63)
    gateway = gateway_of(tmp_path)
    await gateway.start()
    await until(gateway.plane.ready)
    first = await gateway.plane.infer(pixels())
    second = await gateway.plane.infer(pixels())
    (counted,) = gateway.plane.statistics()
    await gateway.close()
    assert second.output("probabilities").tolist() == first.output("probabilities").tolist()
    assert (counted.inference_count, counted.cache_hit.count, counted.cache_miss.count) == (1, 1, 1)
    assert second.answer.certified
    assert hashed_here == [size == "small"] * 2


async def test_a_cached_answer_loads_no_model(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path)
    await gateway.start()
    first = await gateway.plane.infer(pixels())
    assert await gateway.residency.memory._evict_one()
    again = await gateway.plane.infer(pixels())
    assert gateway.residency.memory.resident == []
    assert again.output("probabilities").tolist() == first.output("probabilities").tolist()
    await gateway.plane.infer(pixels(101))
    assert [key.name for key in gateway.residency.memory.resident] == ["digits"]
    await gateway.close()
