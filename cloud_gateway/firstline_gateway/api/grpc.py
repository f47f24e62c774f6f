"""gRPC on the gateway, with the callers, limits and log of REST. Imported only if `grpc.enabled` is set."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from functools import lru_cache, partial

import grpc

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, QueueFullError
from firstline_core.protocol.grpc.server import GrpcServer, peer_address
from firstline_core.protocol.grpc.service import INFER, OPERATE, Caller, CallHooks, Context, InferenceService
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.sockets import host_and_port
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.api import persons
from firstline_gateway.api.auth import caller_of, check_scope
from firstline_gateway.api.overload import OverloadGuard, client_key, overloaded
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.identity.tls import ServerFiles, ServerTls
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import Settings
from firstline_gateway.telemetry.journal import record

_SCOPES = {INFER: "infer", OPERATE: "fleet"}


def grpc_server(
    settings: Settings,
    plane: GatewayDataPlane,
    identity: IdentityService,
    *,
    overload: OverloadGuard,
    bodies: BodyBudget,
    metrics: RequestMetrics,
    clock: Clock,
) -> GrpcServer:
    """Returns the gateway's gRPC server, which listens once it is started.

    Args:
        settings: the address and the limits.
        plane: answers requests.
        identity: authenticates callers.
        overload: refuses requests that are not read.
        bodies: limits the bytes of requests in memory.
        metrics: counts the outcomes.
        clock: measures durations.

    Raises:
        CapacityError: the address is in use, or does not belong to this machine.
    """

    def note(model: str, principal: str, seconds: float, error: FirstlineError | None) -> None:
        record(metrics, transport="grpc", model=model, principal=principal, seconds=seconds, error=error)

    def unread(context: Context) -> FirstlineError | None:
        if overload.refuses(partial(_client_key, identity, context), clock.monotonic_s()):
            return overloaded()
        context.add_done_callback(lambda _: overload.ended())
        return None

    def no_room(context: Context) -> None:
        overload.queue_full(_client_key(identity, context), clock.monotonic_s())

    tls = identity.tls
    authorize = partial(_authorize, identity, CallPlaces(settings.grpc.calls_limit))
    hooks = CallHooks(authorize, bodies.share, note, unread, no_room)
    return GrpcServer(
        InferenceService(plane, hooks, clock=clock),
        host_and_port(settings.api.host.strip("[]"), settings.grpc.port),
        body_limit_bytes=settings.limits.body_bytes,
        calls_limit=settings.grpc.calls_limit,
        credentials=None if tls is None else _credentials(tls, demand=settings.grpc.client_certificates),
    )


class CallPlaces:
    """Limits the calls of one principal, so that others have room: an open stream without messages has no time limit.

    Args:
        limit: of all calls at the same moment; one principal may have half.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contexts: set[Context] = set()
        self._calls_of: Counter[str] = Counter()

    def take(self, principal: str, context: Context) -> None:
        """Counts a call, once, until it ends.

        Raises:
            QueueFullError: the principal has too many.
        """
        if context in self._contexts:
            return
        if 2 * self._calls_of[principal] >= max(self._limit, 2):
            raise QueueFullError(
                f"You have {self._calls_of[principal]} calls at this moment, half of grpc.calls_limit; end some, or "
                "retry after the time given with this error.",
                retry_after_s=1.0,
            )
        self._contexts.add(context)
        self._calls_of[principal] += 1
        context.add_done_callback(lambda _: self._give_back(principal, context))

    def _give_back(self, principal: str, context: Context) -> None:
        self._contexts.discard(context)
        self._calls_of[principal] -= 1
        if not self._calls_of[principal]:
            del self._calls_of[principal]


async def _authorize(
    identity: IdentityService, places: CallPlaces, context: Context, scope: str, *, counts: bool = True
) -> Caller:
    """Authenticates a call; see `auth.authorize` and `CallPlaces.take`."""
    metadata = _metadata(context)
    if identity.proxy_header and identity.trusts(peer_address(context.peer())):
        named = [text for key, text in metadata if key == identity.proxy_header]
        shown = await identity.proxied_certificate(named)
    else:
        shown = _shown_certificate(context)
    headers = dict(metadata)
    caller = await caller_of(identity, shown, headers.get("authorization", ""), counts=counts)
    check_scope(caller, _SCOPES[scope])
    persons.check_none(headers)
    if caller.principal:
        places.take(caller.principal, context)
    return Caller(caller.principal, caller.trust_request_id)


def _client_key(identity: IdentityService, context: Context) -> int:
    """Returns the key of a call's client, the same as that of its requests over HTTP."""
    certificate, headers = _shown_certificate(context), dict(_metadata(context))
    return client_key(identity, peer_address(context.peer()), certificate, headers)


def _metadata(context: Context) -> list[tuple[str, str]]:
    """Returns the metadata of a call that are text."""
    return [(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]


def _shown_certificate(context: Context) -> ClientCertificate | None:
    """Returns the certificate that the client has shown; it is not judged yet."""
    shown = context.auth_context().get("x509_pem_cert", ())
    return _read_certificate(shown[0]) if shown else None


_read_certificate = lru_cache(1024)(ClientCertificate.read)


def _credentials(tls: ServerTls, *, demand: bool) -> grpc.ServerCredentials:
    """Returns the gateway's TLS for gRPC; changed files apply from the next handshake on.

    gRPC itself refuses the handshake of a device whose certificate has expired; the device renews it over HTTPS.
    """

    def configuration(files: ServerFiles) -> grpc.ServerCertificateConfiguration:
        pair = tuple(file.read_bytes().removeprefix(BOM_UTF8) for file in (files.key, files.certificate))
        return grpc.ssl_server_certificate_configuration(
            [pair], root_certificates=files.authorities_pem.encode() if demand else None
        )

    used = tls.files

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        files = tls.files
        if files is used:
            return None  # as before
        changed = configuration(files)
        used = files  # after that: if it raises, gRPC uses the previous files, and calls this for the next handshake
        return changed

    return grpc.dynamic_ssl_server_credentials(configuration(used), fetch, require_client_authentication=demand)
