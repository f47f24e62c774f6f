"""The agent as a client meets it: a real server on loopback, the digits bundle, a real gateway where one is needed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from support.agent import DIGITS, edge_settings, serving_agent
from support.broker import Broker, free_port
from support.digits import predictions, scan
from support.either_tier import either_tier
from support.gateway import mqtt_link, serving_gateway
from support.images import images
from support.inference import digits_request, infer
from support.logs import captured_lines
from support.mqtt_device import hearing
from support.waiting import until

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.tasks.classification import Classification
from firstline_core.telemetry.decisions import find
from firstline_core.types import InferResponse
from firstline_edge.api import server
from firstline_edge.api.app import ROUTES
from firstline_edge.app import EdgeAgent
from firstline_edge.cascade.cascade import Cascade
from firstline_edge.cli.explain import describe
from firstline_edge.models.models import Models
from firstline_edge.models.workers import Workers
from firstline_edge.requests.context import RequestContext

SHORT = "/firstline/v1/models/digits/infer"
V2 = "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def sure_and_unsure() -> tuple[bytes, bytes]:
    """A scan that the edge model is sure of, and one that it is not."""
    return predictions(200).surest, predictions(200).least_sure


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An agent without links."""
    async with serving_agent(edge_settings(tmp_path / "state")) as (_, url), httpx.AsyncClient(base_url=url) as http:
        yield http


async def test_json_and_binary_answers_agree(alone: httpx.AsyncClient, sure_and_unsure: tuple[bytes, bytes]) -> None:
    binary = await infer(alone, digits_request(images(*sure_and_unsure)))
    plain = await infer(alone, digits_request(images(*sure_and_unsure), binary_output=False))
    np.testing.assert_array_equal(binary.output("probabilities"), plain.output("probabilities"))
    assert [row.tier.value for row in binary.answer.rows] == ["edge", "edge"]
    assert [row.tier.value for row in plain.answer.rows] == ["cache", "cache"]


async def test_file_inference_takes_parameters(alone: httpx.AsyncClient, sure_and_unsure: tuple[bytes, bytes]) -> None:
    sure, unsure = sure_and_unsure
    reply = (await alone.post(SHORT, content=sure)).json()
    assert (reply["tier"], reply["reason"], reply["status"]) == ("edge", "confident", "final")
    assert reply["label"] and len(reply["top"]) == 5
    reply = (await alone.post(SHORT, params={"route": "edge"}, content=unsure)).json()
    assert (reply["tier"], reply["reason"]) == ("edge", "requested")
    refused = await alone.post(SHORT, params={"privcy": "local_only"}, content=unsure)
    assert refused.status_code == 400


async def test_tensors_take_a_timeout(alone: httpx.AsyncClient) -> None:
    pixels = {"name": "image", "datatype": "UINT8", "shape": [1, 8, 8, 1], "data": [0] * 64}
    for timeout_us in (0, 5_000_000):
        body = {"inputs": [pixels], "parameters": {"timeout": timeout_us, "route": "edge"}}
        reply = await alone.post(V2, json=body)
        assert (reply.status_code, reply.json()["parameters"]["reason"]) == (200, "requested")


async def test_cross_origin_posts_are_refused(alone: httpx.AsyncClient) -> None:
    for origin in ("https://evil.example", "http://127.0.0.1.evil.example", "null"):
        reply = await alone.post(SHORT, content=scan(), headers={"Origin": origin})
        assert reply.status_code == 400
        assert "does not answer to web pages from elsewhere" in reply.json()["error"]
    reply = await alone.post(SHORT, content=scan(), headers={"Origin": "http://localhost:3000"})
    assert reply.status_code == 200


async def test_hosts_other_than_this_machine_are_refused(alone: httpx.AsyncClient) -> None:
    """A web page may have its own name resolve to 127.0.0.1; the browser then sends that name."""
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "10.0.0.1"):
        reply = await alone.post(SHORT, content=scan(), headers={"Host": host})
        assert reply.status_code == 400
        assert "This agent answers to 127.0.0.1, localhost, ::1, not to" in reply.json()["error"]
    for host in ("localhost", "LOCALHOST:8070", "[::1]:8070", "127.0.0.1"):
        assert (await alone.post(SHORT, content=scan(), headers={"Host": host})).status_code == 200


