"""The gateway as a client meets it: a real server on loopback, real bundles, real keys."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest.mock import AsyncMock, patch

import httpx
import pytest
from starlette.routing import Route
from support.databases import sqlite_store
from support.gateway import GatedExecutor, client_of, gated_gateway, serving, serving_gateway
from support.images import grey, images
from support.inference import digits_request, infer, post
from support.keys import bearer, create_key
from support.waiting import until

from firstline_core.errors import CapacityError, QueueFullError
from firstline_core.protocol import sockets
from firstline_gateway.app import Gateway
from firstline_gateway.commands.serve import run_gateway

V2 = "/v2/models/digits/infer"
SHORT = "/firstline/v1/models/digits/infer"


@pytest.fixture
def make_token(tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    return lambda name, kind: bearer(create_key(sqlite_store(tmp_path), name, kind))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An application's client of a gateway that serves the digits."""
    async with (
        serving_gateway(tmp_path, api__body_limit_bytes=100_000) as (gateway, url),
        client_of(gateway, url) as found,
    ):
        yield found


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[tuple[Gateway, GatedExecutor]]:
    gateway, executor = gated_gateway(tmp_path, execution__queue_requests=2)
    yield gateway, executor
    await gateway.close()


async def test_only_devices_choose_the_request_id(
    client: httpx.AsyncClient, make_token: Callable[[str, str], dict[str, str]]
) -> None:
    request = digits_request(images(grey()), binary_output=False)
    by_application = await post(client, request)
    by_device = await post(client, request, **make_token("press-7", "device"))
    assert by_application.json()["parameters"]["request_id"] != request.request_id
    assert by_device.json()["parameters"]["request_id"] == request.request_id


async def test_unauthenticated_request_is_refused_before_its_body(client: httpx.AsyncClient) -> None:
    for address in (V2, "/v2/models/digits/versions/1/infer", SHORT, "/v2/repository/index"):
        refused = await client.post(address, content=b"x" * 200_000, headers={"Authorization": "Bearer flt_wrong"})
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized"), address


async def test_v2_describes_server_and_models(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v2")).json()["name"] == "firstline-gateway"
    for address in ("/v2/models/digits", "/v2/models/digits/versions/1"):
        described = (await client.get(address)).json()
        assert described["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert described["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}]
    assert (await client.get("/v2/models/digits/versions/1/ready")).json()["ready"] is True
    index = await client.post("/v2/repository/index")
    assert index.json() == [{"name": "digits", "version": "1", "state": "READY", "reason": ""}]
    (listed,) = (await client.get("/firstline/v1/models")).json()["models"]
    assert listed["current"] is True
    assert len(listed["full_model_digest"]) == 64


async def test_wishes_that_no_gateway_grants_are_refused(client: httpx.AsyncClient) -> None:
    for wish in ("privacy=local_only", "route=edge"):
        refused = await client.post(f"{SHORT}?{wish}", content=grey())
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), wish
        assert refused.json()["error"].endswith(".")


async def test_a_mismatch_of_bundles_names_both(client: httpx.AsyncClient) -> None:
    refused = await post(client, digits_request(images(grey()), full_model_digest="f" * 64))
    assert (refused.status_code, refused.json()["code"]) == (409, "model_mismatch")
    assert "f" * 64 in refused.json()["error"]


async def test_a_bad_image_among_many_fails_alone(client: httpx.AsyncClient) -> None:
    bodies = [grey(shade * 10) if shade != 7 else b"no image" for shade in range(24)]
    replies = await asyncio.gather(*(client.post(SHORT, content=body) for body in bodies))
    assert [reply.status_code for reply in replies] == [400 if n == 7 else 200 for n in range(24)]
    alone = [(await client.post(SHORT, content=body)).json().get("probability") for body in bodies]
    together = [reply.json().get("probability") for reply in replies]
    assert together == pytest.approx(alone, abs=1e-5)


