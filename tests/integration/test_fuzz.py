"""Requests that were valid once: whatever is changed in them, both tiers answer 200 or refuse, and never fail."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.images import noise
from support.line import Tier

from firstline.client import calls
from firstline_core.protocol.http import HEADER_LENGTH

V2 = "/v2/models/digits/infer"
SHORT = "/firstline/v1/models/digits/infer"

# Module-wide servers are what is wanted here: no example may harm those after it.
bounded = settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def http(tier: Tier) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tier.url, headers=tier.headers) as found:
        yield found


BINARY = calls.infer("digits", {"image": [noise()] * 2}, {"wait": "final"}, outputs=["probabilities"])
BINARY_LENGTH = int((BINARY.headers or {})[HEADER_LENGTH])
JSON: dict[str, Any] = {
    "id": "mine",
    "parameters": {"route": "auto", "privacy": "any", "wait": "final", "timeout": 5_000_000},
    "inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 8, 8, 1], "data": list(range(64))}],
    "outputs": [{"name": "probabilities", "parameters": {"binary_data": False}}],
}


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes with some of them flipped, cut out, put in or repeated."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(found)))
        end = min(len(found), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["flip", "cut", "insert", "repeat", "end"])):
            case "flip" if start < len(found):
                found[start] ^= draw(st.integers(1, 255))
            case "cut":
                del found[start:end]
            case "insert":
                found[start:start] = draw(st.binary(max_size=20))
            case "repeat":
                found[start:start] = found[start:end] * draw(st.integers(1, 3))
            case "end":
                del found[start:]
    return bytes(found)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["BYTES", "FP32", "edge", "cloud", "local_only", "first", "image", "probabilities"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "data", "datatype", "parameters", "binary_data_size"]) | st.text(),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside, but only the first two of the numbers."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


PLACES = list(places(JSON))


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    """The JSON request with other values in some places, or none."""
    found = deepcopy(JSON)
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True)):
        holder: Any = found
        try:
            for key in path[:-1]:
                holder = holder[key]
            if isinstance(holder, dict) != isinstance(path[-1], str):
                continue
            if draw(st.booleans()):
                holder[path[-1]] = draw(VALUES)
            else:
                del holder[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    return orjson.dumps(found)


def check(answer: httpx.Response) -> None:
    if answer.status_code == 200:
        return
    document = answer.json()
    # A request may well come to ask for an answer within a microsecond.
    assert 400 <= answer.status_code < 500 or document["code"] == "deadline_exceeded", answer.text
    assert document["error"].endswith((".", "?"))
    assert len(document["error"]) < 1000


@bounded
@given(
    body=damaged(BINARY.content), length=st.just(BINARY_LENGTH) | st.integers(0, len(BINARY.content) + 10) | st.none()
)
@example(body=BINARY.content, length=BINARY_LENGTH)
def test_a_binary_request(http: httpx.Client, body: bytes, length: int | None) -> None:
    check(http.post(V2, content=body, headers={} if length is None else {HEADER_LENGTH: str(length)}))


@bounded
@given(body=damaged(orjson.dumps(JSON)) | altered())
@example(body=orjson.dumps(JSON))
def test_a_json_request(http: httpx.Client, body: bytes) -> None:
    check(http.post(V2, content=body))


@bounded
@given(
    body=damaged(noise()), query=st.dictionaries(st.sampled_from(["route", "privacy", "wait", "timeout"]), st.text())
)
@example(body=noise(), query={})
def test_a_file(http: httpx.Client, body: bytes, query: dict[str, str]) -> None:
    check(http.post(SHORT, content=body, params=query))


def test_unchanged_requests_are_valid(http: httpx.Client) -> None:
    assert http.post(V2, content=BINARY.content, headers=dict(BINARY.headers or {})).status_code == 200
    assert http.post(V2, content=orjson.dumps(JSON)).status_code == 200
    assert http.post(SHORT, content=noise()).status_code == 200
