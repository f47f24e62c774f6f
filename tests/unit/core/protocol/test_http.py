"""V2 over HTTP without a framework, against a data plane in memory."""

import asyncio
import gzip
import io
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPResponse
from typing import Any

import numpy as np
import orjson
import pytest
from httpx import Headers

from firstline_core import errors
from firstline_core.protocol import extensions, http
from firstline_core.protocol.data_plane import ModelState
from firstline_core.protocol.http import closing_response, error_body, error_from, error_reply, status_of
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Origin, decode_response, encode_request
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferRequest, InferResponse, ModelMetadata, RequestedOutput, Tensor, TensorSpec

REQUEST_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
BODY = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'


@dataclass
class Doubler:
    """A data plane with one model, `double`."""

    limits: Limits = field(default_factory=Limits)
    server_name: str = "firstline-edge"
    server_version: str = "1.2"
    extensions: tuple[str, ...] = ("binary_tensor_data",)
    counted: ModelStatistics = field(default_factory=lambda: ModelStatistics("double", "7"))
    up: bool = True
    failure: errors.FirstlineError | None = None
    seen: list[InferRequest] = field(default_factory=list)

    async def infer(self, request: InferRequest) -> InferResponse:
        self.seen.append(request)
        if self.failure is not None:
            raise self.failure
        return InferResponse(request.model, "7", (Tensor("y", request.inputs[0].array * 2),), id=request.id)

    def live(self) -> bool:
        return self.up

    def ready(self) -> bool:
        return self.up

    def model_ready(self, model: str, version: str) -> bool:
        return bool(self.metadata(model, version)) and self.up

    def metadata(self, model: str, version: str) -> ModelMetadata:
        if model != "double" or version not in ("", "7"):
            raise errors.UnknownModelError(f"No model '{model}' here.")
        spec = TensorSpec("x", "FP32", (-1, 2))
        return ModelMetadata("double", ("7",), "onnx", (spec,), (TensorSpec("y", "FP32", (-1, 2)),), ("a", "b"))

    def index(self) -> list[ModelState]:
        return [ModelState("double", "7", self.up, "" if self.up else "asleep")]

    def statistics(self) -> list[ModelStatistics]:
        return [self.counted]

    def config(self, model: str, version: str) -> dict[str, Any]:
        return extensions.config_json(self.metadata(model, version), self.limits, batching=True)


async def infer_reply(
    tier: Doubler,
    model: str,
    version: str,
    headers: dict[str, str],
    body: bytes,
    *,
    principal: str = "",
    trust_request_id: bool = False,
    arrived_s: float = 0.0,
) -> http.Reply:
    received = {name.lower(): value for name, value in headers.items()}
    origin = Origin(now_s=arrived_s, principal=principal, trust_request_id=trust_request_id, limits=tier.limits)
    with http.BodyBudget(1 << 20).share(principal) as share:
        plain = await share.decompressed(received, body, tier.limits)
        request = await http.read_infer_request(model, version, received, plain, origin)
        return http.response_reply(tier, request, await tier.infer(request))


def json_of(reply: http.Reply) -> Any:
    assert reply.headers["Content-Type"] == "application/json"
    return orjson.loads(reply.body)


async def test_json_in_json_out() -> None:
    reply = await infer_reply(Doubler(), "double", "", {}, BODY)
    assert reply.status == 200
    assert json_of(reply)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 4.0]}]


@pytest.mark.parametrize("name", [http.HEADER_LENGTH, http.HEADER_LENGTH.lower(), http.HEADER_LENGTH.upper()])
async def test_binary_in_binary_out(name: str) -> None:
    sent = encode_request(
        InferRequest("double", (Tensor("x", np.array([[1, 2]], np.float32)),), REQUEST_ID, binary_output=True)
    )
    reply = await infer_reply(Doubler(), "double", "7", {name: str(sent.header_length)}, sent.body)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/octet-stream"
    got = decode_response(reply.body, http.header_length(Headers(reply.headers)))
    assert got.output("y").tolist() == [[2, 4]]


async def test_the_facts_of_the_http_request_reach_the_plane() -> None:
    tier = Doubler()
    sent = orjson.dumps(orjson.loads(BODY) | {"parameters": {"timeout": 2_000_000, "request_id": REQUEST_ID}})
    await infer_reply(tier, "double", "7", {}, sent, principal="app", trust_request_id=True, arrived_s=50.0)
    request = tier.seen[0]
    assert (request.model, request.version, request.principal) == ("double", "7", "app")
    assert (request.request_id, request.deadline_s) == (REQUEST_ID, 52.0)
    await infer_reply(tier, "double", "7", {}, sent, arrived_s=49.5)
    assert tier.seen[1].deadline_s == 51.5  # the body took half a second of it


