"""HTTP/1.1 where servers differ, and one in front could be fooled by the one behind: both tiers read it alike."""

import contextlib
import json
import re
import resource
import socket

import pytest
from support.line import Tier
from support.raw_http import connection, exchange, head, process_of, read
from support.waiting import wait_until

from firstline_core.protocol.http_server import ServerLimits, connections_within_descriptors
from firstline_gateway.commands.serve import raise_descriptor_limit

V2 = "/v2/models/digits/infer"
LIVE, READY = "/v2/health/live", "/v2/health/ready"
BODY = b'{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,8,8,1],"data":[%b]}]}' % b",".join([b"0"] * 64)
LENGTH, CHUNKED = f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAA")
NEXT = b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def statuses(tier: Tier, sent: bytes) -> list[int]:
    """Of all answers on a connection that the tier ends."""
    with connection(tier) as found:
        found.sendall(sent)
        received = found.makefile("rb").read()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", received)]


# --- Another protocol ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framing", "body"), [(LENGTH, BODY), (CHUNKED, IN_CHUNKS)], ids=["length", "chunks"])
def test_http_2_upgrade_is_answered_in_http_1_1(tier: Tier, framing: str, body: bytes) -> None:
    """As Java's HttpClient asks with each first request; what is lost of a body would be the next request."""
    request = head(tier, "POST", V2, framing, *UPGRADE) + body
    for cut in (len(request), len(request) - len(body), len(request) - 5, 40):
        with connection(tier) as found:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(2):
                found.sendall(request[:cut])
                found.sendall(request[cut:])
                assert read(found).status == 200
            found.sendall(NEXT)
            assert read(found).status == 404


def test_packet_boundaries_do_not_matter(tier: Tier) -> None:
    request = head(tier, "POST", V2, LENGTH) + BODY
    with connection(tier) as found:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in (1, 4, request.index(b"\r\n\r\n") + 2, len(request) - len(BODY), len(request) - 1):
            found.sendall(request[:cut])
            found.sendall(request[cut:])
            assert read(found).status == 200
        for byte in request:
            found.sendall(bytes([byte]))
        assert read(found).status == 200


def test_requests_after_an_http_2_upgrade_are_separate(tier: Tier) -> None:
    upgrading = head(tier, "GET", LIVE, *UPGRADE)
    closing = head(tier, "GET", LIVE, "Connection: close")
    posting = head(tier, "POST", V2, LENGTH, *UPGRADE) + BODY
    assert statuses(tier, upgrading + posting + upgrading + NEXT + closing) == [200, 200, 200, 404, 200]


def test_request_within_a_body_is_not_read(tier: Tier) -> None:
    last = head(tier, "POST", V2, f"Content-Length: {len(NEXT)}", "Connection: Upgrade, close", "Upgrade: h2c")
    assert statuses(tier, last + NEXT) == [400]


def test_connect_is_refused(tier: Tier) -> None:
    assert statuses(tier, head(tier, "CONNECT", LIVE) + head(tier, "GET", LIVE, "Connection: close")) == [405, 200]


# --- Where a message ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        pytest.param((LENGTH, CHUNKED), IN_CHUNKS, id="length and chunks"),
        pytest.param((CHUNKED, LENGTH), IN_CHUNKS, id="chunks and length"),
        pytest.param((CHUNKED, LENGTH, *UPGRADE), IN_CHUNKS, id="both, and another protocol"),
        pytest.param(("Transfer-Encoding: chunked, identity",), IN_CHUNKS, id="chunked is not the last"),
        pytest.param(("Transfer-Encoding : chunked",), IN_CHUNKS, id="a space before the colon"),
        pytest.param(("Transfer-Encoding:\r\n chunked",), IN_CHUNKS, id="a line that goes on"),
        pytest.param((f"X: a\r\n {LENGTH}",), BODY, id="a length in a line that goes on"),
        pytest.param((LENGTH, "X: a\r\n b"), BODY, id="obs-fold"),
        pytest.param((LENGTH, "X: a\rb: c"), BODY, id="bare CR"),
        pytest.param((LENGTH, "X: a\nb: c"), BODY, id="bare LF"),
        pytest.param((CHUNKED, CHUNKED), IN_CHUNKS, id="chunks twice"),
        pytest.param((LENGTH, LENGTH), BODY, id="lengths that agree"),
        pytest.param((f"{LENGTH}, {len(BODY)}",), BODY, id="a list of lengths"),
        pytest.param((f"Content-Length: +{len(BODY)}",), BODY, id="a sign"),
        pytest.param((f"Content-Length: {len(BODY):#x}",), BODY, id="hexadecimal"),
        pytest.param((CHUNKED,), IN_CHUNKS.replace(b"\r\n", b"\n"), id="chunks that end with LF"),
        pytest.param((CHUNKED,), b"+" + IN_CHUNKS, id="a chunk's size with a sign"),
        pytest.param((CHUNKED,), b"0x" + IN_CHUNKS, id="a chunk's size with 0x"),
        pytest.param((CHUNKED,), b"1" * 17 + b"\r\n", id="a chunk's size beyond 64 bits"),
    ],
)
def test_ambiguous_message_ends_the_connection(tier: Tier, lines: tuple[str, ...], body: bytes) -> None:
    """One answer, and the end: what follows could be a request that another server takes for a body."""
    assert statuses(tier, head(tier, "POST", V2, *lines) + body + NEXT) == [400]


def test_other_transfer_codings_are_not_implemented(tier: Tier) -> None:
    assert statuses(tier, head(tier, "POST", V2, "Transfer-Encoding: xchunked") + IN_CHUNKS + NEXT) == [501]


