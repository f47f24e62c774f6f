"""`Client` and `AsyncClient` against both tiers as processes, and against servers that are not a tier."""

import asyncio
import gzip
import inspect
import io
import socket
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.asker import Asker
from support.digits import predictions
from support.gateway import DIGITS
from support.images import noise
from support.line import Line, line

import firstline
from firstline import AsyncClient, Classification, Client
from firstline_core import errors
from firstline_core.bundle.store import open_bundle
from firstline_core.protocol.limits import Limits
from firstline_core.types import InferResponse, Status, Tier

BODY_LIMIT_BYTES = 200_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    limit = str(BODY_LIMIT_BYTES)
    environ = {"FIRSTLINE_EDGE_API__BODY_LIMIT_BYTES": limit, "FIRSTLINE_GATEWAY_API__BODY_LIMIT_BYTES": limit}
    with line(tmp_path_factory.mktemp("line"), environ=environ) as found:
        yield found


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["agent", "gateway"])
async def ask(running: Line, kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Asker]:
    tier = running.tiers[request.param]
    async with Asker(kind, tier.url, token=tier.token or None) as found:
        yield found


@pytest.fixture
async def agent(running: Line, kind: str) -> AsyncIterator[Asker]:
    async with Asker(kind, running.agent.url) as found:
        yield found


@pytest.fixture(scope="module")
def unsure() -> tuple[bytes, np.ndarray]:
    """A scan that the edge model is unsure of, and the full model's answer to it."""
    found = predictions(100)
    return found.least_sure, found.full[int(found.scores.argmin())]


async def test_tensors_are_sent_and_returned(ask: Asker) -> None:
    images: InferResponse = await ask("infer", "digits", {"image": [noise()] * 3}, id="mine", route="cloud")
    pixels = np.asarray(Image.open(io.BytesIO(noise())))[None, ..., None]
    one: InferResponse = await ask("infer", "digits", {"image": pixels}, version="1", outputs=["probabilities"])
    assert images.id == "mine"
    assert images.output("probabilities").shape == (3, 10)
    assert one.output("probabilities").shape == (1, 10)
    assert images.answer.tier in (Tier.CLOUD, Tier.CACHE)
    with pytest.raises(errors.InvalidTensorError, match="no output 'logits'; it has: probabilities"):
        one.output("logits")


async def test_file_is_sent_and_label_returned(ask: Asker, tmp_path: Path) -> None:
    file = tmp_path / "scan.png"
    file.write_bytes(noise())
    found: list[Classification] = [await ask("infer_file", "digits", form) for form in (file, str(file), noise())]
    assert {prediction.label for prediction in found} == {found[0].top[0][0]}
    assert len(found[0].top) == 5
    assert found[0].probability == pytest.approx(found[0].top[0][1])
    assert found[0].answer.status is Status.FINAL


async def test_metadata_describes_the_model(ask: Asker) -> None:
    assert await ask("ready") is True
    metadata = await ask("metadata", "digits")
    assert metadata.labels == open_bundle(DIGITS).manifest.labels
    assert (metadata.inputs[0].name, metadata.inputs[0].datatype) == ("image", "BYTES")
    assert await ask("metadata", "digits", "1") == metadata
    assert await ask("models") == {"digits": ("1",)}


@pytest.mark.parametrize(
    ("call", "kind_of_error"),
    [
        (("infer", "nobody", {"image": noise()}), errors.UnknownModelError),
        (("infer_file", "nobody", noise()), errors.UnknownModelError),
        (("metadata", "nobody"), errors.UnknownModelError),
        (("infer", "digits", {"image": np.ones((1, 8, 8, 1), np.float32)}), errors.InvalidTensorError),
        (("infer", "digits", {"picture": noise()}), errors.InvalidTensorError),
        (("infer_file", "digits", b"no image"), errors.InvalidTensorError),
        (("infer", "digits", {"image": noise(side=600)}), errors.PayloadTooLargeError),
        (("infer_file", "digits", noise(side=600)), errors.PayloadTooLargeError),
    ],
)
async def test_refusal_is_raised_as_its_class(
    ask: Asker, call: tuple[Any, ...], kind_of_error: type[errors.FirstlineError]
) -> None:
    with pytest.raises(kind_of_error, match=r"\.$") as caught:
        await ask(*call)
    assert type(caught.value) is kind_of_error
    assert await ask("ready")


