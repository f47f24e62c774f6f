"""The agent on a Unix socket in addition to its port."""

import asyncio
import contextlib
import socket
import stat
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS
from support.processes import TierProcess

from firstline import AsyncClient, Client
from firstline_core.errors import CapacityError, LinkDownError
from firstline_edge.api.server import listen_unix


def test_agent_serves_a_unix_socket_and_a_port(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    settings = [f"agent.state_dir={tmp_path / 'state'}", f'models.directories=["{DIGITS}"]', "api.socket_mode=600"]
    flags = [part for setting in settings for part in ("--set", setting)]
    with TierProcess("firstline_edge", "--socket", path, *flags, log=tmp_path / "log") as agent:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as near, httpx.Client(trust_env=False) as far:
            body = {"inputs": [{"name": "image", "shape": [1, 8, 8, 1], "datatype": "UINT8", "data": [0] * 64}]}
            for client, base in ((near, "http://localhost"), (far, agent.url)):
                reply = client.post(f"{base}/v2/models/digits/infer", json=body, params={"route": "edge"})
                assert reply.status_code == 200, reply.text
            assert near.get("http://localhost/v2/health/live").json() == {"live": True}
        with Client("http://127.0.0.1:1", socket=path) as client:
            assert client.ready()
            assert client.url == f"unix:{path}"

        async def ready(socket: Path) -> bool:
            async with AsyncClient(socket=socket) as client:
                return await client.ready()

        assert asyncio.run(ready(path))
        with pytest.raises(LinkDownError, match=r"unix:.*nobody"):
            asyncio.run(ready(tmp_path / "nobody.sock"))
        assert agent.stop() == 0 and not path.exists()


def test_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with listen_unix(path, 0o660) as listener:
        listener.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(CapacityError, match="another program listens"), listen_unix(path, 0o660):
            pass
    assert not path.exists()


def test_unusable_socket_path_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for path, message in (
        (file, "which is a file but not a socket"),
        (tmp_path / "nowhere" / "agent.sock", "no such folder"),
    ):
        with pytest.raises(CapacityError, match=message), contextlib.ExitStack() as opened:
            opened.enter_context(listen_unix(path, 0o660))
    assert file.read_text() == "precious"


def test_socket_of_a_busy_program_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with contextlib.ExitStack() as opened:
        busy = opened.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                caller = opened.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
                caller.setblocking(False)
                caller.connect(str(path))
        with pytest.raises(CapacityError, match="another program listens"):
            opened.enter_context(listen_unix(path, 0o660))
    assert path.exists()
