"""The updater's ports on the world: what is no verdict on a bundle, and what holds up nobody's end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.support.signed_repository import SignedRepository
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import LinkDownError
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.updates.registry import GatewayRegistry
from firstline_edge.settings.settings import LinkSection


async def test_a_token_that_is_being_exchanged_is_no_verdict(tmp_path: Path) -> None:
    token, root = tmp_path / "token", tmp_path / "root.json"
    token.write_text("secret")
    root.write_text("{}")
    http = FleetHttp(LinkSection(kind="http", url="http://127.0.0.1:9", token_file=str(token)), None)
    token.unlink()
    registry = GatewayRegistry(http, tmp_path / "metadata", str(root), SYSTEM_CLOCK.wall_s)
    with pytest.raises(LinkDownError, match="token"):
        await registry.files()
    await http.close()


async def test_a_device_without_an_http_link_is_told_to_add_one(tmp_path: Path) -> None:
    registry = GatewayRegistry(None, tmp_path, "", SYSTEM_CLOCK.wall_s)
    with pytest.raises(LinkDownError, match=r"kind = \"http\""):
        await registry.files()
    with pytest.raises(LinkDownError, match=r"kind = \"http\""):
        async for _ in registry.read("0" * 64, 0, 1):
            pass


_SILENT = """
import asyncio, socket, sys
from pathlib import Path
from firstline_core.clock import SYSTEM_CLOCK
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.settings.settings import LinkSection
from firstline_edge.fleet.updates.registry import GatewayRegistry

async def main():
    asked = asyncio.Event()
    server = await asyncio.start_server(lambda reader, writer: asked.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
    folder = Path(sys.argv[1])
    registry = GatewayRegistry(http, folder, sys.argv[2], SYSTEM_CLOCK.wall_s)
    looking = asyncio.create_task(registry.files())
    await asked.wait()
    looking.cancel()
    print("ends", flush=True)

asyncio.run(main())
"""


def test_a_registry_that_says_nothing_holds_up_no_process(tmp_path: Path) -> None:
    """The look is not waited for: a stop would else take as long as the registry's silence is borne, and be a kill."""
    root = tmp_path / "1.root.json"
    root.write_bytes(SignedRepository().anchor)
    process = subprocess.Popen(
        [sys.executable, "-c", _SILENT, str(tmp_path / "metadata"), str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ends\n"
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.communicate()
