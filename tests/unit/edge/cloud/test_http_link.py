"""The HTTP link against a real socket server that behaves as each test says."""

import asyncio
import contextlib
import json
import random
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support.broker import free_port
from support.escalations import request, response
from support.proxy import ChaosProxy, Network
from support.waiting import until

from bench.simulation.simulated_time import LoopClock
from firstline_core import errors
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.ids import new_request_id
from firstline_core.protocol import http, http_client
from firstline_core.protocol import http as wire
from firstline_core.protocol.http import error_body
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Origin, decode_request, encode_response
from firstline_core.telemetry.trace import received
from firstline_core.types import Attempt, Tensor
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.http_link import HttpLink
from firstline_edge.cloud.link import LinkBusyError, MessageRefusedError
from firstline_edge.settings.settings import BreakerSection, LinkSection
from firstline_edge.telemetry.link_traffic import counting_traffic

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Script = Callable[[Reader, Writer], Awaitable[None]]


class Server:
    """Serves each connection with `script`."""

    def __init__(self) -> None:
        self.script: Script = answer_well
        self.connections = 0
        self.heads: list[str] = []
        self.open: set[Writer] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Server":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self.open:
            writer.transport.abort()
        await asyncio.gather(*self.tasks)
        await self.server.wait_closed()

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        self.open.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        reader.server = self  # type: ignore[attr-defined]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self.script(reader, writer)
        writer.transport.abort()


