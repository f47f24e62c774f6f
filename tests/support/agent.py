"""A real agent with the digits bundle, on a loopback port in this process."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from firstline_core.protocol import sockets
from firstline_core.protocol.http_server import ServerLimits
from firstline_edge.api import server
from firstline_edge.api.access import Access, access_of
from firstline_edge.api.app import App
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings

CHECKOUT = Path(__file__).parents[2]
DIGITS = CHECKOUT / "models" / "digits" / "bundle"


def edge_settings(state_dir: Path, **overrides: Any) -> EdgeSettings:
    """Settings for a test: dotted keys, with `__` for the dot. The survey is off: it takes a second, after 30 s."""
    defaults = {"agent.state_dir": str(state_dir), "models.directories": [str(DIGITS)], "api.port": 0}
    defaults |= {"agent.device_id": "device-1", "hardware.survey": False}
    return load(None, environ={}, overrides=defaults | {key.replace("__", "."): v for key, v in overrides.items()})


def adapting_settings(folder: Path, **more: Any) -> EdgeSettings:
    """Of an agent that adapts to a device without sensors; the bundle and the state are in the folder."""
    base = {"models__directories": [str(folder / "bundle")], "adaptation__enabled": True}
    base |= {"hardware__root": str(folder / "no sensors"), "hardware__period_s": 3600.0, "cache__disk_limit_bytes": 0}
    return edge_settings(folder / "state", **(base | more))


@contextlib.asynccontextmanager
async def serving_agent(
    settings: EdgeSettings, limits: ServerLimits | None = None, access: Access | None = None
) -> AsyncIterator[tuple[EdgeAgent, str]]:
    """Serves as the process does, without its signals; yields the agent and its URL."""
    with contextlib.closing(sockets.bind(settings.api.host, settings.api.port)) as listener:
        async with (
            EdgeAgent(settings) as agent,
            server.serving(
                App(agent.data_plane, agent.files, agent.outbox, agent.operations, access or access_of(settings.api)),
                [listener],
                limits,
            ),
        ):
            yield agent, sockets.url_of(listener)