async def test_metrics_count_answers_and_errors(client: httpx.AsyncClient) -> None:
    await infer(client, digits_request(images(grey())))
    await client.post(SHORT, content=b"no image")
    text = (await client.get("/metrics")).text
    assert 'firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"} 1.0' in text
    assert 'firstline_gateway_errors_total{code="invalid_tensor"} 1.0' in text
    assert "firstline_gateway_batch_rows_count 1.0" in text, "what is no image by its header is in no batch"
    assert "firstline_gateway_queue_depth 0.0" in text


async def test_the_description_covers_every_address(gated: tuple[Gateway, GatedExecutor]) -> None:
    app = gated[0].control_plane()
    described = {(path, method.upper()) for path, methods in app.openapi()["paths"].items() for method in methods}
    served = {
        (route.path, method)
        for route in app.routes
        if isinstance(route, Route) and route.include_in_schema
        for method in route.methods
    }
    assert described == served
    codes = {"/ca": 400, "answers": 404, "quota": 400, "/enroll": 400, "/renew": 401, "/revoke": 400, "{webhook}": 404}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for path, method in described:
            if "infer" in path:  # the framework only describes these
                continue
            if path.startswith(("/v2/repository/models/", "/fleet/")):  # the first would change what the others find
                continue  # and the fleet's are asked in test_fleet_api.py
            address = path.replace("{model}", "digits").replace("{bundle}", "digits").replace("{version}", "1")
            expected = 404 if method == "DELETE" else next((codes[word] for word in codes if word in path), 200)
            if (method, path) == ("POST", "/firstline/v1/devices"):  # without a body
                expected = 400
            assert (await client.request(method, address)).status_code == expected
        assert (await client.get("/openapi.json")).json()["openapi"].startswith("3.")


async def test_the_description_is_encoded_once(gated: tuple[Gateway, GatedExecutor]) -> None:
    app = gated[0].control_plane()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        first = await client.get("/openapi.json")
        assert first.json() == app.openapi()
        with patch.object(app, "openapi", side_effect=AssertionError):
            assert (await client.get("/openapi.json")).content == first.content