async def read_request(reader: Reader) -> tuple[str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    headers = {name.lower(): value for name, value in headers.items()}
    reader.server.heads.append(head)  # type: ignore[attr-defined]
    return first, headers, await reader.readexactly(int(headers.get("content-length", 0)))


def reply(status: int, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    lines = {"Content-Length": str(len(body))} | (headers or {})
    return (
        f"HTTP/1.1 {status} X\r\n".encode()
        + "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode()
        + b"\r\n"
        + body
    )


TRUSTED = Origin(trust_request_id=True)


def answer_to(headers: dict[str, str], body: bytes, origin: Origin = TRUSTED, classes: int = 10) -> bytes:
    """The gateway's answer to a request."""
    infer_request = decode_request("digits", body, int(headers[http.HEADER_LENGTH.lower()]), origin)
    assert infer_request.deadline_s is not None
    encoded = encode_response(infer_request, response(infer_request, classes=classes))
    return reply(200, encoded.body, wire.headers_for(encoded))


async def answer_once(reader: Reader, writer: Writer) -> None:
    first, headers, body = await read_request(reader)
    if first.startswith("GET /v2/health/live "):
        writer.write(reply(200, b'{"live": true}'))
    else:
        writer.write(answer_to(headers, body))
    await writer.drain()


async def answer_well(reader: Reader, writer: Writer) -> None:
    while True:
        await answer_once(reader, writer)


def always(answer: bytes) -> Script:
    async def script(reader: Reader, writer: Writer) -> None:
        while True:
            await read_request(reader)
            writer.write(answer)

    return script


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as running:
        yield running


@pytest.fixture
async def link(server: Server, tmp_path: Path) -> AsyncIterator[HttpLink]:
    token = tmp_path / "link-token"
    token.write_text("secret")
    section = LinkSection(kind="http", url=server.url, token_file=str(token))
    link = HttpLink(section, limits=Limits(body_bytes=100_000))
    await link.start()
    yield link
    await link.close()


async def test_asks_by_version_with_the_token_over_one_connection(server: Server, link: HttpLink) -> None:
    for _ in range(3):
        infer_request = request(2)
        answer = await link.infer(infer_request, 5.0)
        assert answer.answer == response(infer_request).answer
        assert answer.output("probabilities").shape == (2, 10)
    assert server.connections == 1
    assert server.heads[0].startswith("POST /v2/models/digits/versions/1/infer HTTP/1.1\r\n")
    assert "\r\nauthorization: bearer secret\r\n" in server.heads[0].lower()


async def test_a_name_cannot_leave_its_place_in_the_path(server: Server, link: HttpLink) -> None:
    await link.infer(request(model="../x?y", version=""), 5.0)
    assert server.heads[0].startswith("POST /v2/models/..%2Fx%3Fy/infer ")


async def test_an_unreachable_gateway_is_a_link_down() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    link = HttpLink(LinkSection(kind="http", url=url))
    with pytest.raises(errors.LinkDownError, match=url):
        await link.infer(request(), 5.0)
    with pytest.raises(errors.LinkDownError):
        await link.probe(5.0)
    await link.close()


async def test_silence_is_a_timeout_over_the_whole_exchange(server: Server, link: HttpLink) -> None:
    async def drip(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n")
        while True:  # each byte would renew a timeout that counts reads
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    server.script = drip
    with pytest.raises(errors.RemoteTimeoutError, match=r"within 0\.1 s"):
        await link.infer(request(), 0.1)


async def test_bytes_of_a_truncated_answer_count(server: Server, link: HttpLink) -> None:
    async def half(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + bytes(45_000))
        await writer.drain()

    server.script = half
    with counting_traffic() as traffic, pytest.raises(errors.LinkError):
        await link.infer(request(), 5.0)
    received = sum(received for _, _, received in traffic.crossed)
    assert 45_000 < received < 46_000


async def test_requests_in_progress_delay_no_probe(server: Server) -> None:
    async def take_requests_and_answer_probes(reader: Reader, writer: Writer) -> None:
        first, _, _ = await read_request(reader)
        if first.startswith("GET "):
            writer.write(reply(200, b'{"live": true}'))
        await reader.read()

    server.script = take_requests_and_answer_probes
    link = HttpLink(LinkSection(kind="http", url=server.url), connections=1)
    hanging = asyncio.create_task(link.infer(request(), 60.0))
    await until(lambda: server.heads, 5)
    with pytest.raises(LinkBusyError, match="1 connections to"):
        await link.infer(request(), 0.05)
    await link.probe(5.0)
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    with pytest.raises(errors.RemoteTimeoutError) as caught:
        await link.infer(request(), 0.1)
    assert type(caught.value) is errors.RemoteTimeoutError
    await link.close()


async def test_the_number_of_connections_is_limited(server: Server) -> None:

    async def stall(reader: Reader, _writer: Writer) -> None:
        await reader.read()
        await reader.read()

    server.script = stall
    link = HttpLink(LinkSection(kind="http", url=server.url), connections=2)
    asking = [asyncio.create_task(link.infer(request(), 60.0)) for _ in range(20)]
    await until(lambda: len(server.heads) + server.connections >= 2, 5)
    await asyncio.sleep(0.05)
    assert server.connections == 2
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    server.script = answer_well
    await link.infer(request(), 5.0)  # every place is free again
    await asyncio.gather(*(link.infer(request(), 5.0) for _ in range(5)))
    await link.close()


async def test_a_kept_connection_that_the_server_closed_is_replaced(server: Server, link: HttpLink) -> None:
    async def close_on_the_second(reader: Reader, writer: Writer) -> None:
        await answer_once(reader, writer)
        await read_request(reader)  # heard, and dropped without a word

    server.script = close_on_the_second
    for _ in range(4):
        await link.infer(request(), 5.0)
    assert server.connections == 4


async def test_forgotten_idle_connections_cost_no_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "SHORTEST_IDLE_S", 0.02)
    link = HttpLink(LinkSection(kind="http", url=server.url))

    async def forget_after_the_first(reader: Reader, writer: Writer) -> None:
        await answer_once(reader, writer)
        await reader.read()

    server.script = forget_after_the_first
    chain = LinkChain([link], [CircuitBreaker(SYSTEM_CLOCK, random.Random(1))], SYSTEM_CLOCK)
    await chain.start()

    async def outcomes_of_one() -> list[str]:
        attempts: list[Attempt] = []
        await chain.infer(request(), SYSTEM_CLOCK.monotonic_s() + 2, attempts)
        return [attempt.outcome for attempt in attempts]

    began_s = SYSTEM_CLOCK.monotonic_s()
    outcomes = [await outcomes_of_one()]
    await asyncio.sleep(0.06)
    idle_s = SYSTEM_CLOCK.monotonic_s() - began_s  # more than 0.06 s on a busy machine
    for _ in range(5):
        outcomes.append(await outcomes_of_one())
        await asyncio.sleep(idle_s)
    assert outcomes == [["ok"], ["remote_timeout", "ok"], *[["ok"]] * 4]
    assert chain.available
    timing = chain.timings()["http"]
    assert timing.total_p95_ms < 800  # the silence, of a second, is not learned
    await chain.close()


async def test_a_fresh_connection_that_is_dropped_is_not_tried_forever(server: Server, link: HttpLink) -> None:
    async def drop(reader: Reader, _writer: Writer) -> None:
        await read_request(reader)

    server.script = drop
    with pytest.raises(errors.LinkDownError):
        await link.infer(request(), 5.0)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, errors.InvalidTensorError("no")),
        (401, errors.UnauthorizedError("no")),
        (409, errors.ModelMismatchError("no")),
        (503, errors.QueueFullError("later", retry_after_s=3.0)),
        (503, errors.NotReadyError("starting")),
        (500, errors.InferenceError("broken")),
    ],
)
async def test_an_error_of_the_gateway_is_raised_unchanged(
    server: Server, link: HttpLink, status: int, error: errors.FirstlineError
) -> None:
    server.script = always(reply(status, error_body(error)))
    with pytest.raises(type(error)) as raised:
        await link.infer(request(), 5.0)
    assert type(raised.value) is type(error)
    assert raised.value.retry_after_s == error.retry_after_s


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, errors.ProtocolError),  # a captive portal must not end a promise
        (302, errors.ProtocolError),
        (400, errors.ProtocolError),
        (200, errors.ProtocolError),
        (401, errors.UnauthorizedError),
        (407, errors.ProtocolError),
        (413, MessageRefusedError),
        (500, errors.ProtocolError),
        (502, errors.LinkError),
        (503, errors.CapacityError),
        (504, errors.RemoteTimeoutError),
        (511, errors.ProtocolError),
        (599, errors.ProtocolError),
    ],
)
async def test_errors_of_an_intermediary_never_end_a_promise(
    server: Server, link: HttpLink, status: int, kind: type[errors.FirstlineError]
) -> None:
    pages = (
        b"<html>Welcome to the hotel</html>",
        b'{"code": "internal", "msg": "origin"}',
        b'{"code": ["internal"], "error": "origin"}',
        b"",
    )
    for page in pages:
        # Each page needs a new connection, because an open one keeps the script that it began with.
        server.script = always(reply(status, page, {"Location": "http://portal/", "Connection": "close"}))
        with pytest.raises(kind) as raised:
            await link.infer(request(), 5.0)
        assert type(raised.value) is kind
        assert raised.value.retryable or kind is errors.UnauthorizedError  # the outbox retries both
        assert kind is errors.UnauthorizedError or wire.status_of(raised.value) in (502, 503, 504)


