"""The rehearsal: a gateway under load is backed up, destroyed and restored, and its devices go on."""

import asyncio
import shutil
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from support.agent import edge_settings
from support.deliveries import all_final, answered, counted, picture, promise
from support.forks import run_forked
from support.gateway import DIGITS, http_link, serving
from support.identities import Device, invite
from support.keys import bearer, create_key
from support.waiting import until

from firstline_core.ids import new_request_id
from firstline_core.protocol.enrolment import parse_join_token
from firstline_core.types import InferRequest, Route, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.identity.enrolment import join_gateway
from firstline_edge.identity.files import IdentityFiles
from firstline_edge.settings.load import load as load_edge
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.settings.load import load

LOAD = 8
ALONE = 4  # promises without callers, all delivered at once when the gateway is back; more would be paced
SOON = {"breaker.open_ms": 100, "breaker.open_max_ms": 500}
TLS = """
[api]
port = 0
[auth]
refresh_s = 0.2
[tls]
enabled = true
hosts = ["127.0.0.1"]
"""


def command(folder: Path, *arguments: str) -> None:
    done = run_forked("firstline_gateway", *arguments, "--config", folder / "gateway.toml")
    assert done.returncode == 0, done.stderr


def lose(folder: Path) -> None:
    """All that a gateway wrote."""
    for lost in folder.iterdir():
        if lost.name != "gateway.toml":
            shutil.rmtree(lost) if lost.is_dir() else lost.unlink()


async def restored(folder: Path, backup: Path, url: str, stack: AsyncExitStack) -> Gateway:
    """The gateway of a backup, served where the lost one was."""
    await asyncio.to_thread(command, folder, "restore", str(backup))
    settings = load(folder / "gateway.toml", overrides={"api.port": httpx.URL(url).port})
    gateway = open_gateway(settings)
    await stack.enter_async_context(serving(gateway, port=settings.api.port))
    return gateway


async def test_promises_are_kept_by_a_restored_gateway(tmp_path: Path) -> None:
    folder, backup = tmp_path / "gateway", tmp_path / "gateway.backup"
    folder.mkdir()
    (folder / "gateway.toml").write_text(f'[api]\nport = 0\n[models]\ndirectory = "{DIGITS}"\n')
    settings = load(folder / "gateway.toml")
    shop = bearer(create_key(settings.store, "shop"))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        old = open_gateway(settings)
        url = await first.enter_async_context(serving(old))
        link = http_link(settings.store, url, "cam", tmp_path)
        agent = await stack.enter_async_context(EdgeAgent(edge_settings(tmp_path / "device", links=[link], **SOON)))
        before = [await promise(agent, seed) for seed in range(LOAD)]
        backing_up = asyncio.create_task(asyncio.to_thread(command, folder, "backup", str(backup)))
        during = []
        while not backing_up.done():
            during.append(await promise(agent, LOAD + len(during)))
            await asyncio.sleep(0.2)  # a load, however busy the machine is
        await backing_up
        await until(lambda: agent.outbox.depth == 0, 60)
        await first.aclose()
        after = [await promise(agent, 10_000 + seed) for seed in range(ALONE)]
        lose(folder)

        new = await restored(folder, backup, url, stack)
        await all_final(agent, [*before, *during, *after], timeout_s=60)
        assert counted(new, "recorded") == answered(new) >= ALONE
        async with httpx.AsyncClient(base_url=url, headers=shop) as client:  # its key was restored
            assert (await client.get("/v2/models/digits")).status_code == 200


async def test_devices_continue_with_a_restored_gateway(tmp_path: Path) -> None:
    folder, backup = tmp_path / "gateway", tmp_path / "gateway.backup"
    folder.mkdir()
    (folder / "gateway.toml").write_text(f'{TLS}[models]\ndirectory = "{DIGITS}"\n')
    settings = load(folder / "gateway.toml")
    operator = bearer(create_key(settings.store, "ops", "operator"))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        old = open_gateway(settings)
        url = await first.enter_async_context(serving(old))
        authority = old.identity.folder.open().active
        believed = ssl.create_default_context(cadata=authority.pem)
        keeper = await stack.enter_async_context(httpx.AsyncClient(base_url=url, verify=believed, headers=operator))
        cam, gone, late = await invite(keeper, "cam", "gone", "late")
        revoked = Device(tmp_path / "gone", url, authority.pem, "gone")
        assert (await revoked.enrol(gone)).is_success
        assert (await keeper.post("/firstline/v1/devices/gone/revoke")).status_code == 200
        state_dir = tmp_path / "device"
        await join_gateway(url, parse_join_token(cam), IdentityFiles(state_dir))
        overrides = {
            "agent.state_dir": str(state_dir),
            "models.directories": [str(DIGITS)],
            "audit.per_hour": 0.0,
            **SOON,
        }
        agent = await stack.enter_async_context(EdgeAgent(load_edge(None, environ={}, overrides=overrides)))
        await asyncio.to_thread(command, folder, "backup", str(backup))
        await first.aclose()
        promised = [await promise(agent, seed) for seed in range(ALONE)]
        lose(folder)

        new = await restored(folder, backup, url, stack)
        assert new.identity.folder.open().active.pem == authority.pem
        await all_final(agent, promised)  # admitted by the certificate that it had
        await agent.renewal.renew()  # the authority's key is there
        request = InferRequest("digits", (picture(99),), new_request_id(), route=Route.CLOUD, principal="local")
        answer = (await agent.data_plane.infer(request)).answer
        assert answer.tier is Tier.CLOUD
        async with revoked.client() as client:
            assert (await client.get("/v2")).status_code == 401
        assert (await Device(tmp_path / "late", url, authority.pem, "late").enrol(late)).is_success
        assert (await Device(tmp_path / "again", url, authority.pem, "gone").enrol(gone)).status_code == 401
        listed = await keeper.get("/firstline/v1/devices")  # by a key of before
        assert {"cam", "gone", "late"} <= {device["device"] for device in listed.json()["devices"]}, listed.text
