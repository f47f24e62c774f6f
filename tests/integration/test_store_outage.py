"""A store that is away, hangs, is full or read-only: inference goes on, promises wait, and nothing needs a restart."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from support.databases import PostgreSql
from support.deliveries import counted, delivery, same
from support.disk import SmallDisk, small_disk
from support.faulty_disk import quick_folder, run_on
from support.gateway import DIGITS, serving
from support.identities import csr
from support.inference import post, read
from support.proxy import FINE, ChaosProxy, Network
from support.waiting import until

from firstline_core.fleet.rest import BRAKE_PATH, CONTRACTS_PATH
from firstline_core.fleet.rollout_documents import ROLLOUTS_PATH
from firstline_core.protocol.enrolment import ENROL_PATH
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.settings.load import load
from firstline_gateway.store import store as store_module


@asynccontextmanager
async def line(url: str) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    overrides = {"auth.mode": "off", "models.directory": str(DIGITS), "store.url": url}
    gateway = await asyncio.to_thread(open_gateway, load(None, overrides=overrides))
    async with serving(gateway) as address, httpx.AsyncClient(base_url=address, timeout=20) as client:
        yield gateway, client


async def refused_but_serving(gateway: Gateway, client: httpx.AsyncClient, seed: int) -> None:
    """Inference goes on; a delivery is to come again; and the gateway says so."""
    request = delivery(seed)
    live = replace(request, promised=False)
    read(await post(client, live))
    reply = await post(client, request)
    assert (reply.status_code, reply.json()["code"]) == (503, "store_unavailable"), reply.text
    assert int(reply.headers["Retry-After"]) >= 1
    assert "://" not in reply.text, "callers do not see the database's address"
    read(await post(client, live))
    await asyncio.gather(asyncio.wrap_future(gateway.contracts.refresh()), return_exceptions=True)
    shown = (await client.get("/firstline/v1/store")).json()
    assert not shown["up"]
    assert "refuses" in shown["problem"]


def store_up(gateway: Gateway) -> float | None:
    return gateway.metrics.registry.get_sample_value("firstline_gateway_store_up")


async def recovers(gateway: Gateway, client: httpx.AsyncClient, seed: int) -> None:
    request = delivery(seed)
    async with asyncio.timeout(20):
        while (reply := await post(client, request)).status_code == 503:  # noqa: ASYNC110 (a device asks again, too)
            await asyncio.sleep(0.1)
    assert same(read(reply), read(await post(client, request)))
    assert store_up(gateway) == 1


async def test_postgresql_may_crash_and_return(postgresql_installed: None) -> None:
    with PostgreSql("fsync=on") as own:
        async with line(own.new_database()) as (gateway, client):
            before = delivery(0)
            first = read(await post(client, before))
            own.stop(kill=True)
            await refused_but_serving(gateway, client, 1)
            assert store_up(gateway) == 0
            own.start()
            await recovers(gateway, client, 1)
            assert same(first, read(await post(client, before)))  # what was answered outlived it


async def test_postgresql_may_become_read_only(postgresql: PostgreSql) -> None:
    url = postgresql.new_database()
    name = url.rpartition("/")[2]

    def set_read_only(value: str) -> None:
        with psycopg.connect(postgresql.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}".encode())
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))

    async with line(url) as (gateway, client):
        read(await post(client, delivery(0)))
        set_read_only("on")
        await refused_but_serving(gateway, client, 1)
        set_read_only("off")
        await recovers(gateway, client, 1)


async def test_silent_database_delays_no_request(postgresql: PostgreSql, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ChaosProxy(postgresql.port) as network:
        url = postgresql.new_database().replace(f":{postgresql.port}/", f":{network.port}/")
        async with line(url) as (gateway, client):
            read(await post(client, delivery(0)))
            monkeypatch.setattr(store_module, "PATIENCE_S", 0.3)
            await network.become(Network(stalled=True))
            async with asyncio.timeout(15):
                reply = await post(client, delivery(1))
            assert reply.json()["code"] == "store_unavailable"
            async with asyncio.timeout(4):  # left alone for now
                assert (await post(client, delivery(2))).status_code == 503
            await until(lambda: store_up(gateway) == 0)
            assert "has not answered" in (await client.get("/firstline/v1/store")).json()["problem"]
            read(await post(client, replace(delivery(3), promised=False)))
            async with asyncio.timeout(15):
                shown = await asyncio.gather(*(client.get(f"{CONTRACTS_PATH}{path}") for path in ("", "/digits")))
            assert {reply.json()["code"] for reply in shown} == {"store_unavailable"}
            rollout = {"bundle": "digits", "version": 1, "manifest_sha256": "a" * 64}
            async with asyncio.timeout(15):
                changes = await asyncio.gather(
                    client.put(BRAKE_PATH, json={"escalations_per_hour": 0, "reason": "The link is full."}),
                    client.post(ROLLOUTS_PATH, json=rollout),
                    client.post(f"{ROLLOUTS_PATH}/01a2019f-6dd1-704a-a261-d1635d589c27/pause"),
                    client.delete(f"{CONTRACTS_PATH}/digits/versions/1"),
                )
            await network.become(FINE)
            assert [reply.status_code for reply in changes] == [503] * 4, [reply.text for reply in changes]
            assert not any("://" in reply.text for reply in (*shown, *changes))
            assert all("whether the change was made, before you send" in reply.text for reply in changes)
            await recovers(gateway, client, 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", size_mib=8) as found:
        yield found


async def test_a_disk_may_be_full_and_have_room_again(disk: SmallDisk) -> None:
    async with line(f"sqlite:///{disk.path / 'gateway.db'}") as (gateway, client):
        before = delivery(0)
        first = read(await post(client, before))
        disk.fill()
        # A write-ahead log that was longer once has a little room left in it.
        for seed in range(1, 300):
            if (await post(client, delivery(seed))).status_code == 503:
                break
        await refused_but_serving(gateway, client, 1000)
        assert counted(gateway, "refused") >= 2
        disk.free()
        await recovers(gateway, client, 1000)
        assert same(first, read(await post(client, before)))


# A disk that turns read-only under a gateway, as ext4 does after an error, and is well again.
_READ_ONLY = """
import asyncio, errno, json, sys
from msgspec.structs import replace
import httpx
from support.deliveries import delivery, same
from support.inference import post, read
from support.faulty_disk import fail
from support.gateway import DIGITS, serving
from firstline_core.telemetry.logs import configure
from firstline_gateway.app import open_gateway
from firstline_gateway.settings.load import load