async def test_a_key_of_another_scope_is_unauthorized(server: Server, link: HttpLink) -> None:
    """Forbidden is final for who asks the gateway itself; a promise waits until the device's operator has mended it."""
    server.script = always(reply(403, error_body(errors.ForbiddenError("application:shop may not do this"))))
    with pytest.raises(errors.UnauthorizedError, match="application:shop may not do this"):
        await link.infer(request(), 5.0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", "too much"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not speak HTTP/1.1"),
    ],
    ids=["over the limit", "not HTTP"],
)
async def test_an_unusable_answer_is_the_links_fault(server: Server, link: HttpLink, answer: bytes, error: str) -> None:
    server.script = always(answer)
    with pytest.raises(errors.ProtocolError, match=error):
        await link.infer(request(), 5.0)


def chain_of(link: HttpLink) -> LinkChain:
    """The link alone, with a breaker that stays closed."""
    breaker = CircuitBreaker(SYSTEM_CLOCK, random.Random(0), BreakerSection(failure_threshold=1000))
    return LinkChain([link], [breaker], SYSTEM_CLOCK)


async def test_the_answer_to_another_request_is_refused_with_its_connection(server: Server, link: HttpLink) -> None:
    """Bytes that an earlier answer left behind are not the answer to this request."""

    async def answer_twice(reader: Reader, writer: Writer) -> None:
        _, headers, body = await read_request(reader)
        writer.write(2 * answer_to(headers, body))
        await reader.read()

    server.script = answer_twice
    chain = chain_of(link)
    await chain.infer(request(), None, [])
    with pytest.raises(errors.ProtocolError, match="gave an answer that is not accepted"):
        await chain.infer(request(), None, [])
    await chain.infer(request(), None, [])
    assert server.connections == 2


async def test_a_gateway_that_makes_request_ids_of_its_own_is_accepted(server: Server) -> None:
    """As it does for an application's key."""

    async def answer(reader: Reader, writer: Writer) -> None:
        while True:
            _, headers, body = await read_request(reader)
            writer.write(answer_to(headers, body, Origin()))

    server.script = answer
    link = HttpLink(LinkSection(kind="http", url=server.url))
    infer_request = request(id="mine")
    found = await chain_of(link).infer(infer_request, None, [])
    assert found.id == infer_request.request_id != found.answer.request_id
    await link.close()


async def test_a_probe_rejects_a_captive_portal(server: Server, link: HttpLink) -> None:
    await link.probe(5.0)
    for body in (b"<html>", b"{}", json.dumps({"live": False}).encode(), b"[]"):
        server.script = always(reply(200, body))
        link_two = HttpLink(LinkSection(kind="http", url=server.url))
        with pytest.raises(errors.ProtocolError, match="gateway"):
            await link_two.probe(5.0)
        await link_two.close()


