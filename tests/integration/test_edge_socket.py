"""The agent on a Unix socket in addition to its port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS

from firstline import AsyncClient, Client
from firstline_core.errors import LinkDownError
from firstline_edge.api.sockets import AddressError, listen_unix


def test_both_ways_lead_to_the_same_agent(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    settings = [f"agent.state_dir={tmp_path / 'state'}", f'models.directories=["{DIGITS}"]', "api.socket_mode=600"]
    command = [sys.executable, "-m", "firstline_edge", "run", "--port", "0", "--socket", str(path)]
    command += [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as near, httpx.Client(trust_env=False) as far:
            asked = {"inputs": [{"name": "image", "shape": [1, 8, 8, 1], "datatype": "UINT8", "data": [0] * 64}]}
            for client, base in ((near, "http://localhost"), (far, url)):
                reply = client.post(f"{base}/v2/models/digits/infer", json=asked, params={"route": "edge"})
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
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0 and not path.exists()


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with listen_unix(path, 0o660) as listener:
        listener.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(AddressError, match="another program listens"), listen_unix(path, 0o660):
            pass
    assert not path.exists()


def test_a_path_that_cannot_be_used_is_told_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for path, said in (
        (file, "which is a file but not a socket"),
        (tmp_path / "nowhere" / "agent.sock", "no such folder"),
    ):
        with pytest.raises(AddressError, match=said), contextlib.ExitStack() as opened:
            opened.enter_context(listen_unix(path, 0o660))
    assert file.read_text() == "precious"


def test_a_program_that_is_too_busy_to_answer_still_listens(tmp_path: Path) -> None:
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
        with pytest.raises(AddressError, match="another program listens"):
            opened.enter_context(listen_unix(path, 0o660))
    assert path.exists()
