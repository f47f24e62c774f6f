"""Models are loaded and unloaded on running tiers, over REST and gRPC: Triton's `model_repository` extension."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.agent import edge_settings
from support.broker import free_port
from support.gateway import DIGITS, serving
from support.grpc_calls import calling, digits_message, refusal
from support.keys import create_key
from support.small_models import ROW, Asking, put, small_gateway, small_tier
from support.waiting import until

from firstline_core.errors import ForbiddenError
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.http import BodyBudget
from firstline_edge.api import server as edge_server
from firstline_edge.api.access import access_of, check_local
from firstline_edge.app import EdgeAgent

LOAD, UNLOAD = "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"


@pytest.fixture(params=["gateway", "agent"])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Asking, Path]]:
    """Either tier with one small model, and the folder of its models."""
    async with small_tier(request.param, tmp_path) as found:
        yield found, tmp_path / "models"


async def test_a_changed_bundle_is_served_after_a_load(tier: tuple[Asking, Path]) -> None:
    asking, folder = tier
    before = await asking.probabilities()
    put(folder / "small", seed=1)
    assert await asking.probabilities() == before
    assert await asking.post(LOAD.format("small")) == (200, {"name": "small", "load": True})
    assert await asking.probabilities() != before
    put(folder / "second", version=2)
    put(folder / "another", name="another")
    assert (await asking.post(LOAD.format("small"), {"parameters": {}}))[0] == 200
    assert await asking.probabilities() == before  # version 2 is the current one, and has the first weights
    assert set(await asking.index()) == {("small", "1"), ("small", "2")}
    assert (await asking.post(LOAD.format("another")))[0] == 200
    assert set(await asking.index()) == {("small", "1"), ("small", "2"), ("another", "1")}
    shutil.rmtree(folder / "small")
    assert (await asking.post(LOAD.format("small")))[0] == 200
    state, reason = (await asking.index())["small", "1"]
    assert (state, "no more" in reason or "no longer" in reason) == ("UNAVAILABLE", True)


async def test_a_second_bundle_of_a_version_is_refused(tier: tuple[Asking, Path]) -> None:
    asking, folder = tier
    before = await asking.probabilities()
    put(folder / "twin", seed=1)
    status, refused = await asking.post(LOAD.format("small"))
    assert status == 400 and "are both version 1 of 'small'; remove one" in refused["error"]
    assert await asking.probabilities() == before


async def test_unloaded_model_is_not_served(tier: tuple[Asking, Path]) -> None:
    asking, _ = tier
    assert await asking.post(UNLOAD.format("small"), {"parameters": {"unload_dependents": False}}) == (
        200,
        {"name": "small", "unload": True},
    )
    state, reason = (await asking.index())["small", "1"]
    assert (state, reason.startswith("unloaded")) == ("UNAVAILABLE", True)
    status, _ = await asking.post("/v2/models/small/infer", ROW)
    assert status in (404, 503)  # an agent has no gateway here to send it to
    for address in ("/v2/models/small", "/v2/models/small/ready"):
        assert (await asking.client.get(address)).status_code == 404
    assert (await asking.post(UNLOAD.format("small")))[0] == 404
    assert (await asking.post(LOAD.format("small")))[0] == 200
    assert (await asking.index())["small", "1"] == ("READY", "")
    assert len(await asking.probabilities()) == 3


async def test_invalid_bundle_keeps_the_served_model(tier: tuple[Asking, Path]) -> None:
    asking, folder = tier
    before = await asking.probabilities()
    (folder / "small" / "full.onnx").write_bytes(b"nothing")
    status, reply = await asking.post(LOAD.format("small"))
    assert status == 400
    assert "manifest says" in reply["error"]
    assert "served on" in reply["error"] or "stay loaded" in reply["error"]
    assert await asking.probabilities() == before
    state, _ = (await asking.index())["small", "1"]
    assert state == "READY"
    assert (await asking.post(LOAD.format("nobody")))[0] == 404


@pytest.mark.parametrize("name", ["config", "file:1/model.onnx"])
async def test_models_within_a_request_are_refused(tier: tuple[Asking, Path], name: str) -> None:
    status, reply = await tier[0].post(LOAD.format("small"), {"parameters": {name: "e30="}})
    assert status == 400
    assert "a model is what its signed bundle says" in reply["error"]
    for body in ([1], {"parameters": 3}, "x"):
        assert (await tier[0].post(LOAD.format("small"), body))[0] == 400
        assert (await tier[0].post(UNLOAD.format("small"), body))[0] == 400


async def test_reloads_lose_no_request(tier: tuple[Asking, Path]) -> None:
    asking, folder = tier
    stop = False
    seen: list[tuple[float, ...]] = []

    async def ask() -> None:
        while not stop:
            seen.append(tuple(await asking.probabilities()))

    tasks = [asyncio.create_task(ask()) for _ in range(4)]
    for seed in (1, 2, 3):
        put(folder / "next", seed=seed)
        shutil.rmtree(folder / "small")
        (folder / "next").rename(folder / "small")
        assert (await asking.post(LOAD.format("small")))[0] == 200
        await asking.probabilities()
    stop = True
    await asyncio.gather(*tasks)
    assert len(set(seen)) >= 2


async def test_gateway_repository_over_grpc_needs_an_operator(tmp_path: Path) -> None:

    put(tmp_path / "models" / "small")
    gateway = small_gateway(tmp_path, auth__mode="tokens", grpc__enabled=True, grpc__port=0)
    settings = gateway.settings
    fleet, shop = (create_key(settings.store, "keeper", "operator"), create_key(settings.store, "shop", "application"))
    found = gateway.grpc_server()
    await gateway.start()
    await found.start()
    requests = {kind: message(f"RepositoryModel{kind}Request")(model_name="small") for kind in ("Load", "Unload")}
    async with calling(found.port, key=shop) as call:
        assert (await refusal(call("RepositoryModelLoad", requests["Load"])))[0] == "PERMISSION_DENIED"
        assert "model_repository" in (await call("ServerMetadata")).extensions
    async with calling(found.port, key=fleet) as call:
        assert (await call("RepositoryModelUnload", requests["Unload"])).isUnloaded
        status, sentence, _ = await refusal(call("RepositoryModelUnload", requests["Unload"]))
        assert (status, "is not served: unloaded" in sentence, sentence[-1]) == ("NOT_FOUND", True, ".")
        described = call("ModelMetadata", message("ModelMetadataRequest")(name="small"))
        assert (await refusal(described))[0] == "NOT_FOUND"
        for ready, count in ((False, 1), (True, 0)):
            index = await call("RepositoryIndex", message("RepositoryIndexRequest")(ready=ready))
            assert len(index.models) == count
        # KServe's clients have the model's name where Triton has the repository's.
        assert (
            await call("RepositoryModelLoad", message("RepositoryModelLoadRequest")(repository_name="small"))
        ).isLoaded
        requests["Load"].parameters["config"].string_param = "{}"
        assert (await refusal(call("RepositoryModelLoad", requests["Load"])))[0] == "INVALID_ARGUMENT"
    await found.stop(1)
    await gateway.close()


async def test_agent_repository_over_grpc_needs_a_local_caller(tmp_path: Path) -> None:
    port = free_port()
    settings = edge_settings(tmp_path / "state", grpc__enabled=True, grpc__port=port)
    async with (
        EdgeAgent(settings) as agent,
        edge_server.serving_grpc(agent.data_plane, access_of(settings.api), BodyBudget(1 << 20)),
        calling(port) as call,
    ):
        assert (
            await call("RepositoryModelUnload", message("RepositoryModelUnloadRequest")(model_name="digits"))
        ).isUnloaded
        assert (await refusal(call("ModelInfer", digits_message())))[0] in ("UNAVAILABLE", "NOT_FOUND")
        assert (await call("RepositoryModelLoad", message("RepositoryModelLoadRequest")(model_name="digits"))).isLoaded
        assert (await call("ModelInfer", digits_message())).model_name == "digits"
    for address in ("10.0.0.7", "fe80::1", "localhost"):
        with pytest.raises(ForbiddenError, match="from the device itself"):
            check_local((address, 1))
    for peer in (("127.0.0.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1), None):
        check_local(peer)


async def test_fifty_models_share_memory_for_ten(tmp_path: Path) -> None:
    for number in range(50):
        put(tmp_path / "models" / f"m{number:02}", name=f"m{number:02}", seed=number)
    gateway = small_gateway(tmp_path, models__wait=False, models__memory_budget_mb=11)
    most = 0
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        asking = Asking(client)
        first = {name: await asking.probabilities(name) for name in (f"m{number:02}" for number in range(50))}
        assert len({tuple(values) for values in first.values()}) == 50
        assert (await client.get("/v2/health/ready")).status_code == 200
        assert {state for state, _ in (await asking.index()).values()} == {"READY"}

        async def ask(name: str) -> None:
            nonlocal most
            assert await asking.probabilities(name) == first[name]
            most = max(most, len(gateway.residency.memory.resident))
            assert gateway.residency.memory.used_bytes <= 11 << 20

        names = [f"m{(number * 7) % 50:02}" for number in range(200)]
        for start in range(0, 200, 8):
            await asyncio.gather(*map(ask, names[start : start + 8]))
        assert most == 10
        text = (await client.get("/metrics")).text
        assert "firstline_gateway_models_resident 10.0" in text


@pytest.mark.parametrize("executors", [{}, {"here": {"engine": "local"}}])
async def test_evicted_models_are_ready(tmp_path: Path, executors: dict[str, dict[str, str]]) -> None:
    put(tmp_path / "models" / "small")
    gateway = small_gateway(tmp_path, executors=executors)
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as client:
        assert await gateway.residency.memory._evict_one()
        assert await is_ready(client)
        assert (await Asking(client).index())["small", "1"] == (
            "READY",
            "not in memory; the next request has it loaded",
        )


async def is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/v2/health/ready")).status_code == 200


async def test_requests_wait_while_models_are_loading(tmp_path: Path) -> None:
    put(tmp_path / "models" / "small")
    shutil.copytree(DIGITS, tmp_path / "models" / "damaged")
    (tmp_path / "models" / "damaged" / "full.onnx").write_bytes(b"")
    gateway = small_gateway(tmp_path, models__wait=False)
    assert not gateway.plane.ready()
    (small,) = [state for state in gateway.plane.index() if state.name == "small"]
    assert (small.ready, small.state) == (False, "LOADING")
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as client:
        asking = Asking(client)
        assert len(await asking.probabilities()) == 3
        await until(lambda: is_ready(client))
        found = await asking.index()
        assert found["small", "1"] == ("READY", "")
        state, reason = found["digits", "1"]
        assert (state, "manifest says" in reason) == ("UNAVAILABLE", True)
        _, reply = await asking.post("/v2/models/digits/infer", ROW)
        assert "is not served" in reply["error"]