@pytest.mark.parametrize("token", [None, "not-a-token"])
async def test_missing_token_is_unauthorized(running: Line, kind: str, token: str | None) -> None:
    async with Asker(kind, running.gateway.url, token=token) as ask:
        for call in (("infer_file", "digits", noise()), ("metadata", "digits")):
            with pytest.raises(errors.UnauthorizedError, match="API key"):
                await ask(*call)


async def test_correction_is_found_by_its_id(agent: Asker, running: Line, unsure: tuple[bytes, np.ndarray]) -> None:
    scan, expected = unsure
    # Unlike any scan before it, so that no cache knows it; PNG readers stop at the end of the image.
    scan += agent.client.__class__.__name__.encode()
    running.cut()
    try:
        provisional: InferResponse = await agent("infer", "digits", {"image": scan})
        assert provisional.answer.status is Status.PROVISIONAL
        request_id = provisional.answer.request_id
        stored: InferResponse = await agent("answer", request_id)
        np.testing.assert_array_equal(stored.output("probabilities"), provisional.output("probabilities"))
        with pytest.raises(errors.RemoteTimeoutError, match=f"{request_id} was still provisional after 0.2 s"):
            await agent("wait_for_final", request_id, timeout_s=0.2)
        with pytest.raises(errors.LinkDownError):
            await agent("infer", "elsewhere", {"x": [1]})
    finally:
        running.restore()
    final: InferResponse = await agent("wait_for_final", request_id)
    assert final.answer.status is Status.FINAL
    np.testing.assert_allclose(final.output("probabilities")[0], expected, atol=1e-5)
    in_words: Classification = await agent("prediction", request_id)
    assert in_words.answer == final.answer
    assert in_words.probability == pytest.approx(expected.max(), abs=1e-5)


async def test_events_deliver_the_correction_at_once(
    agent: Asker, running: Line, unsure: tuple[bytes, np.ndarray]
) -> None:
    scan, expected = unsure
    scan += b"events " + agent.client.__class__.__name__.encode()
    running.cut()
    try:
        provisional: InferResponse = await agent("infer", "digits", {"image": scan}, wait="first")
        events = agent.begin("events", provisional.answer.request_id)
        first: InferResponse = await anext(events)
        assert first.answer == provisional.answer
    finally:
        running.restore()
    final: InferResponse = await anext(events)
    assert (final.answer.request_id, final.answer.status) == (provisional.answer.request_id, Status.FINAL)
    assert final.answer.changed == (expected.argmax() != provisional.output("probabilities").argmax())
    np.testing.assert_allclose(final.output("probabilities")[0], expected, atol=1e-5)
    assert [item async for item in events] == []


async def test_stream_yields_first_and_final_answer(ask: Asker, unsure: tuple[bytes, np.ndarray]) -> None:
    """A gateway's first answer is its last."""
    scan, expected = unsure
    scan += b"stream " + ask.client.__class__.__name__.encode()
    found: list[Classification] = await ask.all("stream_file", "digits", scan)
    statuses = [Status.FINAL] if found[0].answer.tier is Tier.CLOUD else [Status.PROVISIONAL, Status.FINAL]
    assert [item.answer.status for item in found] == statuses
    assert len({item.answer.request_id for item in found}) == 1
    assert found[-1].probability == pytest.approx(expected.max(), abs=1e-5)


async def test_unknown_answer_is_an_error(agent: Asker) -> None:
    for call in ("answer", "prediction", "wait_for_final"):
        with pytest.raises(errors.UnknownAnswerError, match="01890a5d-ac96-774b-bcce-b302099a8057"):
            await agent(call, "01890a5d-ac96-774b-bcce-b302099a8057")
    with pytest.raises(errors.UnknownAnswerError):
        await anext(agent.begin("events", "01890a5d-ac96-774b-bcce-b302099a8057"))


# --- No server, or none of ours ---------------------------------------------------------------------------------------