def test_head_with_bare_line_feeds_is_refused(tier: Tier) -> None:
    assert statuses(tier, head(tier, "POST", V2, LENGTH).replace(b"\r\n", b"\n") + BODY + NEXT) == [400]


@pytest.mark.parametrize("extension", [b"", b";a", b';a=b;c="d e"', b";" + b"a" * 5000])
def test_chunk_extensions_and_trailers_are_ignored(tier: Tier, extension: bytes) -> None:
    chunks = b"%x%b\r\n%b\r\n0%b\r\nX: a\r\n\r\n" % (len(BODY), extension, BODY, extension)
    with connection(tier) as found:
        for _ in range(2):
            found.sendall(head(tier, "POST", V2, CHUNKED) + chunks)
            assert read(found).status == 200


@pytest.mark.parametrize("lines", [(LENGTH,), (LENGTH, "Connection: keep-alive"), (CHUNKED,)])
def test_http_1_0_gets_one_answer(tier: Tier, lines: tuple[str, ...]) -> None:
    request = head(tier, "POST", V2, *lines).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert statuses(tier, request + (IN_CHUNKS if lines == (CHUNKED,) else BODY) + NEXT) == [200]


def test_other_http_versions_are_refused(tier: Tier) -> None:
    for version in (b"HTTP/1.2", b"HTTP/3.0", b"HTTX/1.1"):
        assert statuses(tier, head(tier, "GET", LIVE).replace(b"HTTP/1.1", version)) == [400]
    assert statuses(tier, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == [400]


@pytest.mark.parametrize("path", [LIVE, READY])
def test_head_is_get_without_the_body(tier: Tier, path: str) -> None:
    with connection(tier) as found:
        found.sendall(head(tier, "HEAD", path))
        answer = read(found, "HEAD")
        whole = exchange(tier, head(tier, "GET", path))
        assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", str(len(whole.body)))
        found.sendall(NEXT)
        assert read(found).status == 404


def test_expect_100_continue_is_answered(tier: Tier) -> None:
    with connection(tier) as found:
        for _ in range(2):
            found.sendall(head(tier, "POST", V2, LENGTH, "Expect: 100-continue"))
            assert found.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            found.sendall(BODY)
            assert read(found).status == 200
        found.sendall(head(tier, "POST", V2, LENGTH, "Expect: 100-continue") + BODY)  # and does not wait
        assert read(found).status == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v2", b"whole head"], ids=["nothing", "half a head", "half a body"])
def test_half_closed_connection_is_closed(tier: Tier, sent: bytes) -> None:
    """A client that is gone looks the same, and would otherwise be worked for."""
    with connection(tier) as found:
        found.sendall(head(tier, "POST", V2, LENGTH) + BODY[:10] if sent == b"whole head" else sent)
        found.shutdown(socket.SHUT_WR)
        assert found.recv(100) == b""


# --- Too much of it ---------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_limited(tier: Tier) -> None:
    infer, live = head(tier, "POST", V2, LENGTH) + BODY, head(tier, "GET", LIVE)
    for request in (infer, live):
        assert statuses(tier, request * 40) == [200] * (ServerLimits().pipelined + 1) + [400]


def test_invalid_pipelined_request_is_refused_in_its_turn(tier: Tier) -> None:
    infer = head(tier, "POST", V2, LENGTH) + BODY
    assert statuses(tier, infer + infer + b"nonsense\r\n\r\n") == [200, 200, 400]
    assert statuses(tier, infer + head(tier, "GET", LIVE, "X: " + "a" * 70_000)) == [200, 431]
    assert statuses(tier, infer + head(tier, "POST", V2, CHUNKED) + b"nonsense") == [200, 400]


def test_idle_connections_are_limited(tier: Tier) -> None:
    raise_descriptor_limit()
    limit = {"agent": connections_within_descriptors(), "gateway": ServerLimits().pending}[tier.name]
    count = min(2 * limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1000)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connection(tier))
        assert exchange(tier, head(tier, "POST", V2, LENGTH) + BODY).status == 200
        assert len(list((process_of(tier) / "fd").iterdir())) < limit + 200


# --- Errors of requests that were not read ----------------------------------------------------------------------------

FILE = "/firstline/v1/models/digits/infer"


@pytest.mark.parametrize(
    ("status", "method", "path", "lines"),
    [
        pytest.param(400, "GET", LIVE, ("Host: again",), id="bad head"),
        pytest.param(400, "POST", V2, (LENGTH, LENGTH), id="bad length"),
        pytest.param(400, "POST", V2, (LENGTH, "Inference-Header-Content-Length: -1"), id="bad length of the JSON"),
        pytest.param(400, "POST", FILE, (LENGTH, "Content-Type: multipart/mixed"), id="refused type of the body"),
        pytest.param(406, "POST", FILE, (LENGTH, "Accept: image/png"), id="refused type of the answer"),
        pytest.param(404, "POST", "/v2/models/absent/infer", (LENGTH,), id="unknown model"),
        pytest.param(404, "GET", "/nowhere", (), id="unknown address"),
        pytest.param(405, "PUT", LIVE, (), id="wrong method"),
    ],
)
def test_every_error_has_an_id_of_the_log(
    tier: Tier, status: int, method: str, path: str, lines: tuple[str, ...]
) -> None:
    answer = exchange(tier, head(tier, method, path, *lines) + BODY)
    assert answer.status == status and answer.refused()
    request_id = json.loads(answer.body)["request_id"]
    wait_until(lambda: request_id in tier.log.read_text())
