"""Who is let in, by the headers of a request; and that nobody else's page can use the console."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from firstline.console.access import Guard, refusal

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
def test_a_name_that_was_made_to_point_here_is_not_answered(host: str, expected: int) -> None:
    assert status({"host": host}) == expected
    # With a password the name does not matter: whoever rebinds a name does not know it.
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
def test_only_the_console_s_own_pages_call_it(origin: str, expected: int) -> None:
    assert status({"host": "127.0.0.1:8090", "origin": origin}) == expected
    assert status({"host": "127.0.0.1:8090", "origin": origin} | basic(PASSWORD), PASSWORD) == expected


def test_behind_a_proxy_that_ends_tls_the_origin_is_the_name_s() -> None:
    shown = {"host": "console.example", "origin": "https://console.example"} | basic(PASSWORD)
    assert status(shown, PASSWORD) == 200
    assert status(shown | {"origin": "https://console.example:8443"}, PASSWORD) == 403


@pytest.mark.parametrize(
    "shown",
    [
        {},
        basic("correct horse"),
        basic(""),
        basic(PASSWORD, "Bearer"),
        {"authorization": "Basic ???"},
        basic(f" {PASSWORD}"),
    ],
)
def test_without_the_password_nothing_is_answered(shown: dict[str, str]) -> None:
    assert status({"host": "127.0.0.1"} | shown, PASSWORD) == 401


async def _greet(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


ROUTES = [Route("/", lambda _: PlainTextResponse("inside")), WebSocketRoute("/live", _greet)]
GUARD = Guard(Starlette(routes=ROUTES), PASSWORD)


async def test_browsers_are_asked_for_the_password_and_told_to_load_from_nowhere_else() -> None:
    transport = httpx.ASGITransport(GUARD)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
        refused, answered = await client.get("/"), await client.get("/", headers=basic(PASSWORD))
    assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic ")
    assert answered.text == "inside" and answered.headers["cache-control"] == "no-store"
    for reply in (refused, answered):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "http" not in policy


@pytest.mark.parametrize(
    ("shown", "first"),
    [
        (basic(PASSWORD) | {"origin": "http://127.0.0.1:8090"}, "websocket.accept"),
        (basic(PASSWORD) | {"origin": "https://evil.example"}, "websocket.close"),
        ({}, "websocket.close"),
    ],
)
async def test_the_live_channel_is_guarded_as_the_pages_are(shown: dict[str, str], first: str) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in ({"host": "127.0.0.1:8090"} | shown).items()]
    scope = {"type": "websocket", "path": "/live", "query_string": b"", "headers": headers, "subprotocols": []}
    await GUARD(scope, receive, send)
    assert sent[0]["type"] == first


@pytest.mark.parametrize("password", ["", PASSWORD])
async def test_who_watches_the_process_needs_no_password_and_learns_nothing(password: str) -> None:
    guard = Guard(Starlette(routes=ROUTES), password)
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url="https://10.1.2.3:8090") as client:
        for _ in range(200):  # a probe is no attempt, and its own wrong password neither
            reply = await client.get("/health", headers=basic("wrong"))
        assert (reply.status_code, reply.text) == (200, "live\n")
        assert (await client.head("/health")).status_code == 200
        assert (await client.post("/health")).status_code in (401, 421)
        assert (await client.get("/health/")).status_code in (401, 421)
        assert (await client.get("/")).status_code in (401, 421)