async def test_bodies_share_one_budget(tmp_path: Path) -> None:
    first_half_sent = asyncio.Event()
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield scan()
        yield b"\0" * 600
        first_half_sent.set()
        await go_on.wait()

    size_bytes = len(scan()) + 600
    limits = {"api__body_limit_bytes": size_bytes, "api__bodies_limit_bytes": size_bytes + 10}
    settings = edge_settings(tmp_path / "state", **limits)
    async with serving_agent(settings) as (_, url), httpx.AsyncClient(base_url=url) as http:
        uploading = asyncio.create_task(http.post(SHORT, content=slowly()))
        await first_half_sent.wait()

        async def refused() -> bool:
            reply = await http.post(SHORT, content=scan())
            return reply.status_code == 503 and reply.json()["code"] == "queue_full" and "Retry-After" in reply.headers

        await until(refused)
        go_on.set()
        assert (await uploading).status_code == 200
        assert (await http.post(SHORT, content=scan())).status_code == 200  # the share was given back


async def test_a_token_is_needed_where_one_is_set(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("camera:0123456789abcdef\n")
    settings = edge_settings(tmp_path / "state", api__token_file=str(file))
    async with serving_agent(settings) as (_, url), httpx.AsyncClient(base_url=url) as http:
        for path in ("/v2", "/metrics", "/firstline/v1/status", "/v2/models/digits"):
            reply = await http.get(path)
            assert (reply.status_code, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
            allowed = await http.get(path, headers={"Authorization": "Bearer 0123456789abcdef"})
            assert allowed.status_code == 200
        names = {"model": "digits", "version": "1", "request_id": "r"}
        for route in ROUTES:
            reply = await http.request(route.method, route.path.format(**names))
            assert (reply.status_code == 401) is (route.path not in ("/v2/health/live", "/v2/health/ready")), route.path
        assert (await http.get("/v2/health/live")).status_code == 200


async def test_large_input_without_a_link_gets_retry_after(tmp_path: Path) -> None:
    links = [{"kind": "http", "url": f"http://127.0.0.1:{free_port()}"}]
    settings = edge_settings(tmp_path / "state", links=links, policy__limit_bytes=10)
    async with serving_agent(settings) as (_, url), httpx.AsyncClient(base_url=url) as http:
        reply = await http.post(SHORT, content=scan())
        assert (reply.status_code, reply.json()["code"]) == (503, "link_down")
        assert int(reply.headers["Retry-After"]) >= 1


async def test_each_field_of_the_status_is_described(alone: httpx.AsyncClient) -> None:
    document = (await alone.get("/openapi.json")).json()
    answer = document["paths"]["/firstline/v1/status"]["get"]["responses"]["200"]["content"]["application/json"]
    described = answer["schema"]["properties"]
    assert described.keys() == (await alone.get("/firstline/v1/status")).json().keys()
    assert all(field["description"] for field in described.values())


async def test_status_and_metrics(alone: httpx.AsyncClient, sure_and_unsure: tuple[bytes, bytes]) -> None:
    await infer(alone, digits_request(images(sure_and_unsure[0])))
    status = (await alone.get("/firstline/v1/status")).json()
    assert (status["ready"], status["device_id"], status["cache"]["entries"]) == (True, "device-1", 1)
    assert status["models"][0]["edge"] == "edge-onnx" and status["models"][0]["row_ms"] > 0
    text = (await alone.get("/metrics")).text
    assert 'firstline_edge_requests_total{reason="confident",status="final",tier="edge"} 1.0' in text
    assert "firstline_edge_outbox_items 0.0" in text


async def test_local_only_leaves_no_trace(tmp_path: Path, sure_and_unsure: tuple[bytes, bytes]) -> None:
    settings = edge_settings(tmp_path / "state")
    async with serving_agent(settings) as (agent, url), httpx.AsyncClient(base_url=url) as http:
        reply = (await http.post(SHORT, params={"privacy": "local_only"}, content=sure_and_unsure[1])).json()
        assert (reply["reason"], reply["certified"]) == ("local_only", False)
        agent.recorder.flush()
        assert find(agent.state.decisions_path, reply["request_id"]) == []
        refused = await http.post(SHORT, params={"privacy": "local_only"}, content=b"no picture")
        assert refused.status_code == 400
        agent.recorder.flush()
        assert find(agent.state.decisions_path, refused.json()["request_id"]) == []
        metrics = (await http.get("/metrics")).text
        assert "_requests_total{" not in metrics and "_errors_total{" not in metrics
        assert "firstline_edge_cache_entries 0.0" in metrics and "firstline_edge_cache_bytes 0.0" in metrics
    async with EdgeAgent(settings) as again:  # what was answered before is not on the disk either
        response = await again.data_plane.infer_file("digits", sure_and_unsure[1], privacy="local_only")
        assert response.answer.tier.value == "edge"


async def test_a_refusal_can_be_explained(alone: httpx.AsyncClient, tmp_path: Path) -> None:
    reply = await alone.post(SHORT, params={"route": "edge"}, content=b"no picture")
    assert reply.status_code == 400
    await alone.get("/metrics")  # what was counted is written down then, too
    (line,) = find(tmp_path / "state" / "decisions.jsonl", reply.json()["request_id"])
    assert (line["event"], line["code"], line["tier"], line["reason"]) == (
        "refused", "invalid_tensor", "edge", "requested",
    )  # fmt: skip
    story = describe(line)
    assert "digits: refused" in story[0] and "no picture" not in str(line)
    assert story[1].startswith("  this device's model failed (invalid_tensor)")


async def test_ready_needs_a_model_or_a_link_and_reports_an_invalid_bundle(tmp_path: Path) -> None:
    broken = tmp_path / "models" / "broken"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text("{}")
    links = [{"kind": "http", "url": f"http://127.0.0.1:{free_port()}"}]
    nothing = edge_settings(tmp_path / "a", models__directories=[str(broken)])
    linked = edge_settings(tmp_path / "b", models__directories=[str(broken)], links=links)
    others = edge_settings(tmp_path / "c", models__directories=[str(DIGITS), str(tmp_path / "models")])
    for settings, status, infer_status in ((nothing, 400, 404), (linked, 200, 503), (others, 200, 200)):
        async with serving_agent(settings) as (_, url), httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/v2/health/ready")).status_code == status
            assert (await http.get("/v2/health/live")).status_code == 200
            (problem,) = (await http.get("/firstline/v1/status")).json()["problems"]
            assert "not a manifest" in problem["message"]
            assert (await http.post(SHORT, content=scan())).status_code == infer_status


async def test_workers_close_before_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    for kind in (Workers, Models):
        close = kind.close

        def noted(self: Any, close: Callable[[Any], None] = close, name: str = kind.__name__) -> None:
            ended.append(name)
            close(self)

        monkeypatch.setattr(kind, "close", noted)
    async with EdgeAgent(edge_settings(tmp_path / "state")):
        pass
    assert ended == ["Workers", "Models"]


async def test_state_directory_is_used_by_one_agent(tmp_path: Path) -> None:
    settings = edge_settings(tmp_path / "state")
    async with EdgeAgent(settings):
        with pytest.raises(ConfigError, match="in use by another agent"):
            async with EdgeAgent(settings):
                pass
    async with EdgeAgent(settings):
        pass


async def test_state_directory_that_is_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to("state")
    with pytest.raises(ConfigError, match="is a link that leads to no folder; name a directory"):
        async with EdgeAgent(edge_settings(tmp_path / "state")):
            pass


async def test_file_inference_by_a_model_of_the_gateway_alone(
    tmp_path: Path, sure_and_unsure: tuple[bytes, bytes]
) -> None:
    async with serving_gateway(tmp_path, auth__mode="off") as (_, gateway_url):
        links = [{"kind": "http", "url": gateway_url}]
        settings = edge_settings(tmp_path / "state", models__directories=[], links=links)
        async with serving_agent(settings) as (agent, url), httpx.AsyncClient(base_url=url) as http:
            reply = (await http.post(SHORT, content=sure_and_unsure[0])).json()
            assert (reply["tier"], reply["reason"], reply["status"]) == ("cloud", "heavy", "final")
            assert reply["label"] in set("0123456789")
            in_process = await agent.data_plane.infer_file("digits", sure_and_unsure[0])
            assert in_process.answer.reason.value == "heavy"
            unknown = await http.post("/firstline/v1/models/nobody/infer", content=b"x")
            assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_model")


@pytest.mark.parametrize("tier", ["agent", "gateway"])
@pytest.mark.parametrize("path", ["", "/ready"])
async def test_a_log_line_has_the_id_of_a_refused_question(tmp_path: Path, tier: str, path: str) -> None:
    with captured_lines() as lines:
        async with either_tier(tier, tmp_path) as (url, _), httpx.AsyncClient(base_url=url) as http:
            unknown = await http.get(f"/v2/models/nobody{path}")
    refused = {line["request_id"]: line["code"] for line in lines if line["event"] == "request refused"}
    assert (unknown.status_code, refused[unknown.json()["request_id"]]) == (404, "unknown_model")


@pytest.mark.mosquitto
async def test_a_correction_is_published_for_local_applications(
    tmp_path: Path, mosquitto: Broker, sure_and_unsure: tuple[bytes, bytes]
) -> None:
    async with (
        hearing(mosquitto, "firstline/v1/device-1/results") as messages,
        serving_gateway(tmp_path, auth__mode="off") as (_, gateway_url),
    ):
        links = [{"kind": "http", "url": gateway_url}, mqtt_link(mosquitto)]
        async with EdgeAgent(edge_settings(tmp_path / "state", links=links)) as agent:
            first = await agent.data_plane.infer_file("digits", sure_and_unsure[1], wait="first")
            await until(lambda: bool(messages))
    (message,) = messages
    parameters = orjson.loads(message.payload)["parameters"]
    assert (parameters["request_id"], parameters["status"], parameters["tier"]) == (
        first.answer.request_id,
        "final",
        "cloud",
    )
    assert type(parameters["changed"]) is bool
    assert not message.retain


async def test_unexpected_errors_reveal_no_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_cascade: Cascade, _context: RequestContext) -> InferResponse:
        raise ZeroDivisionError("secret detail")

    async with serving_agent(edge_settings(tmp_path / "state")) as (_, url), httpx.AsyncClient(base_url=url) as http:
        monkeypatch.setattr(Cascade, "infer", broken)
        reply = await http.post(SHORT, content=scan())
        assert (reply.status_code, reply.json()["code"]) == (500, "internal")
        assert "secret" not in reply.text
        monkeypatch.undo()
        assert (await http.post(SHORT, content=scan())).status_code == 200


async def test_requests_during_shutdown_get_503_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()

    async def never(_cascade: Cascade, _context: RequestContext) -> InferResponse:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(server, "_DRAIN_S", 0.1)
    monkeypatch.setattr(Cascade, "infer", never)
    async with httpx.AsyncClient() as http:
        async with serving_agent(edge_settings(tmp_path / "state")) as (agent, url):
            under_way = asyncio.create_task(http.post(url + SHORT, content=scan()))
            await started.wait()
            agent.data_plane.stop()
            refused = await http.post(url + SHORT, content=scan())
            assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        cancelled = await under_way
    assert (cancelled.status_code, cancelled.json()["code"]) == (503, "not_ready")
    assert "shutting down" in cancelled.json()["error"]


async def test_a_multipart_form_of_two_fields_is_refused_with_advice(alone: httpx.AsyncClient) -> None:
    reply = await alone.post(SHORT, files={"image": scan(), "route": b"edge"})
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_tensor")
    assert "parameters in the query" in reply.json()["error"]
    assert (await alone.post(SHORT, files={"image": scan()})).status_code == 200


async def test_an_output_that_is_not_finite_is_counted_once(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    path = linear(bundle / "m.onnx", np.full((2, 2), 3e38, np.float32))
    task = Classification(("a", "b"), independent=True)
    write_manifest(bundle, [model(path, bundle)], ["a", "b"], inputs=(InputSpec("x", "FP32", (-1, 2)),), task=task)
    settings = edge_settings(tmp_path / "state", models__directories=[str(bundle)])
    async with serving_agent(settings) as (_, url), httpx.AsyncClient(base_url=url) as http:
        (name,) = [found["name"] for found in (await http.post("/v2/repository/index")).json()]
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1e38, 1e38]}]}
        reply = await http.post(f"/v2/models/{name}/infer", json=body | {"parameters": {"route": "edge"}})
        assert (reply.status_code, reply.json()["code"]) == (500, "inference_failed")
        assert "NaN or infinity" in reply.json()["error"]
        text = (await http.get("/metrics")).text
        assert [line for line in text.splitlines() if line.startswith("firstline_edge_errors_total{")] == [
            'firstline_edge_errors_total{code="inference_failed"} 1.0'
        ]
        assert "firstline_edge_requests_total{" not in text
        failed = (await http.get(f"/v2/models/{name}/stats")).json()["model_stats"][0]["inference_stats"]["fail"]
        assert failed["count"] == 1
