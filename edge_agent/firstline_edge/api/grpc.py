"""gRPC on the agent: the same callers and limits as REST has. Imported where `grpc.enabled` says so."""

from __future__ import annotations

from firstline_core.protocol.grpc.server import GrpcServer, address_of
from firstline_core.protocol.grpc.service import OPERATE, Caller, CallHooks, Context, InferenceService
from firstline_edge.api.access import Access, check_local
from firstline_edge.api.bodies import BodyBudget
from firstline_edge.api.data_plane import EdgeDataPlane


def grpc_server(agent: EdgeDataPlane, access: Access, bodies: BodyBudget) -> GrpcServer:
    """The agent's server for gRPC, which listens once it is started.

    Args:
        agent: started.
        access: who may call; health alone is open to everyone.
        bodies: what REST's requests share too.

    Raises:
        CapacityError: the address is taken, or not this machine's.
    """

    async def authorize(context: Context, scope: str) -> Caller:
        if scope == OPERATE and not context.peer().startswith("unix:"):
            check_local((address_of(context.peer()), 0))
        metadata = dict(context.invocation_metadata() or ())
        return Caller(access.bearer(metadata.get("authorization", "")))

    # Everything else about a request is written down where it is answered.
    door = CallHooks(authorize, lambda _: bodies.taking(), lambda *_: None)
    api, grpc = agent.settings.api, agent.settings.grpc
    return GrpcServer(
        InferenceService(agent, door),
        f"[{api.host}]:{grpc.port}" if ":" in api.host else f"{api.host}:{grpc.port}",
        body_limit_bytes=api.body_limit_bytes,
        calls_limit=grpc.calls_limit,
    )
