"""Authentication: from a client certificate, or the Authorization header, to a principal and its scopes."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection
from starlette.types import Scope as AsgiScope

from firstline_core.errors import ForbiddenError, UnauthorizedError
from firstline_core.fleet.persons import Person, acting
from firstline_core.fleet.selector import Selector, parse_selector
from firstline_core.protocol import asgi
from firstline_core.protocol.cors import check_page
from firstline_core.protocol.enrolment import application_principal, device_of_principal, device_principal
from firstline_gateway.api import persons
from firstline_gateway.api.services import Services
from firstline_gateway.identity.audit_head import AuditLog
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.identity.principals import SCOPES, UNAUTHENTICATED, Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Args:
        principal: "device:NAME" or "application:NAME"; "" if authentication is off.
        scopes: its permissions.
        trust_request_id: whether its own request ids are kept. An application could otherwise guess or reuse the id
            of another caller's answer.
        person: the user of its key; "" for a program.
    """

    principal: str
    scopes: frozenset[str]
    trust_request_id: bool
    person: str = ""


_ANONYMOUS = Caller(principal="", scopes=frozenset(SCOPES), trust_request_id=True)
_CALLERS_KNOWN = 4096
_DEVICE_SCOPES = frozenset({"infer"})
_DENIED_AGAIN_S = 3600.0
_DENIED_KNOWN = 4096


async def authenticate(identity: IdentityService, connection: HTTPConnection | asgi.Request) -> Caller:
    """Returns the caller, identified by its certificate if it shows one, otherwise by its API key.

    Args:
        identity: verifies both.
        connection: of the request; its body is not read.

    Raises:
        UnauthorizedError: there is neither, or it is not valid.
        RateLimitedError: the key was used too often.
        CapacityError: the store of devices and keys is not available.
        RequestError: authentication is off, and a web page from elsewhere sends the request.
    """
    if not identity.requires_credentials:
        check_page(connection.headers, identity.cors_origins, "This gateway")
    authorization = connection.headers.get("authorization", "")
    return await caller_of(identity, await certificate_of(identity, connection.scope), authorization)


async def caller_of(
    identity: IdentityService, certificate: ClientCertificate | None, authorization: str, *, counts: bool = True
) -> Caller:
    """Returns the caller with these credentials, whatever the transport; see `authenticate`.

    Args:
        identity: verifies both.
        certificate: of the client; it takes precedence over the key.
        authorization: "Bearer KEY", or "".
        counts: whether this is a use of the key.

    Raises:
        UnauthorizedError, RateLimitedError, CapacityError: as `authenticate`.
    """
    if certificate is not None:
        device = await identity.gatekeeper.authenticate_certificate(certificate)
        return Caller(device_principal(device), _DEVICE_SCOPES, trust_request_id=True)
    if not identity.requires_credentials:
        return _ANONYMOUS
    key = await identity.gatekeeper.authenticate_key(_given_key(authorization), counts=counts)
    return _caller_with(key.name, key.kind, key.scopes, key.person)


def _given_key(authorization: str) -> str:
    scheme, _, text = authorization.partition(" ")
    if scheme and scheme.lower() != "bearer":
        # Without the header's text, which may be a key.
        raise UnauthorizedError(
            "The authorization does not begin with Bearer; send `authorization: Bearer KEY` as a header, or as "
            "metadata of gRPC."
        )
    if not text.strip():
        raise UnauthorizedError(
            "This gateway needs an API key, or a device's certificate; send `authorization: Bearer KEY` as a header, "
            "or as metadata of gRPC."
        )
    return text.strip()


@lru_cache(_CALLERS_KNOWN)
def _caller_with(name: str, kind: str, scopes: str, person: str) -> Caller:
    """Returns the caller that a valid key identifies."""
    is_device = kind == "device"
    principal = device_principal(name) if is_device else application_principal(name)
    return Caller(principal, frozenset(scopes.split()), is_device, person)


async def authorize(identity: IdentityService, connection: HTTPConnection | asgi.Request, scope: str) -> Caller:
    """Returns the caller, which must have a scope.

    Raises:
        UnauthorizedError, RateLimitedError, CapacityError, RequestError: as `authenticate`.
        ForbiddenError: the caller lacks the scope.
    """
    caller = await authenticate(identity, connection)
    check_scope(caller, scope)
    return caller


async def is_still_authorized(identity: IdentityService, connection: HTTPConnection) -> bool:
    """Returns whether an authenticated caller would still be accepted; does not count as a use of its key."""
    certificate = await certificate_of(identity, connection.scope)
    if certificate is None:
        return not identity.requires_credentials or identity.gatekeeper.holds(
            _given_key(connection.headers["authorization"])
        )
    try:
        await identity.gatekeeper.authenticate_certificate(certificate)
    except UnauthorizedError:
        return False
    return True


def check_scope(caller: Caller, scope: str) -> None:
    """Checks that a caller has a scope.

    Raises:
        ForbiddenError: the caller lacks the scope.
    """
    if scope not in caller.scopes:
        raise ForbiddenError(
            f"{caller.principal} lacks the scope '{scope}'; use an API key that has it: `firstline-gateway key create "
            f"NAME --scope {scope}`."
        )