class TestReplacedToken:
    async def by_token(self, reader: Reader, writer: Writer) -> None:
        """Knows one token, the new one."""
        while True:
            _, headers, body = await read_request(reader)
            if headers.get("authorization") != "Bearer new":
                writer.write(reply(401, error_body(errors.UnauthorizedError("The token is unknown."))))
                continue
            writer.write(answer_to(headers, body))

    async def test_the_file_is_read_again_once_the_gateway_refuses(self, server: Server, tmp_path: Path) -> None:
        server.script = self.by_token
        file = tmp_path / "token"
        file.write_text("old")
        link = HttpLink(LinkSection(kind="http", url=server.url, token_file=str(file)))
        with pytest.raises(errors.UnauthorizedError, match="unknown"):
            await link.infer(request(), 5.0)
        assert len(server.heads) == 1  # the same token again is not worth a journey
        file.write_text("new\n")
        for _ in range(2):
            assert (await link.infer(request(), 5.0)).answer is not None
        assert len(server.heads) == 4  # the old one once, then the new one and no other
        await link.close()

    async def test_a_file_that_is_gone_leaves_the_refusal(self, server: Server, tmp_path: Path) -> None:
        server.script = self.by_token
        file = tmp_path / "token"
        file.write_text("old")
        link = HttpLink(LinkSection(kind="http", url=server.url, token_file=str(file)))
        file.unlink()
        with pytest.raises(errors.UnauthorizedError, match="unknown"):
            await link.infer(request(), 5.0)
        await link.close()


async def test_the_trace_of_a_request_is_sent_in_headers(server: Server, link: HttpLink) -> None:
    trace = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    bodies: list[bytes] = []

    async def script(reader: Reader, writer: Writer) -> None:
        for _ in range(2):
            _, headers, body = await read_request(reader)
            bodies.append(body)
            writer.write(answer_to(headers, body))

    server.script = script
    await link.infer(request(trace=trace), 5.0)
    await link.infer(request(), 5.0)
    assert f"\r\ntraceparent: {trace.traceparent}\r\ntracestate: a=1\r\n" in server.heads[0]
    assert "trace" not in server.heads[1]
    assert not any(b"trace" in body for body in bodies)


class Leap(selectors.DefaultSelector):
    """Leaps over the time in which no socket is ready: only timers take time, and pauses of the machine take none."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout and min(timeout, 0.002))
        if not ready and timeout:
            self.now_s += timeout
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leap = Leap()
        super().__init__(self._leap)

    def time(self) -> float:
        return self._leap.now_s


CARRIED_BYTES_S = 400_000
ROW = np.zeros((1, 20_000), np.uint8)  # 50 ms on the link, and its answer as long again
DEPTH = 8


async def predict_on_a_narrow_link() -> None:
    """How long an answer takes on a link that carries less than is asked is known before one is late."""

    async def answer_in_full(reader: Reader, writer: Writer) -> None:
        while True:
            _, headers, body = await read_request(reader)
            writer.write(answer_to(headers, body, classes=ROW.size // 4))

    async with Server() as server, ChaosProxy(int(server.url.rpartition(":")[2])) as narrow:
        server.script = answer_in_full
        await narrow.become(Network(delay_s=0.005, total_bytes_s=CARRIED_BYTES_S))
        clock, link = LoopClock(), HttpLink(LinkSection(kind="http", url=f"http://127.0.0.1:{narrow.port}"))
        chain = LinkChain([link], [CircuitBreaker(clock, random.Random(1))], clock)
        infer_request = structs.replace(request(), inputs=(Tensor("image", ROW),), binary_output=True)

        async def ask() -> float:
            began_s = clock.monotonic_s()
            await chain.infer(structs.replace(infer_request, request_id=new_request_id()), began_s + 60, [])
            return clock.monotonic_s() - began_s

        def median_s() -> float | None:
            return chain._links[0].timing.predicted_s(infer_request.size_bytes, 0.5, clock.monotonic_s())

        for together in (1, 2, 4, 1, 3, 4, 2):
            await asyncio.gather(*(ask() for _ in range(together)))
        alone_s, alone_took_s = median_s(), await ask()
        sent = [asyncio.create_task(ask()) for _ in range(DEPTH)]
        await asyncio.sleep(0)
        behind_s = median_s()  # no request ever waited behind this many
        took_s = await ask()
        await asyncio.gather(*sent)
        await link.close()
    assert alone_s == pytest.approx(alone_took_s, rel=0.2)
    assert behind_s == pytest.approx(took_s, rel=0.2)
    assert took_s > max(DEPTH * infer_request.size_bytes / CARRIED_BYTES_S, 3 * alone_took_s)


def test_requests_in_flight_delay_the_prediction() -> None:
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(predict_on_a_narrow_link())
