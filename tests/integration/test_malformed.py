"""What no well-behaved client sends: both tiers refuse it in a sentence, and go on."""

import contextlib
import gzip
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from support.images import grey, raw_png
from support.line import Line, Tier, line
from support.raw_http import Answer, connection, exchange, head, process_of, read

from firstline.client import calls

BODY_LIMIT_BYTES = 1_000_000
MODEL = "/v2/models/digits"
V2 = f"{MODEL}/infer"
SHORT = "/firstline/v1/models/digits/infer"

_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[(debug|info|warning)")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    limit = str(BODY_LIMIT_BYTES)
    environ = {"FIRSTLINE_EDGE_API__BODY_LIMIT_BYTES": limit, "FIRSTLINE_GATEWAY_API__BODY_LIMIT_BYTES": limit}
    with line(tmp_path_factory.mktemp("line"), environ=environ) as found:
        yield found
        for tier in found.tiers.values():
            logged = tier.log.read_text()
            assert "Traceback" not in logged, logged
            # No line of level error, and none that a caller wrote by way of a newline in a name.
            assert [received for received in logged.splitlines() if not _LOG_LINE.match(received)] == []


@pytest.fixture(params=["agent", "gateway"])
def tier(running: Line, request: pytest.FixtureRequest) -> Iterator[Tier]:
    found = running.tiers[request.param]
    yield found
    alive = asked(found, "POST", SHORT, grey())
    assert alive.status == 200, alive.body


def asked(tier: Tier, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """One request with a right Content-Length, whatever else is wrong with it."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    request = head(tier, method, path, f"Content-Length: {len(body)}", *lines) + body
    return exchange(tier, request)


# --- Not HTTP, or not all of it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="tls"),
        pytest.param(b"GET\r\n\r\n", id="no target"),
        pytest.param(b"GET /v2 HTTP/1.1\r\nno colon\r\n\r\n", id="no colon"),
        pytest.param(b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", id="NUL in a header"),
        pytest.param(b"\x00" * 1000 + b"\r\n\r\n", id="zeros"),
    ],
)
def test_other_protocols_are_refused(tier: Tier, request_bytes: bytes) -> None:
    answer = exchange(tier, request_bytes)
    assert answer.refused() == "invalid_request"
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("Content-Length: abc",), id="not a number"),
        pytest.param(("Content-Length: -5",), id="negative"),
        pytest.param(("Content-Length: 9" + "9" * 40,), id="beyond 64 bits"),
        pytest.param(("Content-Length: 5", "Content-Length: 6"), id="two"),
    ],
)
def test_invalid_content_lengths_are_refused(tier: Tier, lines: tuple[str, ...]) -> None:
    answer = exchange(tier, head(tier, "POST", V2, *lines) + b"12345")
    assert answer.status == 400
    assert answer.refused() == "invalid_request"


@pytest.mark.parametrize("chunks", [b"zz\r\nhello\r\n0\r\n\r\n", b"5\r\nhello-and-more\r\n0\r\n\r\n", b"-1\r\n\r\n"])
def test_invalid_chunks_are_refused(tier: Tier, chunks: bytes) -> None:
    with connection(tier) as found:
        found.sendall(head(tier, "POST", V2, "Transfer-Encoding: chunked") + chunks)
        assert read(found).refused() == "invalid_request"


@pytest.mark.parametrize("sent", [b"", b"{", b'{"inputs"'])
@pytest.mark.parametrize("path", [V2, SHORT])
def test_client_may_disconnect_within_a_body(tier: Tier, path: str, sent: bytes) -> None:
    with connection(tier) as found:
        found.sendall(head(tier, "POST", path, "Content-Length: 500") + sent)


def test_client_may_disconnect_before_the_answer(tier: Tier) -> None:
    call = calls.infer("digits", {"image": [grey()] * 64}, {"route": "cloud"})
    lines = [f"{name}: {value}" for name, value in (call.headers or {}).items()]
    for _ in range(5):
        with connection(tier) as found:
            found.sendall(head(tier, "POST", V2, f"Content-Length: {len(call.content)}", *lines) + call.content)


@pytest.mark.parametrize(
    ("line", "count"), [("X: " + "a" * 60_000, 20), ("X: " + "a" * 2_000_000, 1), ("X-{}: a", 20_000)]
)
def test_too_many_headers_are_refused(tier: Tier, line: str, count: int) -> None:
    flood = head(tier, "POST", V2, *(line.format(number) for number in range(count)), "Content-Length: 2") + b"{}"
    with connection(tier) as found:
        try:
            found.sendall(flood)
        except OSError:
            return  # it was cut off while it flooded
        try:
            answer = read(found)
        except OSError:
            return
    assert answer.status in (400, 431)
    assert "65536 bytes" in answer.body.decode()
    answer.refused()


def test_endless_head_is_cut_off(tier: Tier) -> None:
    sent_bytes = 0
    with connection(tier) as found, pytest.raises(OSError):
        found.sendall(head(tier, "POST", V2)[:-2] + b"X: ")
        while sent_bytes < 50_000_000:
            sent_bytes += found.send(b"a" * 65_536)
    assert sent_bytes < 50_000_000


def kernel_bytes() -> int:
    """What the sockets of a connection may hold by themselves of one direction, at both ends."""
    limits = (Path(f"/proc/sys/net/ipv4/tcp_{side}").read_text() for side in ("rmem", "wmem"))
    return sum(int(limit.split()[2]) for limit in limits)


# Of unread requests and of requests with unread answers: an answer is at least as long as its request.
FLOOD_BYTES = 20_000_000 + 2 * kernel_bytes()


def flooded(tier: Tier, opening: bytes, filler: bytes, most_bytes: int = FLOOD_BYTES) -> int:
    """Sends filler without reading until the tier cuts the connection, or takes no more; returns the bytes sent."""
    sent_bytes = 0
    with connection(tier) as found, contextlib.suppress(OSError):
        found.settimeout(2)
        found.sendall(opening)
        while sent_bytes < most_bytes:
            sent_bytes += found.send(filler)
    return sent_bytes


def memory_bytes(tier: Tier) -> int:
    """What the tier's process holds in RAM."""
    status = (process_of(tier) / "status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


CHUNKED = "Transfer-Encoding: chunked"
FLOODS: dict[str, Callable[[Tier], tuple[bytes, bytes]]] = {
    "requests": lambda tier: (b"", b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1500),
    "requests while one is answered": lambda tier: (
        head(tier, "POST", V2, "Content-Length: 500"),
        b"{" + b" " * 499 + b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1500,
    ),
    "a trailer's value": lambda tier: (head(tier, "POST", V2, CHUNKED) + b"0\r\nX: ", b"a" * 65_536),
    "trailers": lambda tier: (head(tier, "POST", V2, CHUNKED) + b"0\r\n", b"X: a\r\n" * 10_000),
    "a chunk's extension": lambda tier: (head(tier, "POST", V2, CHUNKED) + b"1;", b"a" * 65_536),
    "a head": lambda tier: (head(tier, "POST", V2)[:-2] + b"X: ", b"a" * 65_536),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_use_no_memory(tier: Tier, name: str) -> None:
    before_bytes = memory_bytes(tier)
    sent_bytes = flooded(tier, *FLOODS[name](tier))
    assert sent_bytes < FLOOD_BYTES
    assert memory_bytes(tier) - before_bytes < 50_000_000


def test_long_head_is_read_together_with_its_body(tier: Tier) -> None:
    call = calls.infer("digits", {"image": grey()}, {})
    lines = [f"{name}: {value}" for name, value in (call.headers or {}).items()]
    lines += [f"Content-Length: {len(call.content)}", *(f"X-{number}: {'a' * 1000}" for number in range(50))]
    assert exchange(tier, head(tier, "POST", V2, *lines) + call.content).status == 200


# --- Addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/", 404),
        ("GET", "/v3/health/live", 404),
        ("GET", V2, 405),
        ("PUT", V2, 405),
        ("DELETE", MODEL, 405),
        ("OPTIONS", V2, 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/openapiXjson", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/digits/versions/99", 404),
        ("GET", "/v2/models/digits/versions/-1", 404),
        ("GET", "/v2/models/digits/versions/%D9%A1/ready", 404),
        ("GET", "/v2/models/a%2Fb", 404),
        ("GET", "/v2/models/..%2F..%2Fetc%2Fpasswd", 404),
        ("GET", "/v2/models/%00", 404),
        ("GET", "/v2/models/a%0A2026-01-01T00:00:00Z%20forged", 404),
        ("GET", "/v2/models/%FF%FE", 404),
        ("GET", "/v2/models/" + "%F0%9F%98%80" * 10, 404),
        ("GET", "/v2/models/" + "a" * 5000, 404),
        ("GET", "/v2/models/digits/versions/" + "9" * 5000, 404),
        ("GET", "/v2/models/%", 404),
    ],
)
def test_unknown_addresses_are_refused(tier: Tier, method: str, path: str, status: int) -> None:
    answer = asked(tier, method, path)
    assert answer.status == status
    answer.refused()


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", V2, "POST"), ("DELETE", MODEL, "GET"), ("POST", "/v2/health/live", "GET")]
)
def test_refused_method_names_the_allowed_ones(tier: Tier, method: str, path: str, allowed: str) -> None:
    answer = asked(tier, method, path)
    assert answer.status == 405
    assert allowed in answer.headers["allow"].split(", ")


@pytest.mark.parametrize("name", ["%FF", "a%0Ab", "x" * 5000, "%00", "%1B[31mred"])
def test_unknown_models_are_404(tier: Tier, name: str) -> None:
    body = calls.infer("m", {"image": np.zeros((1, 8, 8, 1), np.uint8)}, {})
    headers = {"Inference_Header_Content_Length": (body.headers or {})["Inference-Header-Content-Length"]}
    for path in (f"/v2/models/{name}/infer", f"/v2/models/{name}/versions/{name}/infer"):
        answer = asked(tier, "POST", path, body.content, **headers)
        assert (answer.status, answer.refused()) == (404, "unknown_model")
    answer = asked(tier, "POST", f"/firstline/v1/models/{name}/infer", grey())
    assert (answer.status, answer.refused()) == (404, "unknown_model")


def test_long_address_is_refused(tier: Tier) -> None:
    answer = asked(tier, "GET", "/v2/models/" + "a" * 500_000)
    assert answer.status in (400, 431)
    answer.refused()


@pytest.mark.parametrize(
    "query",
    [
        "route=moon",
        "privacy=",
        "timeout=-1",
        "timeout=1.5",
        "timeout=" + "9" * 400,
        "timeout=%FF",
        "wait=%00",
        "=&&=",
        "a" * 9000,
    ],
)
def test_unknown_query_parameters_are_refused(tier: Tier, query: str) -> None:
    answer = asked(tier, "POST", f"{SHORT}?{query}", grey())
    assert (answer.status, answer.refused()) == (400, "invalid_request")


@pytest.mark.parametrize("name", ["%FF", "%00", "x" * 5000, "01890a5d-ac96-774b-bcce-b302099a8057", "..%2F.."])
def test_unknown_answers_are_404(tier: Tier, name: str) -> None:
    for form in ("short", "v2"):
        answer = asked(tier, "GET", f"/firstline/v1/answers/{name}?form={form}")
        assert answer.status == 404
        answer.refused()


def test_json_body_needs_no_content_type(tier: Tier) -> None:
    answer = asked(tier, "POST", V2, b'{"inputs": []}')
    assert (answer.status, answer.refused()) == (400, "invalid_tensor")


# --- Bodies over the limit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [V2, SHORT])
def test_declared_length_over_the_limit_is_refused_unread(tier: Tier, path: str) -> None:
    for size_bytes in (BODY_LIMIT_BYTES + 1, 2**63 - 1):
        answer = exchange(tier, head(tier, "POST", path, f"Content-Length: {size_bytes}"))
        assert (answer.status, answer.refused()) == (413, "payload_too_large")


@pytest.mark.parametrize("path", [V2, SHORT])
def test_chunked_body_over_the_limit_is_refused(tier: Tier, path: str) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65_536

    answer = httpx.post(tier.url + path, content=chunks(), headers=tier.headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("path", [V2, SHORT])
@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compression_bombs_are_refused(tier: Tier, path: str, encoding: str, compress: Any) -> None:
    bomb = compress(bytes(20 * BODY_LIMIT_BYTES))
    assert len(bomb) < BODY_LIMIT_BYTES
    answer = asked(tier, "POST", path, bomb, Content_Encoding=encoding)
    assert (answer.status, answer.refused()) == (413, "payload_too_large")


ENCODINGS = {
    "unknown": ("br", b"{}"),
    "two": ("gzip, gzip", gzip.compress(gzip.compress(b"{}"))),
    "empty": ("gzip", b""),
    "garbage": ("gzip", b"{}"),
    "cut short": ("gzip", gzip.compress(b"{}" * 1000)[:-5]),
    "more after it": ("gzip", gzip.compress(b"{}") + b"more"),
    "wrong checksum": ("gzip", gzip.compress(b"{}")[:-8] + bytes(8)),
    "raw deflate": ("deflate", zlib.compress(b"{}" * 1000)[2:-4]),
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("path", [V2, SHORT])
def test_invalid_content_encodings_are_refused(tier: Tier, path: str, name: str) -> None:
    encoding, body = ENCODINGS[name]
    answer = asked(tier, "POST", path, body, Content_Encoding=encoding)
    assert (answer.status, answer.refused()) == (400, "invalid_tensor")


# --- Bodies that do not say what V2 says that they must ---------------------------------------------------------------
# `e2e/test_wrong_inputs.py` has the common ones, `unit/core/protocol/test_oip.py` and `test_http.py` those that the
# decoder of both tiers refuses wherever it runs.

PIXELS = {"name": "image", "datatype": "UINT8", "shape": [1, 8, 8, 1], "data": [0] * 64}


def with_input(**changes: object) -> bytes:
    return orjson.dumps({"inputs": [PIXELS | changes]})


def deep(depth: int) -> bytes:
    """Lists within lists."""
    return b"[" * depth + b"]" * depth


def with_head(**changes: object) -> bytes:
    return orjson.dumps({"inputs": [PIXELS], **changes})


JSON_BODIES: dict[str, bytes] = {
    "cut short": with_input()[:-3],
    "spaces": b" " * 100,
    "null": b"null",
    "inputs null": b'{"inputs":null}',
    "inputs of numbers": b'{"inputs":[1]}',
    "deep object": b'{"a":' * 100_000,
    "deep shape": b'{"inputs":[{"name":"image","datatype":"UINT8","shape":' + deep(500) + b"}]}",
    "deep data": b'{"inputs":[{"name":"image","datatype":"UINT8","shape":[1],"data":' + deep(900) + b"}]}",
    "Infinity": with_input().replace(b"[0,", b"[-Infinity,"),
    "over a double": with_input().replace(b"[0,", b"[1e999,"),
    "over a byte": with_input(data=[256] + [0] * 63),
    "below a byte": with_input(data=[-1] + [0] * 63),
    "over 64 bits": with_input().replace(b"[0,", b"[" + b"9" * 5000 + b","),
    "fraction": with_input(data=[0.5] + [0] * 63),
    "text among numbers": with_input(data=["0"] + [0] * 63),
    "too many": with_input(data=[0] * 65),
    "ragged": with_input(data=[[0] * 32, [0] * 31]),
    "data an object": with_input(data={}),
    "shape huge": with_input(shape=[2**62, 8, 8, 1]),
    "shape beyond 64 bits": with_input().replace(b"[1,8,8,1]", b"[18446744073709551616,8,8,1]"),
    "shape a number": with_input(shape=64),
    "shape of many axes": with_input(shape=[1] * 1000, data=[0]),
    "no height": with_input(shape=[1, 0, 8, 1], data=[]),
    "seven channels": with_input(shape=[1, 1, 1, 7], data=[0] * 7),
    "two axes": with_input(shape=[1, 64]),
    "no datatype": with_input(datatype=None),
    "datatype a deep list": b'{"inputs":[{"name":"image","datatype":' + deep(1000) + b"}]}",
    "name of surrogates": with_input().replace(b'"image"', b'"\\ud800"'),
    "name NUL": with_input(name="\0"),
    "name not UTF-8": with_input().replace(b"image", b"\xff\xfe"),
    "name long": with_input(name="n" * 100_000),
    "many": orjson.dumps({"inputs": [PIXELS | {"name": str(number)} for number in range(1000)]}),
    "route a deep list": with_head(parameters={"route": 0}).replace(b":0}", b":" + deep(1000) + b"}"),
    "route a large list": with_head(parameters={"route": ["edge"] * 100_000}),
    "route large": with_head(parameters={"route": "edge" * 100_000}),
    "timeout a deep list": with_head(parameters={"timeout": 0}).replace(b":0}", b":" + deep(1000) + b"}"),
    "timeout huge": with_head(parameters={"timeout": 1e300}),
    "id long": with_head(id="i" * 10_000),
    "outputs a name": with_head(outputs="probabilities"),
    "BYTES of text": with_input(datatype="BYTES", shape=[1], data=["no image"]),
    "BYTES empty": with_input(datatype="BYTES", shape=[1], data=[""]),
    "BYTES of numbers": with_input(datatype="BYTES", shape=[1], data=[5]),
}


# The fault of these is not in a tensor.
WISHES = {name for name in JSON_BODIES if name.split()[0] in ("route", "timeout")}


@pytest.mark.parametrize("name", JSON_BODIES)
def test_invalid_json_bodies_are_refused(tier: Tier, name: str) -> None:
    answer = asked(tier, "POST", V2, JSON_BODIES[name])
    codes = ("invalid_request",) if name in WISHES else ("invalid_tensor", "payload_too_large")
    assert answer.refused() in codes


def binary(tail: bytes, *, size: object = None, shape: object = (1,), datatype: str = "BYTES") -> tuple[bytes, str]:
    """A body with a binary input, and the right length of its JSON."""
    parameters = {"binary_data_size": len(tail) if size is None else size}
    entry = {"name": "image", "datatype": datatype, "shape": shape, "parameters": parameters}
    text = orjson.dumps({"inputs": [entry]})
    return text + tail, str(len(text))


def element(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


BOMB_OF_PIXELS = raw_png(30_000, 30_000, data=bytes(1_000_000))
GOOD, GOOD_LENGTH = binary(element(grey()))
BINARY_BODIES: dict[str, tuple[bytes, str]] = {
    "length signed": (GOOD, f"+{GOOD_LENGTH}"),
    "length hexadecimal": (GOOD, "0x10"),
    "length of all": (GOOD, str(len(GOOD))),
    "length short": (GOOD, str(int(GOOD_LENGTH) - 1)),
    "length twice": (GOOD, f"{GOOD_LENGTH}, {GOOD_LENGTH}"),
    "cut short": (GOOD[:-1], GOOD_LENGTH),
    "only the JSON": (GOOD[: int(GOOD_LENGTH)], GOOD_LENGTH),
    "size short": binary(element(grey()), size=len(grey())),
    "size zero": binary(b"", size=0),
    "size negative": binary(element(grey()), size=-1),
    "size text": binary(element(grey()), size="5"),
    "size true": binary(b"\0", size=True),
    "size huge": binary(element(grey()), size=2**63),
    "element over the end": binary(struct.pack("<I", 2**32 - 1) + grey()),
    "element without a length": binary(b"\0\0"),
    "fewer elements": binary(element(grey()), shape=[2]),
    "more elements": binary(element(grey()) * 2, shape=[1]),
    "elements without end": binary(bytes(4 * 200_000), shape=[200_000]),
    "one bad row": binary(element(grey()) + element(b"no image"), shape=[2]),
    "an empty row": binary(element(b""), shape=[1]),
    "half a picture": binary(element(grey()[:30])),
    "a bomb of pixels": binary(element(BOMB_OF_PIXELS)),
    "two axes": binary(element(grey()), shape=[1, 1]),
    "text in place of a picture": binary(element(b"<svg xmlns='http://www.w3.org/2000/svg'/>")),
    "NaN": binary(np.full(64, np.nan, np.float32).tobytes(), shape=[1, 8, 8, 1], datatype="FP32"),
    "half a number": binary(bytes(63), shape=[1, 8, 8, 1], datatype="UINT8"),
    "rows over the limit": binary(bytes(5000 * 64), shape=[5000, 8, 8, 1], datatype="UINT8"),
    "a boolean of 7": binary(b"\x07", shape=[1], datatype="BOOL"),
}


@pytest.mark.parametrize("name", BINARY_BODIES)
def test_invalid_binary_bodies_are_refused(tier: Tier, name: str) -> None:
    body, length = BINARY_BODIES[name]
    answer = asked(tier, "POST", V2, body, Inference_Header_Content_Length=length)
    assert answer.refused() in ("invalid_tensor", "payload_too_large")


FILES = {
    "half a picture": grey()[:30],
    "bomb of pixels": BOMB_OF_PIXELS,
    "zeros": bytes(5000),
    "form": b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n',
    "form that is cut": b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n',
}


@pytest.mark.parametrize("name", FILES)
def test_invalid_files_are_refused(tier: Tier, name: str) -> None:
    content_type = "multipart/form-data; boundary=b" if name.startswith("form") else "image/png"
    answer = asked(tier, "POST", SHORT, FILES[name], Content_Type=content_type)
    assert answer.refused() in ("invalid_tensor", "payload_too_large")


# --- Strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic eDp5", "Bearer \xff\xfe", "Bearer " + "a" * 10_000, "Bearer a b c"]
)
def test_invalid_tokens_are_refused(running: Line, value: str) -> None:
    stranger = Tier("gateway", running.gateway.url, "", running.gateway.log)
    lines = (f"Authorization: {value}", "Content-Length: 2")
    answer = exchange(stranger, head(stranger, "POST", V2, *lines) + b"{}")
    assert (answer.status, answer.refused()) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_only_loopback_hosts_are_served(running: Line) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::2]", "\xff", "a" * 10_000):
        answer = exchange(running.agent, f"GET /v2 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
        assert answer.status == 400, host
        answer.refused()
    for host in ("localhost:1", "[::1]:1"):
        assert exchange(running.agent, f"GET /v2 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).status == 200


# --- One connection, several requests ---------------------------------------------------------------------------------


def chunked(size_bytes: int) -> bytes:
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    return chunk * (size_bytes // 65_536 + 1) + b"0\r\n\r\n"


def test_a_refused_body_does_not_end_the_connection(tier: Tier) -> None:
    too_long = head(tier, "POST", V2, f"Content-Length: {BODY_LIMIT_BYTES + 1}") + bytes(BODY_LIMIT_BYTES + 1)
    too_many_chunks = head(tier, "POST", V2, "Transfer-Encoding: chunked") + chunked(2 * BODY_LIMIT_BYTES)
    for refused in (too_long, too_many_chunks):
        with connection(tier) as found:
            found.sendall(refused)
            assert read(found).status == 413
            found.sendall(head(tier, "POST", SHORT, f"Content-Length: {len(grey())}") + grey())
            assert read(found).status == 200
