"""The gateway as a client meets it: a real server on loopback, real bundles, real keys."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import AsyncIterator, Callable

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.routing import Route
from support.gateway import DIGITS, GatedExecutor, gateway_of, serving
from support.keys import bearer, create_key, revoke_key
from support.waiting import until

from firstline_core.errors import CapacityError, QueueFullError
from firstline_core.ids import new_request_id
from firstline_core.protocol import oip
from firstline_core.protocol.http import HEADER_LENGTH
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import InferRequest, InferResponse, Tensor
from firstline_gateway.api import server
from firstline_gateway.app import Gateway, open_gateway, run_gateway
from firstline_gateway.models.folder import load_repository
from firstline_gateway.models.repository import Repository
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Store

V2 = "/v2/models/digits/infer"
STORE = Store()
SHORT = "/firstline/v1/models/digits/infer"


def picture(shade: int = 100) -> bytes:
    with io.BytesIO() as file:
        Image.new("L", (8, 8), shade).save(file, "PNG")
        return file.getvalue()


def pictures(*encoded: bytes) -> tuple[Tensor, ...]:
    return (Tensor("image", np.array(encoded, dtype=np.object_)),)


@pytest.fixture
def make_token() -> Callable[[str, str], dict[str, str]]:
    return lambda name, kind: bearer(create_key(STORE, name, kind))


@pytest.fixture
async def client(make_token: Callable[[str, str], dict[str, str]]) -> AsyncIterator[httpx.AsyncClient]:
    """An application's client of a gateway that serves the digits."""
    settings = load(
        None,
        overrides={
            "models.directory": str(DIGITS.parent),
            "api.body_limit_bytes": 100_000,
            "auth.refresh_s": 0.1,
        },
    )
    headers = make_token("shop", "application")
    async with serving(open_gateway(settings)) as url, httpx.AsyncClient(base_url=url, headers=headers) as found:
        yield found


@pytest.fixture(scope="module")
def repository() -> Repository:
    return load_repository(DIGITS, RuntimeOptions())


@pytest.fixture
def gated(repository: Repository) -> tuple[Gateway, GatedExecutor]:
    """A gateway without authentication whose batches end when the test says so."""
    executor = GatedExecutor()
    overrides = {"auth.mode": "off", "execution.queue_requests": 2}
    return gateway_of(load(None, overrides=overrides), repository, executor), executor


async def infer(
    client: httpx.AsyncClient, *rows: bytes, path: str = V2, binary: bool = True, **headers: str
) -> InferResponse:
    request = InferRequest(model="digits", inputs=pictures(*rows), request_id=new_request_id(), binary_output=binary)
    encoded = oip.encode_request(request)
    response = await client.post(
        path, content=encoded.body, headers={HEADER_LENGTH: str(encoded.header_length), **headers}
    )
    assert response.status_code == 200, response.text
    length = response.headers.get(HEADER_LENGTH)
    return oip.decode_response(response.content, None if length is None else int(length))


async def test_binary_and_json_answers_agree(client: httpx.AsyncClient) -> None:
    binary = await infer(client, picture(0), picture(200))
    plain = await infer(client, picture(0), picture(200), binary=False, path="/v2/models/digits/versions/1/infer")
    np.testing.assert_allclose(binary.output("probabilities"), plain.output("probabilities"), rtol=1e-6)
    assert binary.output("probabilities").shape == (2, 10)
    assert binary.answer is not None
    assert binary.answer.tier == "cloud"


async def test_a_body_of_json_alone_needs_no_content_type(client: httpx.AsyncClient) -> None:
    bare = await client.post(V2, content=b'{"inputs": []}')
    assert bare.status_code == 400
    assert bare.json()["code"] == "invalid_tensor"


async def test_the_short_way_in_takes_the_file_itself(client: httpx.AsyncClient) -> None:
    answer = (await client.post(SHORT, content=picture())).json()
    assert answer["label"] in ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert answer["tier"] == "cloud"


async def test_a_devices_request_id_is_kept_and_an_applications_is_not(
    client: httpx.AsyncClient, make_token: Callable[[str, str], dict[str, str]]
) -> None:
    request = InferRequest(model="digits", inputs=pictures(picture()), request_id=new_request_id())
    encoded = oip.encode_request(request)
    headers = {HEADER_LENGTH: str(encoded.header_length)}
    by_application = await client.post(V2, content=encoded.body, headers=headers)
    by_device = await client.post(V2, content=encoded.body, headers=headers | make_token("press-7", "device"))
    assert by_application.json()["parameters"]["request_id"] != request.request_id
    assert by_device.json()["parameters"]["request_id"] == request.request_id