async def test_a_failure_is_raised_and_makes_a_reply() -> None:
    tier = Doubler(failure=errors.DeadlineExceededError("Too late.", retry_after_s=0.2))
    with pytest.raises(errors.DeadlineExceededError) as caught:
        await infer_reply(tier, "double", "", {}, BODY)
    reply = http.error_reply(caught.value)
    assert reply.status == 504
    assert reply.headers["Retry-After"] == "1"
    expected = {"error": "Too late.", "code": "deadline_exceeded", "retry_after_s": 0.2}
    assert json_of(reply) == expected | {"request_id": caught.value.identify()}


async def test_bad_bodies_never_reach_the_plane() -> None:
    tier = Doubler(limits=Limits(body_bytes=len(BODY)))
    bad: list[tuple[dict[str, str], bytes, int]] = [
        ({}, b"{", 400),
        ({}, BODY + b" ", 413),
        ({http.HEADER_LENGTH: "9" * 18}, BODY, 400),
        ({http.HEADER_LENGTH: "9" * 5000}, BODY, 400),
        ({http.HEADER_LENGTH: "-1"}, BODY, 400),
        ({http.HEADER_LENGTH: "²"}, BODY, 400),
        ({http.HEADER_LENGTH: ""}, BODY, 400),
        ({http.HEADER_LENGTH: "1_0"}, BODY, 400),
        ({"Content-Encoding": "br"}, BODY, 400),
        ({"Content-Encoding": "gzip"}, BODY, 400),
    ]
    for headers, body, status in bad:
        with pytest.raises(errors.FirstlineError) as caught:
            await infer_reply(tier, "double", "", headers, body)
        reply = http.error_reply(caught.value)
        assert reply.status == status, (headers, reply)
        assert set(json_of(reply)) == {"error", "code", "request_id"}
    assert tier.seen == []


@pytest.mark.parametrize(
    ("encoding", "compressed"),
    [
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("GZIP", gzip.compress(BODY, mtime=0)),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
    ],
)
async def test_compressed_requests(encoding: str, compressed: bytes) -> None:
    reply = await infer_reply(Doubler(), "double", "", {"content-encoding": encoding}, compressed)
    assert reply.status == 200


LARGE = orjson.dumps({"inputs": [{"name": "x", "shape": [1, 200_000], "datatype": "FP32", "data": [1] * 200_000}]})
LARGE_BINARY = encode_request(InferRequest("double", (Tensor("x", np.ones((1, 200_000), np.float32)),), REQUEST_ID))