def client_address(identity: IdentityService, connection: HTTPConnection) -> str:
    """Returns the address of the client; a trusted proxy appends it to X-Forwarded-For."""
    address = connection.client.host if connection.client is not None else ""
    if not identity.trusts(address):
        return address
    forwarded = ",".join(connection.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
    try:
        return str(ipaddress.ip_address(forwarded))
    except ValueError:
        return address


async def certificate_of(identity: IdentityService, scope: AsgiScope) -> ClientCertificate | None:
    """Returns the certificate that the client, or a trusted proxy, has shown; it is not judged yet.

    Raises:
        UnauthorizedError: the certificate that the proxy passes on cannot be read.
    """
    client: tuple[str, int] | None = scope.get("client")
    if identity.proxy_header and client is not None and identity.trusts(client[0]):
        # Only the header: the proxy's own certificate would identify every client without one.
        name = identity.proxy_header.encode("latin-1")
        return await identity.proxied_certificate(
            [text.decode("latin-1") for key, text in scope["headers"] if key == name]
        )
    certificate: ClientCertificate | None = asgi.request_info(scope).peer
    return certificate


# Describes the header for OpenAPI; `authenticate` reads it.
_Bearer = Annotated[object, Depends(HTTPBearer(auto_error=False, description="An API key, or the key of a device."))]


def scope(to_read: Scope, to_change: Scope | None = None) -> Callable[..., AsyncIterator[None]]:
    """Returns a dependency of routers that requires a scope; to change something another one, if it is given.

    It also requires the permission of the person whom a request names. It encloses the route, so that a refusal by the
    route itself is noted in the audit log, too.
    """

    async def required(request: Request, _: _Bearer) -> AsyncIterator[None]:
        services: Services = request.app.state.services
        scope_needed = to_read if to_change is None or request.method == "GET" else to_change
        caller = await authorize(services.identity, request, scope_needed)
        person, tags_of = persons.person_of(request), services.fleet.tags
        request.state.person = person
        request.state.sees = partial(persons.sees, person, tags_of)
        request.state.principal = acting(person.name if person is not None else caller.person, caller.principal)
        if person is None:
            yield
            return
        check_scope(caller, "delegate")
        try:
            await persons.check(person, request, tags_of)
            yield
        except ForbiddenError as error:
            await _note_denied(services.audit_log, request, error)
            raise

    return required


async def _note_denied(audit_log: AuditLog, request: Request, error: ForbiddenError) -> None:
    """Notes what a person may not do in the audit log: each change, and at most once an hour each path to read."""
    actor: str = request.state.principal
    path: str = request.scope["path"][:200]
    if request.method in persons.READS:
        now_s = time.monotonic()
        denied_s: dict[tuple[str, str], float] = request.app.state.denied_s
        if now_s - denied_s.get((actor, path), -_DENIED_AGAIN_S) < _DENIED_AGAIN_S:
            return
        denied_s.pop((actor, path), None)
        if len(denied_s) >= _DENIED_KNOWN:
            del denied_s[next(iter(denied_s))]
        denied_s[actor, path] = now_s
    details = {"method": request.method, "path": path, "why": error.message}
    await audit_log.note(actor, "person.denied", "gateway", details)


async def device_only(request: Request, _: _Bearer) -> None:
    """Requires a device; the principal is the name in its certificate or key."""
    caller = await authenticate(request.app.state.services.identity, request)
    name = device_of_principal(caller.principal) if caller.principal else None
    if name is None:
        advice = (
            "an operator reads a device with GET /fleet/v1/devices/NAME"
            if caller.principal
            else "enable authentication (auth.mode), and let the device join"
        )
        raise ForbiddenError(f"Only devices may use this endpoint, with their certificate or key; {advice}.")
    request.state.principal = name


async def device_or_fleet(request: Request, _: _Bearer) -> None:
    """Requires a device, or the scope 'fleet'."""
    caller = await authenticate(request.app.state.services.identity, request)
    if device_of_principal(caller.principal) is None:
        check_scope(caller, "fleet")


async def metrics_reader(request: Request, _: _Bearer) -> None:
    """Requires an API key of any scope, unless all callers may read the metrics."""
    services: Services = request.app.state.services
    if not services.settings.api.open_metrics:
        caller = await authenticate(services.identity, request)
        if device_of_principal(caller.principal) is not None:
            raise ForbiddenError(f"{caller.principal} may not read the metrics; an API key of any scope may.")


def _noted(name: str) -> Any:
    """Returns a parameter of routes by which they read what the dependency of the router stored about the caller."""

    async def read(request: Request) -> Any:
        return getattr(request.state, name)

    return Depends(read)


Principal = Annotated[str, _noted("principal")]
CallingDevice = Annotated[str, _noted("principal")]
"""The name of the device that calls."""
OnBehalf = Annotated[Person | None, _noted("person")]
"""The person on whose behalf the request is sent."""
Sees = Annotated[Callable[[str], Awaitable[bool]], _noted("sees")]
"""Returns whether the person of the request sees a device; without a person, all are seen."""


async def _operator(principal: Principal) -> str:
    return principal or UNAUTHENTICATED


async def _selector(person: OnBehalf, selector: str = "") -> Selector:
    """Returns the selector of a request, within the devices of the person."""
    own = person.devices if person is not None else ""
    return parse_selector(",".join(filter(None, (own, selector.strip()))))


Operator = Annotated[str, Depends(_operator)]
OwnSelector = Annotated[Selector, Depends(_selector)]
