"""gRPC on the agent, with the callers and limits of REST. Imported only if `grpc.enabled` is set."""

from __future__ import annotations

from firstline_core.protocol.grpc.server import GrpcServer, peer_address
from firstline_core.protocol.grpc.service import OPERATE, Caller, CallHooks, Context, InferenceService
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.sockets import host_and_port
from firstline_edge.api.access import Access, check_local
from firstline_edge.api.data_plane import EdgeDataPlane


def grpc_server(agent: EdgeDataPlane, access: Access, bodies: BodyBudget) -> GrpcServer:
    """Returns the agent's gRPC server, which listens once it is started.

    Args:
        agent: answers; it has started.
        access: authenticates callers; only the health calls are open to all.
        bodies: budget of memory, shared with REST.

    Raises:
        CapacityError: the address is in use, or does not belong to this machine.
    """

    async def authorize(context: Context, scope: str, *, counts: bool = True) -> Caller:  # keys have no rate here
        if scope == OPERATE and not context.peer().startswith("unix:"):
            check_local((peer_address(context.peer()), 0))
        metadata = dict(context.invocation_metadata() or ())
        return Caller(access.bearer(metadata.get("authorization", "")))

    # The data plane records the outcome of every request.
    hooks = CallHooks(authorize, bodies.share, lambda *_: None)
    api, grpc = agent.settings.api, agent.settings.grpc
    return GrpcServer(
        InferenceService(agent, hooks),
        host_and_port(api.host, grpc.port),
        body_limit_bytes=api.body_limit_bytes,
        calls_limit=grpc.calls_limit,
    )
