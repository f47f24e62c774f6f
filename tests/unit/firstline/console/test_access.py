"""Access to the console: host, origin, session, and the rate limit of passwords."""

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from firstline.console.access import PERSON, Guard, refusal
from firstline.console.attempts import IN_ALL, PER_ADDRESS, Attempts
from firstline.console.sessions import COOKIE, Sessions
from firstline_core.fleet.persons import Person, Role

ANNA = Person("anna", Role.OPERATOR)


def status(headers: dict[str, str], *, local_only: bool = True) -> int:
    found = refusal(Headers(headers), local_only=local_only)
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
    # With a sign-in the name does not matter: an attacker who rebinds a name has no session.
    assert status({"host": host}, local_only=False) == 200


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
    for local_only in (True, False):
        assert status({"host": "127.0.0.1:8090", "origin": origin}, local_only=local_only) == expected


def test_the_origin_matches_behind_a_proxy_that_terminates_tls() -> None:
    headers = {"host": "console.example", "origin": "https://console.example"}
    assert status(headers, local_only=False) == 200
    assert status(headers | {"origin": "https://console.example:8443"}, local_only=False) == 403


async def _greet(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


def _inside(request: Request) -> PlainTextResponse:
    person: Person | None = request.scope[PERSON]
    return PlainTextResponse(person.name if person is not None else "inside")


SESSIONS = Sessions()
TOKEN = SESSIONS.begin(ANNA)
ROUTES = [Route("/", _inside), WebSocketRoute("/live", _greet)]
FORM = Starlette(routes=[Route("/sign-in", lambda _: PlainTextResponse("form"))])
GUARD = Guard(Starlette(routes=ROUTES), FORM, SESSIONS)


async def test_pages_need_a_session_and_replies_have_the_security_headers() -> None:
    transport = httpx.ASGITransport(GUARD)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
        refused, form = await client.get("/"), await client.get("/sign-in")
        sent_on = await client.get("/", headers={"accept": "text/html"})
        forged = await client.get("/", headers={"cookie": f"{COOKIE}=guess"})
        answered = await client.get("/", headers={"cookie": f"{COOKIE}={TOKEN}"})
    assert (refused.status_code, forged.status_code, form.text) == (401, 401, "form")
    assert sent_on.status_code == 303 and sent_on.headers["location"] == "/sign-in"
    assert answered.text == "anna" and answered.headers["cache-control"] == "no-store"
    for reply in (refused, answered, form):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "http" not in policy


def test_a_session_ends() -> None:
    now_s = [0.0]
    sessions = Sessions(lambda: now_s[0])
    token, other = sessions.begin(ANNA), sessions.begin(ANNA)
    assert sessions.person(token) == ANNA and sessions.person("") is None
    sessions.end(other)
    assert sessions.person(other) is None
    now_s[0] = 12 * 3600.0
    assert sessions.person(token) is None


@pytest.mark.parametrize(
    ("credentials", "first"),
    [
        ({"cookie": f"{COOKIE}={TOKEN}", "origin": "http://127.0.0.1:8090"}, "websocket.accept"),
        ({"cookie": f"{COOKIE}={TOKEN}", "origin": "https://evil.example"}, "websocket.close"),
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


@pytest.mark.parametrize("guard", [GUARD, Guard(Starlette(routes=ROUTES))])
async def test_the_health_check_needs_no_session_and_reveals_nothing(guard: Guard) -> None:
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url="https://10.1.2.3:8090") as client:
        reply = await client.get("/health")
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


def test_attempts_per_address_are_limited(time: Time) -> None:
    attempts = Attempts(time)
    for _ in range(PER_ADDRESS):
        assert attempts.begin("a") == 0
    time.now_s += 20
    assert attempts.begin("a") == 40 and attempts.begin("b") == 0
    time.now_s += 40
    assert attempts.begin("a") == 0


def test_attempts_of_all_addresses_are_limited_except_for_trusted_ones(time: Time) -> None:
    attempts = Attempts(time)
    assert attempts.begin("owner") == 0
    attempts.succeeded("owner")
    tried = 0
    while attempts.begin(f"guesser {tried}") == 0:
        tried += 1
    assert tried == IN_ALL
    assert attempts.begin("owner") == 0 and attempts.begin("stranger") == 60
    time.now_s += 60
    assert attempts.begin("stranger") == 0