async def test_full_queue_refuses_with_retry_after(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as client:
        waiting = []
        for ahead in range(3):  # one runs, two wait
            waiting.append(asyncio.create_task(client.post(V2, content=_json_pixels())))
            await until(lambda ahead=ahead: _depth(gateway) == ahead and executor.held == 1)
        refused = await client.post(V2, content=_json_pixels())
        assert (refused.status_code, refused.json()["code"]) == (503, QueueFullError.code)
        assert int(refused.headers["Retry-After"]) >= 1
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        executor.release()


def _metrics(gateway: Gateway) -> list[str]:
    return gateway.metrics.render()[0].decode().splitlines()


def _depth(gateway: Gateway) -> int:
    line = next(text for text in _metrics(gateway) if text.startswith("firstline_gateway_queue_depth "))
    return int(float(line.split()[1]))


async def test_disconnected_client_leaves_the_queue(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as client:
        first = asyncio.create_task(client.post(V2, content=_json_pixels()))
        await until(lambda: executor.held == 1)
        second = asyncio.create_task(client.post(V2, content=_json_pixels()))
        await until(lambda: _depth(gateway) == 1)
        second.cancel()
        await until(lambda: _depth(gateway) == 0)
        await until(lambda: 'firstline_gateway_errors_total{code="link_down"} 1.0' in _metrics(gateway))
        executor.release()
        assert (await first).status_code == 200
        assert len(executor.batches) == 1
        gateway.bodies.share("another")(gateway.settings.api.bodies_limit_bytes // 2)  # all room is free again


def _json_pixels() -> bytes:
    return b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}'


async def test_unexpected_errors_reveal_no_details(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as client:
        task = asyncio.create_task(client.post(V2, content=_json_pixels()))
        await until(lambda: executor.held == 1)
        executor.release(error=ZeroDivisionError("secret detail"))
        failed = await task
        assert (failed.status_code, failed.json()["code"]) == (500, "internal")
        assert "secret" not in failed.text
        assert 'firstline_gateway_errors_total{code="internal"} 1.0' in (await client.get("/metrics")).text
        assert (await client.get("/v2/health/live")).status_code == 200


async def test_sigterm_finishes_requests_in_flight(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    bound = sockets.bind("127.0.0.1", 0)
    url = sockets.url_of(bound)
    up = asyncio.Event()
    served = asyncio.create_task(run_gateway(gateway, bound, up.set, lambda: gateway.settings))
    await up.wait()
    async with httpx.AsyncClient(base_url=url) as client:
        in_flight = asyncio.create_task(client.post(V2, content=_json_pixels()))
        await until(lambda: executor.held == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: not gateway.plane.ready())
        assert (await client.get("/v2/health/ready")).status_code == 400
        refused = await client.post(V2, content=_json_pixels())
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        executor.release()
        assert (await in_flight).status_code == 200
    assert await served
    assert executor.closed
    with pytest.raises(httpx.ConnectError):
        await httpx.AsyncClient().get(url)


async def test_second_listener_on_an_address_fails(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    first = sockets.bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = sockets.bind("127.0.0.1", port)
    with first, second:
        first.listen()
        with pytest.raises(CapacityError, match=f"127.0.0.1:{port} is in use by another program"):
            await run_gateway(gateway, second, lambda: None, lambda: gateway.settings)
    assert executor.closed


async def test_failed_start_closes_the_gateway_and_its_socket(
    gated: tuple[Gateway, GatedExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, executor = gated
    monkeypatch.setattr(executor, "start", AsyncMock(side_effect=CapacityError("no room")))
    bound = sockets.bind("127.0.0.1", 0)
    with pytest.raises(CapacityError, match="no room"):
        await run_gateway(gateway, bound, lambda: None, lambda: gateway.settings)
    assert executor.closed
    assert bound.fileno() == -1
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_a_hangup_does_not_end_a_gateway_that_closes(
    gated: tuple[Gateway, GatedExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, executor = gated
    close = executor.close

    async def hangup_and_close(timeout_s: float) -> bool:
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL  # which would end the process
        os.kill(os.getpid(), signal.SIGHUP)
        return await close(timeout_s)

    monkeypatch.setattr(executor, "close", hangup_and_close)
    bound = sockets.bind("127.0.0.1", 0)
    assert await run_gateway(gateway, bound, lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: gateway.settings)
    assert executor.closed


async def test_drain_timeout_refuses_requests_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gateway.close, "__defaults__", (0.5,))  # for what still runs then
    gateway, executor = gated_gateway(tmp_path, api__drain_s=0.05)
    bound = sockets.bind("127.0.0.1", 0)
    up = asyncio.Event()
    served = asyncio.create_task(run_gateway(gateway, bound, up.set, lambda: gateway.settings))
    await up.wait()
    async with httpx.AsyncClient(base_url=sockets.url_of(bound)) as client:
        tasks = [asyncio.create_task(client.post(V2, content=_json_pixels()))]
        await until(lambda: executor.held == 1)  # the first takes the slot, and the others wait
        tasks += [asyncio.create_task(client.post(V2, content=_json_pixels())) for _ in range(2)]
        await until(lambda: _depth(gateway) == 2)
        # Another is still being sent when the server ends its connections.
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
        writer.write(f"POST {V2} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode())
        os.kill(os.getpid(), signal.SIGTERM)
        for reply in await asyncio.gather(*tasks):
            assert (reply.status_code, reply.json()["code"]) == (503, "not_ready")
            assert "send the request again" in reply.json()["error"]
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["code"] == "not_ready"
    assert not await served  # the running models continue, and the process's parent is informed
    executor.release()
