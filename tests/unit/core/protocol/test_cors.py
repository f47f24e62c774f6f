"""Web pages that call from a browser: the same answers as Starlette's middleware gives."""

from typing import Any

import httpx
import pytest
from starlette.middleware.cors import CORSMiddleware

from firstline_core.protocol.asgi import AsgiApp
from firstline_core.protocol.cors import with_cors

PAGE, OTHER = "https://example.com", "https://evil.example"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
COMPARED = ("access-control-allow-origin", "access-control-allow-methods", "access-control-max-age")


async def answer(scope: Any, _receive: Any, send: Any) -> None:
    status = 200 if scope["method"] == "POST" else 405
    headers = [(b"vary", b"Accept"), (b"firstline-answer", b"{}")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"answer"})


async def called(app: AsgiApp, method: str, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://tier") as client:
        return await client.request(method, "/v2", headers=headers)


def asked(origin: str, headers: str = "authorization,content-type") -> dict[str, str]:
    """The headers of a preflight request."""
    return {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": headers}


@pytest.mark.parametrize("origins", [(PAGE,), ("http://localhost:3000", PAGE), ("*",)])
@pytest.mark.parametrize("origin", [PAGE, OTHER, "null", PAGE.upper()])
@pytest.mark.parametrize("method", ["OPTIONS", "POST", "GET"])
async def test_answers_are_those_of_starlette(origins: tuple[str, ...], origin: str, method: str) -> None:
    theirs = CORSMiddleware(answer, allow_origins=origins, allow_methods=METHODS, allow_headers=["*"])
    headers = asked(origin) if method == "OPTIONS" else {"Origin": origin}
    expected, found = [await called(app, method, headers) for app in (theirs, with_cors(answer, origins))]
    assert found.is_success == expected.is_success
    for name in COMPARED:
        expected_header = expected.headers.get(name)
        if name == "access-control-allow-origin" and expected_header == "*":
            expected_header = origin  # a browser accepts both
        if found.is_success or method != "OPTIONS":
            assert found.headers.get(name) == expected_header, name
        else:
            assert name not in found.headers
    assert "Origin" in found.headers["vary"]
    if method != "OPTIONS":
        assert (found.content, found.headers["vary"]) == (b"answer", "Accept, Origin")


async def test_preflight_allows_the_headers_that_the_page_asks_for() -> None:
    found = await called(with_cors(answer, [PAGE]), "OPTIONS", asked(PAGE, headers="authorization,prefer"))
    assert (found.status_code, found.headers["access-control-allow-headers"]) == (204, "authorization,prefer")
    assert "access-control-allow-credentials" not in found.headers
    local = asked(PAGE) | {"Access-Control-Request-Private-Network": "true"}
    found = await called(with_cors(answer, [PAGE]), "OPTIONS", local)
    assert found.headers["access-control-allow-private-network"] == "true"


async def test_requests_of_programs_are_answered_as_before() -> None:
    found = await called(with_cors(answer, [PAGE]), "POST", {})
    assert "access-control-allow-origin" not in found.headers
    assert (await called(with_cors(answer, [PAGE]), "OPTIONS", {"Origin": PAGE})).status_code == 405
    assert with_cors(answer, []) is answer


async def test_pages_may_read_the_answers_own_headers() -> None:
    found = await called(with_cors(answer, [PAGE]), "POST", {"Origin": PAGE})
    assert "firstline-answer" in found.headers["access-control-expose-headers"]