async def main():
    url = f"sqlite:///{sys.argv[1]}/gateway.db"
    gateway = open_gateway(load(None, overrides={"auth.mode": "off", "models.directory": str(DIGITS), "store.url": url,
                                                 "identity.directory": f"{sys.argv[1]}/identity"}))
    async with serving(gateway) as address, httpx.AsyncClient(base_url=address, timeout=20) as client:
        first, second = delivery(0), delivery(1)
        before = read(await post(client, first))
        await client.post("/firstline/v1/devices", json={"devices": ["cam"]})
        fail(1, errno.EROFS, times=-1)
        refused = [await post(client, second)]
        refused.append(await client.post("/firstline/v1/devices", json={"devices": ["yard"]}))
        live = read(await post(client, replace(second, promised=False)))
        shown = (await client.get("/firstline/v1/store")).json()
        await asyncio.sleep(1.1)  # after which the store is asked again
        again = await post(client, first)
        fail(-1, 0)
        async with asyncio.timeout(20):
            while (reply := await post(client, second)).status_code == 503:
                await asyncio.sleep(0.1)
        print(json.dumps({
            "refused": [(one.status_code, one.json()["error"]) for one in refused],
            "shown": shown,
            "repeated": again.status_code == 200 and same(read(again), before),
            "recovered": same(read(reply), read(await post(client, second))),
        }))

sys.stderr = sys.stdout  # what is logged
configure()
asyncio.run(main())
"""


def test_a_disk_may_turn_read_only_under_a_gateway() -> None:
    with quick_folder() as folder:
        root = folder / "disk"
        root.mkdir()
        output, _ = run_on(root, _READ_ONLY, record=False)
    logged = [line for line in output.splitlines() if not line.startswith("{")]
    (result,) = (line for line in output.splitlines() if line.startswith("{"))
    found = json.loads(result)
    assert [status for status, _ in found["refused"]] == [503, 503]
    for _, sentence in found["refused"]:
        assert sentence.startswith("The gateway's store refuses; the gateway's log has the reason.")
        assert sentence.endswith("Is it away, full or read-only?")
    assert not found["shown"]["up"]
    assert "read-only?" in found["shown"]["problem"]
    assert found["repeated"], "what was answered can still be read"
    assert found["recovered"]
    assert "Traceback" not in output
    assert f"The store sqlite:///{root}/gateway.db refuses: " in output
    assert sum("database refuses writes" in line for line in logged) == 1, output


async def test_silent_database_blocks_no_thread(
    postgresql: PostgreSql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown callers get a sentence while the store is away, and the gateway stops on a signal."""
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.3)
    async with ChaosProxy(postgresql.port) as network:
        url = postgresql.new_database().replace(f":{postgresql.port}/", f":{network.port}/")
        directory = {"identity.directory": str(tmp_path / "identity")}
        found = load(None, overrides={"models.directory": str(DIGITS), "store.url": url, **directory})
        gateway = await asyncio.to_thread(open_gateway, found)
        async with serving(gateway) as address, httpx.AsyncClient(base_url=address, timeout=20) as client:
            await network.become(Network(stalled=True))
            body = {"secret": "guess", "csr": csr(ec.generate_private_key(ec.SECP256R1()))}
            async with asyncio.timeout(10):
                replies = await asyncio.gather(
                    *(client.post(ENROL_PATH, json=body) for _ in range(40)),
                    *(client.get("/v2", headers={"Authorization": "Bearer guess"}) for _ in range(10)),
                )
            assert {reply.json()["code"] for reply in replies} == {"store_unavailable"}
            async with asyncio.timeout(1):
                assert await asyncio.to_thread(lambda: True), "a thread for what has nothing to do with the store"
            await network.become(FINE)


async def test_gateway_stops_while_its_database_is_silent(
    postgresql: PostgreSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChaosProxy(postgresql.port) as network:
        url = postgresql.new_database().replace(f":{postgresql.port}/", f":{network.port}/")
        overrides = {"auth.mode": "off", "models.directory": str(DIGITS), "store.url": url}
        gateway = await asyncio.to_thread(open_gateway, load(None, overrides=overrides))
        await gateway.start()
        monkeypatch.setattr(store_module, "PATIENCE_S", 0.3)
        await network.become(Network(stalled=True))
        await until(lambda: store_up(gateway) == 0)
        async with asyncio.timeout(15):
            await gateway.drain(5)
            assert not await gateway.close(0.3)
            await asyncio.get_running_loop().shutdown_default_executor()  # as the end of the process waits for it