@pytest.mark.parametrize(
    ("headers", "body", "aside"),
    [
        ({}, BODY, []),
        ({}, LARGE, ["decode_request"]),
        ({"content-encoding": "gzip"}, gzip.compress(BODY, mtime=0), ["decompressed"]),
        ({"content-encoding": "gzip"}, gzip.compress(LARGE, mtime=0), ["decompressed", "decode_request"]),
        ({http.HEADER_LENGTH: str(LARGE_BINARY.header_length)}, LARGE_BINARY.body, []),
    ],
    ids=["small", "large", "compressed", "large and compressed", "binary"],
)
async def test_long_decoding_leaves_event_loop_free(
    headers: dict[str, str], body: bytes, aside: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread, found = threading.get_ident(), list[str]()

    def noting(name: str, function: Any) -> Any:
        def noted(*args: Any, **named: Any) -> Any:
            if threading.get_ident() != loop_thread:
                found.append(name)
            return function(*args, **named)

        return noted

    for name in ("decompressed", "decode_request"):
        monkeypatch.setattr(http, name, noting(name, getattr(http, name)))
    assert (await infer_reply(Doubler(), "double", "", headers, body)).status == 200
    assert found == aside


async def test_decompressed_bodies_count_with_their_size() -> None:
    """Otherwise many small bodies could become more than the memory holds."""
    plain = bytes(1000)
    sent, budget = gzip.compress(plain), http.BodyBudget(2500)

    async def decompress(share: http.BodyShare) -> bytes:
        share(len(sent))
        return await share.decompressed({"content-encoding": "gzip"}, sent, Limits())

    with budget.share("a") as one, budget.share("b") as other, budget.share("c") as third:
        assert await decompress(one) == await decompress(other) == plain
        assert budget.held_bytes == 2000
        with pytest.raises(errors.QueueFullError):
            await decompress(third)
    assert budget.held_bytes == 0


async def test_bodies_are_decompressed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy event loop would reserve too late what a thread has decompressed meanwhile."""
    sent, budget, held_bytes = gzip.compress(bytes(1000)), http.BodyBudget(5000), []

    def noted(*args: Any) -> bytes:
        held_bytes.append(budget.held_bytes)
        return decompressed(*args)

    decompressed = http.decompressed
    monkeypatch.setattr(http, "decompressed", noted)
    with ExitStack() as shares:
        each = [shares.enter_context(budget.share(str(number))) for number in range(3)]
        headers = {"content-encoding": "gzip"}
        await asyncio.gather(*(share.decompressed(headers, sent, Limits()) for share in each))
    assert held_bytes == [number * (1000 - len(sent)) for number in range(3)]


def test_a_bomb_is_inflated_no_further_than_the_limit() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(errors.PayloadTooLargeError, match="inflates"):
            http.decompressed({"content-encoding": "gzip"}, bomb, Limits(body_bytes=1000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (gzip.compress(BODY, mtime=0)[:-1], "cut short"),
        (gzip.compress(BODY, mtime=0) + b"x", "after its end"),
        (b"", "cut short"),
    ],
)
def test_one_whole_stream(body: bytes, message: str) -> None:
    with pytest.raises(errors.InvalidTensorError, match=message):
        http.decompressed({"content-encoding": "gzip"}, body, Limits())


async def test_reading_stops_at_the_limit() -> None:
    taken = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"12345"

    with pytest.raises(errors.PayloadTooLargeError):
        await http.read_body(chunks(), {}, Limits(body_bytes=10))
    assert taken == 3
    for declared in ("11", "9" * 5000):
        with pytest.raises(errors.PayloadTooLargeError):
            await http.read_body(chunks(), {"content-length": declared}, Limits(body_bytes=10))
    assert taken == 3

    async def whole() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"cd"

    assert await http.read_body(whole(), {"content-length": "4"}, Limits(body_bytes=4)) == b"abcd"


def test_health_is_200_or_4xx_with_json() -> None:
    for up, status in ((True, 200), (False, 400)):
        tier = Doubler(up=up)
        for reply, body in (
            (http.live_reply(tier), {"live": up}),
            (http.ready_reply(tier), {"ready": up}),
            (http.model_ready_reply(tier, "double", ""), {"name": "double", "ready": up}),
        ):
            assert (reply.status, json_of(reply)) == (status, body)


def test_metadata() -> None:
    tier = Doubler()
    assert http.server_metadata_json(tier) == {
        "name": "firstline-edge",
        "version": "1.2",
        "extensions": ["binary_tensor_data"],
    }
    assert json_of(http.model_metadata_reply(tier, "double", "7")) == {
        "name": "double",
        "versions": ["7"],
        "platform": "onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
        "labels": ["a", "b"],
    }


def test_an_unknown_model_is_404() -> None:
    for answer, model, version in ((http.model_ready_reply, "triple", ""), (http.model_metadata_reply, "double", "8")):
        with pytest.raises(errors.UnknownModelError) as unknown:
            answer(Doubler(), model, version)
        reply = http.error_reply(unknown.value)
        assert reply.status == 404
        assert json_of(reply)["code"] == "unknown_model"


def test_classes_have_the_labels_of_the_model_that_answered() -> None:
    tier = Doubler()
    request = InferRequest("double", (), "i", outputs=(RequestedOutput("y", None, 1),))
    answered = InferResponse("double", "7", ())
    assert http.class_labels(tier, request, answered) == ("a", "b")
    assert http.class_labels(tier, request, InferResponse("elsewhere", "1", ())) == ()
    assert http.class_labels(tier, InferRequest("double", (), "i"), answered) == ()


class TestExtensions:
    @pytest.mark.parametrize("body", [b"", b" ", b"{}", b'{"ready": false}'])
    def test_the_index_takes_an_empty_body(self, body: bytes) -> None:
        assert json_of(extensions.index_reply(Doubler(up=False), body)) == [
            {"name": "double", "version": "7", "state": "UNAVAILABLE", "reason": "asleep"}
        ]

    def test_the_index_may_be_of_ready_models_alone(self) -> None:
        assert json_of(extensions.index_reply(Doubler(up=False), b'{"ready": true}')) == []
        assert json_of(extensions.index_reply(Doubler(), b'{"ready": true}'))[0]["state"] == "READY"

    @pytest.mark.parametrize("body", [b"[]", b'{"ready": 1}', b"{"])
    def test_the_index_takes_no_other_body(self, body: bytes) -> None:
        with pytest.raises(errors.RequestError):
            extensions.index_reply(Doubler(), body)

    def test_statistics_have_the_form_of_triton(self) -> None:
        tier = Doubler()
        tier.counted.ran(3, 0.25, (0.5, 0.0))
        tier.counted.answered(0.75, 1000.0)
        tier.counted.fail.add(1.0)
        (found,) = extensions.statistics_json(tier, "double", "")["model_stats"]
        assert (found["name"], found["version"], found["last_inference"]) == ("double", "7", 1_000_000)
        assert (found["inference_count"], found["execution_count"]) == (3, 1)
        counted = found["inference_stats"]
        assert counted["success"] == {"count": 1, "ns": 750_000_000}
        assert counted["fail"] == {"count": 1, "ns": 1_000_000_000}
        assert counted["queue"] == {"count": 2, "ns": 500_000_000}
        assert counted["compute_infer"] == {"count": 2, "ns": 500_000_000}
        assert found["batch_stats"][0]["batch_size"] == 3
        assert found["batch_stats"][0]["compute_infer"] == {"count": 1, "ns": 250_000_000}

    def test_statistics_of_an_unknown_model_are_refused(self) -> None:
        assert extensions.statistics_json(Doubler(), "", "")["model_stats"][0]["name"] == "double"
        for model, version in (("nobody", ""), ("double", "8")):
            with pytest.raises(errors.UnknownModelError):
                extensions.statistics_json(Doubler(), model, version)

    def test_the_configuration_matches_the_metadata(self) -> None:
        assert Doubler().config("double", "") == {
            "name": "double",
            "platform": "onnx",
            "backend": "onnx",
            "max_batch_size": 4096,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
            "dynamic_batching": {"priority_levels": 3, "default_priority_level": 2},
        }


def test_every_error_is_restored_from_its_reply() -> None:
    for code, kind in errors.BY_CODE.items():
        error = kind("What was wrong.", retry_after_s=1.2)
        reply = error_reply(error)
        assert reply.status == status_of(error), code
        assert reply.headers["Retry-After"] == "2"
        back = error_from(reply.status, reply.body, Headers(reply.headers))
        assert (type(back), back.message, back.retry_after_s) == (kind, "What was wrong.", 1.2)


def test_an_unauthenticated_caller_receives_the_scheme() -> None:
    assert error_reply(errors.UnauthorizedError("No token.")).headers["WWW-Authenticate"] == "Bearer"


def test_there_is_no_retry_after_without_a_known_delay() -> None:
    error = errors.QueueFullError("Full.")
    reply = error_reply(error)
    assert "Retry-After" not in reply.headers
    assert orjson.loads(reply.body) == {"error": "Full.", "code": "queue_full", "request_id": error.identify()}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, errors.RateLimitedError),
        (403, errors.UnauthorizedError),
        (418, errors.RequestError),
        (502, errors.LinkError),
        (503, errors.CapacityError),
        (500, errors.FirstlineError),
        (302, errors.ProtocolError),
    ],
)
def test_without_our_code_the_status_decides(status: int, kind: type[errors.FirstlineError]) -> None:
    for body in (b"", b"<html>", b"[]", b'{"error":"x","code":"new_code"}', b'{"error":7,"code":[]}', b"\xff"):
        assert type(error_from(status, body)) is kind, body


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-7", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("²", None),
        ("2592000", 86_400.0),
        ("9" * 400, 86_400.0),
    ],
)
def test_retry_after_of_another_server(value: str, seconds: float | None) -> None:
    assert error_from(503, b"", {"retry-after": value}).retry_after_s == seconds


def test_a_wait_beyond_all_reason_can_be_passed_on() -> None:
    for body in (b'{"retry_after_s": 1e308}', b'{"retry_after_s": 99999999999999999}'):
        assert error_reply(error_from(503, body)).headers["Retry-After"] == "86400"
    assert error_reply(error_from(503, b"<html>", {"retry-after": "9" * 400})).headers["Retry-After"] == "86400"


def test_a_long_message_is_cut() -> None:
    assert len(error_from(500, orjson.dumps({"error": "a" * 100_000})).message) == 1000


def test_a_closing_response_is_a_whole_one() -> None:
    class Wire:
        def makefile(self, _mode: str) -> io.BytesIO:
            return io.BytesIO(closing_response(431, errors.RequestError("The head is too large.")))

    response = HTTPResponse(Wire())
    response.begin()
    assert (response.status, response.reason) == (431, "Request Header Fields Too Large")
    assert response.getheader("Connection") == "close"
    body = response.read()
    assert len(body) == int(response.getheader("Content-Length") or 0)
    assert type(error_from(431, body)) is errors.RequestError


def test_the_retry_delay_is_rounded_to_milliseconds() -> None:
    assert orjson.loads(error_body(errors.QueueFullError("Full.", retry_after_s=0.123456789)))["retry_after_s"] == 0.123
