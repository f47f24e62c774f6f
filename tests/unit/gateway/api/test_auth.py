"""From an API key or a certificate to a caller, and what it may do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection
from support.databases import OpenStore, sqlite_store
from support.keys import bearer, create_key

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import ForbiddenError, RequestError, UnauthorizedError
from firstline_core.protocol.asgi import RequestInfo
from firstline_gateway.api.auth import Caller, authenticate, authorize, certificate_of
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.identity.principals import SCOPES
from firstline_gateway.settings.load import load

INFER = frozenset({"infer"})


@pytest.fixture
async def identity(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[IdentityService]:
    overrides = {"auth.mode": getattr(request, "param", "tokens"), "identity.directory": str(tmp_path / "identity")}
    with OpenStore(sqlite_store(tmp_path)) as opened:
        found = IdentityService(load(None, overrides=overrides), opened.store, clock=SYSTEM_CLOCK)
        yield found
        await found.close()
        assert found.readers.close(5)


def connection(headers: dict[str, str] | None = None, *, presented: ClientCertificate | None = None) -> HTTPConnection:
    scope = {
        "type": "http",
        "client": ("192.0.2.7", 4711),
        "headers": [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()],
    }
    return HTTPConnection(scope | {"state": {"firstline": RequestInfo(0.0, presented)}})


async def test_keys_become_principals_and_devices_keep_their_ids(identity: IdentityService, tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    device, application = create_key(store, "press-7", "device"), create_key(store, "shop")
    assert await authenticate(identity, connection(bearer(device))) == Caller("device:press-7", INFER, True)
    headers = {"Authorization": f"bearer  {application} "}
    assert await authenticate(identity, connection(headers)) == Caller("application:shop", INFER, False)


async def test_a_scope_that_a_key_lacks_is_refused(identity: IdentityService, tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    operator = connection(bearer(create_key(store, "anna", "operator")))
    application = connection(bearer(create_key(store, "shop")))
    for scope in SCOPES:
        assert (await authorize(identity, operator, scope)).principal == "application:anna"
    assert (await authorize(identity, application, "infer")).principal == "application:shop"
    for scope in ("fleet", "admin"):
        with pytest.raises(ForbiddenError, match=f"application:shop lacks the scope '{scope}'; use"):
            await authorize(identity, application, scope)
        with pytest.raises(UnauthorizedError):
            await authorize(identity, connection(), scope)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "flt_x"])
async def test_without_a_key_the_sentence_names_the_header_to_send(identity: IdentityService, header: str) -> None:
    with pytest.raises(UnauthorizedError, match="send `authorization: Bearer KEY` as a header") as caught:
        await authenticate(identity, connection({"Authorization": header}))
    assert "dXNlcjpwYXNz" not in caught.value.message and "flt_x" not in caught.value.message


@pytest.mark.parametrize("identity", ["off"], indirect=True)
async def test_every_caller_is_served_without_authentication(identity: IdentityService) -> None:
    for host in ("127.0.0.1:8080", "localhost", "[::1]:8080"):
        found = await authenticate(identity, connection({"Host": host}))
        assert found == Caller("", frozenset(SCOPES), trust_request_id=True)


@pytest.mark.parametrize("identity", ["off"], indirect=True)
async def test_pages_from_elsewhere_are_refused_without_authentication(identity: IdentityService) -> None:
    """A browser on this machine sends their requests, with the page's name as Host or with its Origin."""
    for headers in ({"Host": "evil.example"}, {"Host": "127.0.0.1", "Origin": "https://evil.example"}):
        with pytest.raises(RequestError, match=r"evil\.example"):
            await authorize(identity, connection(headers), "fleet")
    own = {"Host": "127.0.0.1", "Origin": "http://localhost:3000"}
    assert (await authorize(identity, connection(own), "fleet")).principal == ""


async def test_a_valid_key_does_not_replace_an_invalid_certificate(identity: IdentityService, tmp_path: Path) -> None:
    headers = bearer(create_key(sqlite_store(tmp_path), "shop"))
    with pytest.raises(UnauthorizedError, match="is no device's"):
        await authenticate(identity, connection(headers, presented=ClientCertificate(None, "0", 0.0, 0.0)))


async def test_a_proxys_own_certificate_identifies_no_client(proxied: IdentityService) -> None:
    proxys = connection(presented=ClientCertificate("proxy", "1", 0.0, 1e12))
    assert await certificate_of(proxied, proxys.scope) is None