@pytest.mark.parametrize(
    "address", ["/v2", "/v2/models/digits", "/v2/models/digits/ready", "/firstline/v1/models", "/metrics"]
)
async def test_everything_but_health_needs_a_token(client: httpx.AsyncClient, address: str) -> None:
    assert (await client.get(address)).status_code == 200
    refused = await client.get(address, headers={"Authorization": ""})
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer" in refused.json()["error"]


@pytest.mark.parametrize("address", [V2, "/v2/models/digits/versions/1/infer", SHORT, "/v2/repository/index"])
async def test_a_stranger_is_refused_before_the_body_counts(client: httpx.AsyncClient, address: str) -> None:
    refused = await client.post(address, content=b"x" * 200_000, headers={"Authorization": "Bearer flt_wrong"})
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")


async def test_health_needs_no_token(client: httpx.AsyncClient) -> None:
    for address, said in (("live", {"live": True}), ("ready", {"ready": True})):
        found = await client.get(f"/v2/health/{address}", headers={"Authorization": ""})
        assert (found.status_code, found.json()) == (200, said)
        found = await client.head(f"/v2/health/{address}", headers={"Authorization": ""})
        assert (found.status_code, found.content) == (200, b"")


async def test_a_revoked_key_is_refused_without_a_restart(
    client: httpx.AsyncClient, make_token: Callable[[str, str], dict[str, str]]
) -> None:
    headers = make_token("guest", "application")
    assert (await client.get("/v2", headers=headers)).status_code == 200
    for _ in range(3):  # also where the key and all of the head are known
        await infer(client, picture(), **headers)
    revoke_key(STORE, "guest")
    async with asyncio.timeout(10):
        while (await client.get("/v2", headers=headers)).status_code != 401:  # noqa: ASYNC110 (what is awaited is in the server)
            await asyncio.sleep(0.01)
        assert (await client.post(V2, content=b"{", headers=headers)).status_code == 401


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


@pytest.mark.parametrize(
    ("method", "address", "status", "code"),
    [
        ("GET", "/nothing", 404, "invalid_request"),
        ("GET", V2, 405, "invalid_request"),
        ("POST", "/v2/health/live", 405, "invalid_request"),
        ("GET", "/v2/models/cats", 404, "unknown_model"),
        ("GET", "/v2/models/digits/versions/9/ready", 404, "unknown_model"),
        ("GET", "/firstline/v1/answers/01890a5d-ac96-774b-bcce-b302099a8057", 404, "unknown_answer"),
        ("POST", "/firstline/v1/models/cats/infer", 404, "unknown_model"),
        ("POST", SHORT + "?privacy=local_only", 400, "invalid_request"),
        ("POST", SHORT + "?route=edge", 400, "invalid_request"),
        ("POST", SHORT + "?rout=edge", 400, "invalid_request"),
    ],
)
async def test_every_refusal_is_a_sentence_and_a_code(
    client: httpx.AsyncClient, method: str, address: str, status: int, code: str
) -> None:
    body = picture() if "infer" in address and method == "POST" else None
    refused = await client.request(method, address, content=body)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert refused.json()["error"].endswith(".")


async def test_a_mismatch_of_bundles_names_both(client: httpx.AsyncClient) -> None:
    request = InferRequest(
        model="digits", inputs=pictures(picture()), request_id=new_request_id(), full_model_digest="f" * 64
    )
    encoded = oip.encode_request(request)
    refused = await client.post(V2, content=encoded.body, headers={HEADER_LENGTH: str(encoded.header_length)})
    assert (refused.status_code, refused.json()["code"]) == (409, "model_mismatch")
    assert "f" * 64 in refused.json()["error"]


async def test_a_body_over_the_limit_is_refused_declared_or_not(client: httpx.AsyncClient) -> None:
    async def unending() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 10_000

    for body in (b"x" * 300_000, unending()):
        refused = await client.post(V2, content=body)
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    assert (await client.get("/v2")).status_code == 200


async def test_a_bad_image_among_many_fails_alone(client: httpx.AsyncClient) -> None:
    bodies = [picture(shade * 10) if shade != 7 else b"no image" for shade in range(24)]
    replies = await asyncio.gather(*(client.post(SHORT, content=body) for body in bodies))
    assert [reply.status_code for reply in replies] == [400 if n == 7 else 200 for n in range(24)]
    alone = [(await client.post(SHORT, content=body)).json().get("probability") for body in bodies]
    together = [reply.json().get("probability") for reply in replies]
    assert together == pytest.approx(alone, abs=1e-5)


