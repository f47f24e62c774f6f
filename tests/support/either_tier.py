"""Either tier with both of its V2 addresses, REST and gRPC, on the bundles of one folder."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from support.agent import edge_settings, serving_agent
from support.broker import free_port
from support.gateway import serving
from support.small_models import small_gateway

from firstline_core.protocol.http import BodyBudget
from firstline_edge.api import server as edge_server
from firstline_edge.api.access import access_of


@asynccontextmanager
async def either_tier(name: str, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """Its URL and its port for gRPC.

    Args:
        name: "gateway" or "agent".
        folder: has bundles in `models`, and takes what the tier keeps.
    """
    async with AsyncExitStack() as opened:
        if name == "gateway":
            gateway = small_gateway(folder, grpc__enabled=True, grpc__port=0)
            rpc = gateway.grpc_server()
            url, port = await opened.enter_async_context(serving(gateway)), rpc.port
            await rpc.start()
            opened.push_async_callback(rpc.stop, 1)
        else:
            port = free_port()
            models = [str(folder / "models")]
            settings = edge_settings(folder / "state", models__directories=models, grpc__enabled=True, grpc__port=port)
            agent, url = await opened.enter_async_context(serving_agent(settings))
            access = access_of(settings.api)
            await opened.enter_async_context(edge_server.serving_grpc(agent.data_plane, access, BodyBudget(1 << 20)))
        yield url, port
