"""What MLServer's own suites ask of a V2 server, asked of both tiers, over REST and gRPC. Scenarios, not code.

https://github.com/SeldonIO/MLServer/tree/master/tests

| MLServer's scenario | here |
|---|---|
| rest/test_endpoints: live, ready; grpc/test_servicers: server_live, server_ready | `test_clients.py` |
| rest: model_ready, with a version; grpc: server_model_ready | `test_clients.py` |
| rest: metadata, model_metadata; grpc likewise | `test_both_transports_describe_server_and_model` |
| rest: openapi, docs | `test_openapi.py` (one description; no pages that load scripts from elsewhere) |
| rest: infer, with and without a version | `test_clients.py` |
| rest: infer_headers (x-foo comes back) | left out: a header that a client sends is its own; the id is what is echoed |
| rest: infer_error (an unknown model's sentence and 404); grpc: the same as NOT_FOUND | `test_clients.py` |
| rest: infer_invalid_datatype_error | `e2e/test_wrong_inputs.py` (400, Triton's status, where MLServer says 422) |
| rest: generate, generate_stream, infer_stream | left out: they are for models that write text |
| rest: model_repository_index; grpc/test_model_repository: index | `test_clients.py` |
| rest: model_repository_load, unload; grpc: load, unload | `test_model_repository.py`, `test_clients.py` |
| rest: model_repository_load_error; grpc: load_error (404, NOT_FOUND) | `test_clients.py` |
| grpc/test_servicers: model_infer; grpc/test_converters | `test_clients.py` |
| grpc/test_model_infer: a message over MLServer's limit | `test_grpc.py` |
| rest/test_codecs, grpc/test_codecs: each datatype travels | `unit/core/protocol/test_oip.py`, `grpc/test_codec.py` |
| rest: gzip requests | `test_clients.py` |
| grpc/test_interceptor, metrics: what was asked is counted | `test_requests_are_counted` |
| repository: several versions, the latest answers | `test_versions` |
| repository: reload of a model under load loses no request | `test_model_repository.py` |
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.either_tier import either_tier
from support.grpc_calls import Call, calling
from support.small_models import ROW, put

from firstline_core.protocol.grpc.schema import message

NAME = "small"


@dataclass(frozen=True)
class Tier:
    """Both ways into one tier."""

    rest: httpx.AsyncClient
    rpc: Call
    folder: Path


@pytest.fixture(params=["gateway", "agent"])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tier]:
    put(tmp_path / "models" / NAME)
    async with AsyncExitStack() as opened:
        url, port = await opened.enter_async_context(either_tier(request.param, tmp_path))
        rest = await opened.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))
        call = await opened.enter_async_context(calling(port))
        yield Tier(rest, call, tmp_path / "models")


def asked(kind: str, **fields: object) -> Any:
    return message(kind)(**fields)


async def infer(tier: Tier, path: str = f"/v2/models/{NAME}/infer") -> list[float]:
    reply = await tier.rest.post(path, content=json.dumps(ROW))
    assert reply.status_code == 200, reply.text
    (output,) = reply.json()["outputs"]
    return output["data"]


async def test_both_transports_describe_server_and_model(tier: Tier) -> None:
    document, over_grpc = (await tier.rest.get("/v2")).json(), await tier.rpc("ServerMetadata")
    assert document["name"] in ("firstline-gateway", "firstline-edge")
    found = (over_grpc.name, over_grpc.version, list(over_grpc.extensions))
    assert found == (document["name"], document["version"], document["extensions"])
    model = (await tier.rest.get(f"/v2/models/{NAME}")).json()
    over_grpc = await tier.rpc("ModelMetadata", asked("ModelMetadataRequest", name=NAME))
    assert (model["name"], model["versions"], model["platform"]) == (NAME, ["1"], "onnxruntime_onnx")
    assert (over_grpc.name, list(over_grpc.versions), over_grpc.platform) == (NAME, ["1"], "onnxruntime_onnx")
    assert model["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 4]}]
    assert [list(each.shape) for each in over_grpc.inputs] == [[-1, 4]]


async def test_requests_are_counted(tier: Tier) -> None:
    for _ in range(3):
        await infer(tier)
    (document,) = (await tier.rest.get(f"/v2/models/{NAME}/stats")).json()["model_stats"]
    assert document["inference_stats"]["success"]["count"] == 3
    computed = [document["inference_stats"][f"compute_{part}"] for part in ("input", "infer", "output")]
    assert {each["count"] for each in computed} == {document["execution_count"]}
    if (await tier.rest.get("/v2")).json()["name"] == "firstline-gateway":  # a device measures the three as one
        assert all(each["ns"] > 0 for each in computed)
        (batch,) = document["batch_stats"]
        assert sum(batch[f"compute_{part}"]["ns"] for part in ("input", "infer", "output")) > 0
        assert batch["compute_input"]["ns"] > 0
    (over_grpc,) = (await tier.rpc("ModelStatistics", asked("ModelStatisticsRequest", name=NAME))).model_stats
    assert over_grpc.inference_stats.success.count == 3
    assert "_requests_total" in (await tier.rest.get("/metrics")).text


async def test_versions(tier: Tier) -> None:
    first = await infer(tier)
    put(tier.folder / "2", version=2, seed=2)
    loaded = await tier.rest.post(f"/v2/repository/models/{NAME}/load")
    assert loaded.status_code == 200, loaded.text
    assert (await tier.rest.get(f"/v2/models/{NAME}")).json()["versions"] in (["1", "2"], ["2"])
    assert await infer(tier) != first
    assert await infer(tier, f"/v2/models/{NAME}/versions/1/infer") == first
    for version in ("1", "2"):
        assert (await tier.rest.get(f"/v2/models/{NAME}/versions/{version}")).status_code == 200
        assert (await tier.rest.get(f"/v2/models/{NAME}/versions/{version}/config")).status_code == 200
        stats = (await tier.rest.get(f"/v2/models/{NAME}/versions/{version}/stats")).json()["model_stats"]
        assert [each["version"] for each in stats] == [version]
    assert len((await tier.rest.get(f"/v2/models/{NAME}/stats")).json()["model_stats"]) == 2
    assert (await tier.rest.get(f"/v2/models/{NAME}/versions/3/stats")).status_code == 404