async def test_the_metrics_tell_what_happened(client: httpx.AsyncClient) -> None:
    await infer(client, picture())
    await client.post(SHORT, content=b"no image")
    text = (await client.get("/metrics")).text
    assert 'firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"} 1.0' in text
    assert 'firstline_gateway_errors_total{code="invalid_tensor"} 1.0' in text
    assert "firstline_gateway_batch_rows_count 2.0" in text
    assert "firstline_gateway_queue_depth 0.0" in text


async def test_the_metrics_may_be_opened() -> None:
    overrides = {"api.open_metrics": True, "models.directory": str(DIGITS)}
    async with serving(open_gateway(load(None, overrides=overrides))) as url, httpx.AsyncClient() as stranger:
        assert (await stranger.get(f"{url}/metrics")).status_code == 200
        assert (await stranger.get(f"{url}/v2")).status_code == 401


async def test_the_description_covers_every_address(gated: tuple[Gateway, GatedExecutor]) -> None:
    app = gated[0].control_plane()
    described = {(path, method.upper()) for path, methods in app.openapi()["paths"].items() for method in methods}
    served = {
        (route.path, method)
        for route in app.routes
        if isinstance(route, Route) and route.path != "/openapi.json"
        for method in (route.methods or set()) - {"HEAD"}
    }
    routed = {entry for entry in described if "infer" in entry[0]}
    assert routed == served
    said = {"/ca": 400, "answers": 404, "quota": 400, "/enroll": 400, "/renew": 401, "/revoke": 400}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        for path, method in described - routed:
            if path.startswith(("/v2/repository/models/", "/fleet/")):  # the first would change what the others find
                continue  # and the fleet's are asked in test_fleet_api.py
            address = path.replace("{model}", "digits").replace("{bundle}", "digits").replace("{version}", "1")
            expected = 404 if method == "DELETE" else next((said[word] for word in said if word in path), 200)
            if (method, path) == ("POST", "/firstline/v1/devices"):  # without a body
                expected = 400
            assert (await client.request(method, address)).status_code == expected
        assert (await client.get("/openapi.json")).json()["openapi"].startswith("3.")


async def test_a_full_queue_says_when_to_come_back(gated: tuple[Gateway, GatedExecutor]) -> None:
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


async def test_a_client_that_leaves_frees_its_place(gated: tuple[Gateway, GatedExecutor]) -> None:
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
        gateway.bodies.take("another", gateway.settings.api.bodies_limit_bytes // 2)  # all room is free again


def _json_pixels() -> bytes:
    return b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}'


async def test_the_unforeseen_leaves_as_json_that_tells_nothing_of_the_inside(
    gated: tuple[Gateway, GatedExecutor],
) -> None:
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


async def test_sigterm_turns_ready_and_finishes_what_is_in_flight(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    bound = server.bind("127.0.0.1", 0)
    url = server.url_of(bound)
    up = asyncio.Event()
    served = asyncio.create_task(run_gateway(gateway, bound, up.set))
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


async def test_of_two_that_bound_one_address_the_later_says_so(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    first = server.bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = server.bind("127.0.0.1", port)
    with first, second:
        first.listen()
        with pytest.raises(CapacityError, match=f"Cannot listen on 127.0.0.1 port {port}: Address already in use"):
            await run_gateway(gateway, second, lambda: None)
    assert executor.closed


async def test_a_drain_that_takes_too_long_is_given_up(repository: Repository) -> None:
    executor = GatedExecutor()
    gateway = gateway_of(load(None, overrides={"auth.mode": "off", "api.drain_s": 0.05}), repository, executor)
    bound = server.bind("127.0.0.1", 0)
    up = asyncio.Event()
    served = asyncio.create_task(run_gateway(gateway, bound, up.set))
    await up.wait()
    async with httpx.AsyncClient(base_url=server.url_of(bound)) as client:
        asked = [asyncio.create_task(client.post(V2, content=_json_pixels())) for _ in range(3)]
        await until(lambda: executor.held == 1 and _depth(gateway) == 2)
        # Another is still being sent when the server ends its connections.
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
        writer.write(f"POST {V2} HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{{".encode())
        os.kill(os.getpid(), signal.SIGTERM)
        for reply in await asyncio.gather(*asked):
            assert (reply.status_code, reply.json()["code"]) == (503, "not_ready")
            assert "send the request again" in reply.json()["error"]
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["code"] == "not_ready"
    assert not await served  # the running models continue, and the process's parent is informed
    executor.release()
