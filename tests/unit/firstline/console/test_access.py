"""Access to the console: host, origin, password, and the rate limit of passwords."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from firstline.console.access import IN_ALL, PER_ADDRESS, Guard, PasswordAttempts, refusal

PASSWORD = "correct horse: bättery"


def basic(password: str, scheme: str = "Basic") -> dict[str, str]:
    return {"authorization": f"{scheme} {base64.b64encode(f'any:{password}'.encode()).decode()}"}


def status(headers: dict[str, str], password: str = "") -> int:
    found = refusal(Headers(headers), password)
    assert found is None or found.sentence.endswith(".")
    return 200 if found is None else found.status


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8090", 200),
        ("localhost:8090", 200),
        ("[::1]:8090", 200),
        ("LocalHost", 200),
        ("evil.example:8090", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_a_rebound_name_is_refused(host: str, expected: int) -> None:
    assert status({"host": host}) == expected
    # With a password the name does not matter: an attacker who rebinds a name does not know it.
    assert status({"host": host} | basic(PASSWORD), PASSWORD) == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8090", 200),
        ("http://127.0.0.1:9999", 403),
        ("http://localhost:8090", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
def test_requests_of_other_origins_are_refused(origin: str, expected: int) -> None:
    assert status({"host": "127.0.0.1:8090", "origin": origin}) == expected
    assert status({"host": "127.0.0.1:8090", "origin": origin} | basic(PASSWORD), PASSWORD) == expected


def test_the_origin_matches_behind_a_proxy_that_terminates_tls() -> None:
    credentials = {"host": "console.example", "origin": "https://console.example"} | basic(PASSWORD)
    assert status(credentials, PASSWORD) == 200
    assert status(credentials | {"origin": "https://console.example:8443"}, PASSWORD) == 403


@pytest.mark.parametrize(
    "credentials",
    [
        {},
        basic("correct horse"),
        basic(""),
        basic(PASSWORD, "Bearer"),
        {"authorization": "Basic ???"},
        basic(f" {PASSWORD}"),
    ],
)
def test_requests_without_the_password_are_refused(credentials: dict[str, str]) -> None:
    assert status({"host": "127.0.0.1"} | credentials, PASSWORD) == 401


async def _greet(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


ROUTES = [Route("/", lambda _: PlainTextResponse("inside")), WebSocketRoute("/live", _greet)]
GUARD = Guard(Starlette(routes=ROUTES), PASSWORD)


async def test_replies_have_the_password_challenge_and_the_security_headers() -> None:
    transport = httpx.ASGITransport(GUARD)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
        refused, answered = await client.get("/"), await client.get("/", headers=basic(PASSWORD))
    assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic ")
    assert answered.text == "inside" and answered.headers["cache-control"] == "no-store"
    for reply in (refused, answered):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "http" not in policy


@pytest.mark.parametrize(
    ("credentials", "first"),
    [
        (basic(PASSWORD) | {"origin": "http://127.0.0.1:8090"}, "websocket.accept"),
        (basic(PASSWORD) | {"origin": "https://evil.example"}, "websocket.close"),
        ({}, "websocket.close"),
    ],
)
async def test_the_live_channel_is_protected_like_the_pages(credentials: dict[str, str], first: str) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in ({"host": "127.0.0.1:8090"} | credentials).items()]
    scope = {"type": "websocket", "path": "/live", "query_string": b"", "headers": headers, "subprotocols": []}
    await GUARD(scope, receive, send)
    assert sent[0]["type"] == first


@pytest.mark.parametrize("password", ["", PASSWORD])
async def test_the_health_check_needs_no_password_and_reveals_nothing(password: str) -> None:
    guard = Guard(Starlette(routes=ROUTES), password)
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url="https://10.1.2.3:8090") as client:
        for _ in range(200):  # health checks are no attempts, even with a wrong password
            reply = await client.get("/health", headers=basic("wrong"))
        assert (reply.status_code, reply.text) == (200, "live\n")
        assert (await client.head("/health")).status_code == 200
        assert (await client.post("/health")).status_code in (401, 421)
        assert (await client.get("/health/")).status_code in (401, 421)
        assert (await client.get("/")).status_code in (401, 421)


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


def test_password_attempts_per_address_are_limited(time: Time) -> None:
    attempts = PasswordAttempts(time)
    for _ in range(PER_ADDRESS):
        assert attempts.wait_s("a") == 0
        attempts.wrong("a")
    time.now_s += 20
    assert attempts.wait_s("a") == 40 and attempts.wait_s("b") == 0
    time.now_s += 40
    assert attempts.wait_s("a") == 0


def test_password_attempts_of_all_addresses_are_limited_except_for_known_ones(time: Time) -> None:
    attempts = PasswordAttempts(time)
    attempts.right("owner")
    tried = 0
    while attempts.wait_s(f"guesser {tried}") == 0:
        attempts.wrong(f"guesser {tried}")
        tried += 1
    assert tried == IN_ALL
    assert attempts.wait_s("owner") == 0 and attempts.wait_s("stranger") == 60
    time.now_s += 60
    assert attempts.wait_s("stranger") == 0


async def test_too_many_attempts_are_refused_until_the_minute_is_over() -> None:
    async def page(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("here")

    guard = Guard(Starlette(routes=[Route("/", page)]), PASSWORD)
    from_1, from_2 = (httpx.ASGITransport(guard, client=(f"192.0.2.{number}", 1)) for number in (1, 2))
    async with (
        httpx.AsyncClient(transport=from_1, base_url="http://c") as guesser,
        httpx.AsyncClient(transport=from_2, base_url="http://c") as owner,
    ):
        for _ in range(2 * PER_ADDRESS):  # a browser's first request has no password, and does not count as an attempt
            assert (await guesser.get("/")).status_code == 401
        for _ in range(PER_ADDRESS):
            assert (await guesser.get("/", auth=("any", "wrong"))).status_code == 401
        refused = await guesser.get("/", auth=("any", PASSWORD))
        assert refused.status_code == 429 and 0 < int(refused.headers["retry-after"]) <= 60
        assert (await owner.get("/", auth=("any", PASSWORD))).text == "here"
