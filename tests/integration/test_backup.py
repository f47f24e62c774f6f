"""The rehearsal: a gateway under load is backed up, destroyed and restored, and its devices go on."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from support.agent import edge_settings, until
from support.deliveries import answered, counted, picture
from support.gateway import DIGITS, serving
from support.keys import bearer, create_key

from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, Status, Wait
from firstline_edge.agent import EdgeAgent
from firstline_gateway.gateway import open_gateway
from firstline_gateway.settings import load

LOAD = 8


def command(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "firstline_gateway", *arguments, "--config", str(folder / "gateway.toml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


async def promise(agent: EdgeAgent, seed: int) -> str:
    asked = InferRequest("digits", (picture(seed),), new_request_id(), wait=Wait.FIRST, principal="local")
    answer = (await agent.infer(asked)).answer
    assert answer is not None
    assert answer.durable
    return answer.request_id


async def test_a_gateway_is_destroyed_and_restored(tmp_path: Path) -> None:
    folder, backup = tmp_path / "gateway", tmp_path / "gateway.backup"
    folder.mkdir()
    (folder / "gateway.toml").write_text(f'[api]\nport = 0\n[models]\ndirectory = "{DIGITS}"\n')
    settings = load(folder / "gateway.toml")
    (tmp_path / "token").write_text(create_key(settings.store, "cam", "device"))
    shop = bearer(create_key(settings.store, "shop"))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        old = open_gateway(settings)
        url = await first.enter_async_context(serving(old))
        link = {"kind": "http", "url": url, "token_file": str(tmp_path / "token")}
        agent = await stack.enter_async_context(EdgeAgent(edge_settings(tmp_path / "device", links=[link])))
        before = [await promise(agent, seed) for seed in range(LOAD)]
        backing_up = asyncio.create_task(asyncio.to_thread(command, folder, "backup", str(backup)))
        during = []
        while not backing_up.done():
            during.append(await promise(agent, LOAD + len(during)))
            await asyncio.sleep(0.2)  # a load, however busy the machine is
        await backing_up
        await first.aclose()
        after = [await promise(agent, 10_000 + seed) for seed in range(LOAD)]  # to nobody
        for lost in folder.iterdir():
            if lost.name != "gateway.toml":
                shutil.rmtree(lost) if lost.is_dir() else lost.unlink()

        await asyncio.to_thread(command, folder, "restore", str(backup))
        settings = load(folder / "gateway.toml", overrides={"api.port": httpx.URL(url).port})
        new = open_gateway(settings)
        await stack.enter_async_context(serving(new, port=settings.api.port))

        async def all_kept() -> bool:
            return agent.parts.outbox.depth == 0

        await until(all_kept, 60)
        for request_id in (*before, *during, *after):
            answer = (await agent.answer(request_id)).answer
            assert answer is not None
            assert answer.status is Status.FINAL
        assert counted(new, "recorded") == answered(new) >= LOAD
        async with httpx.AsyncClient(base_url=url, headers=shop) as client:  # its key was restored
            assert (await client.get("/v2/models/digits")).status_code == 200