@contextmanager
def saying(reply: bytes) -> Iterator[str]:
    """A server that says one thing to any request and ends the connection, or stays silent until the client does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(ConnectionError):  # a client that has read enough
                    connection.recv(65_536)
                    if reply:
                        connection.sendall(reply)
                        connection.shutdown(socket.SHUT_WR)
                    # A close with bytes unread would take the reply back.
                    while connection.recv(65_536):
                        pass

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def http_reply(status: str, body: bytes, content_type: str = "text/html") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


ASKED = [("infer", "digits", {"image": b"x"}), ("infer_file", "digits", b"x"), ("metadata", "digits"), ("answer", "x")]


@pytest.mark.parametrize(
    "reply",
    [
        http_reply("200 OK", b"<html>Welcome</html>"),
        http_reply("200 OK", b"[]", "application/json"),
        http_reply("302 Found", b""),
        http_reply("404 Not Found", b"<html>Not found</html>"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nhalf",
    ],
)
async def test_foreign_server_is_a_protocol_error(kind: str, reply: bytes) -> None:
    with saying(reply) as url:
        async with Asker(kind, url) as ask:
            for call in ASKED:
                with pytest.raises(errors.ProtocolError, match=url):
                    await ask(*call)
            with pytest.raises(errors.ProtocolError, match=url):
                await anext(ask.begin("stream_file", "digits", b"x"))


@pytest.mark.parametrize("compressed", [False, True])
async def test_an_answer_over_the_limit_is_not_read_to_its_end(
    kind: str, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes = 1_000_003
    monkeypatch.setattr("firstline.client.connection.DEFAULT_LIMITS", Limits(body_bytes=limit_bytes))
    body = b" " * (limit_bytes + 1)
    encoding = "gzip" if compressed else "identity"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {encoding}\r\n\r\n"
    with saying(head.encode() + (gzip.compress(body, 1) if compressed else body)) as url:
        async with Asker(kind, url) as ask:
            for call in (("metadata", "digits"), ("answer", "x")):
                with pytest.raises(errors.ProtocolError, match=f"{limit_bytes}"):
                    await ask(*call)
            with pytest.raises(errors.ProtocolError, match=f"{limit_bytes}"):
                await anext(ask.begin("stream_file", "digits", b"x"))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_an_answer_that_a_proxy_compresses_is_read(kind: str, encoding: str) -> None:
    plain = b'{"name": "digits", "inputs": [], "outputs": []}'
    body = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding](plain)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    with saying(head.encode() + body) as url:
        async with Asker(kind, url) as ask:
            assert (await ask("metadata", "digits")).name == "digits"


async def test_an_answer_without_a_body_may_name_an_encoding(kind: str) -> None:
    with saying(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n") as url:
        async with Asker(kind, url) as ask:
            assert await ask("ready")


async def test_silent_server_is_a_timeout(kind: str) -> None:
    with saying(b"") as url:
        async with Asker(kind, url, timeout_s=0.1) as ask:
            with pytest.raises(errors.RemoteTimeoutError, match="did not answer in time"):
                await ask("infer_file", "digits", b"x")


async def test_unreachable_server_is_a_link_error(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with Asker(kind, url) as ask:
        for call in (*ASKED, ("ready",)):
            with pytest.raises(errors.LinkDownError, match="cannot be reached"):
                await ask(*call)


# --- The two are one --------------------------------------------------------------------------------------------------


def test_both_clients_have_the_same_methods() -> None:
    def calls_of(client: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(method)).replace("AsyncIterator", "Iterator")
            for name, method in vars(client).items()
            if inspect.isfunction(method) and not name.startswith("_")
        }

    assert calls_of(Client) == calls_of(AsyncClient)
    assert set(firstline.__all__) <= set(dir(firstline))


async def test_both_clients_close_their_connections(running: Line) -> None:
    with Client(running.agent.url) as client:
        assert await asyncio.to_thread(client.ready)
    async with AsyncClient(running.agent.url) as other:
        assert await other.ready()
    for closed in (client, other):
        assert [each.is_closed for each in closed._clients.values()] == [True]
    with pytest.raises(errors.ConfigError, match="The client is closed"):
        client.ready()
    with pytest.raises(errors.ConfigError, match="The client is closed"):
        await other.ready()
