"""Three gateways as one, on one PostgreSQL, behind a shared subscription and a balancer; one of them is killed."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import psycopg
import pytest
from chaos.kills import fresh_scans
from support.broker import Broker
from support.databases import PostgreSql
from support.gateway import DIGITS
from support.keys import bearer, create_key, revoke_key
from support.pictures import ask, expected, picture, probabilities
from support.processes import TierProcess
from support.proxy import Balancer

from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.tables import open_database

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(180)]

REPLICAS = 3
DEVICES = {"over-http": "http", "over-mqtt": "mqtt"}
REFRESH_S = 2.0  # `auth.refresh_s`
LEASE_S = 6.0
_SHORT_LEASES = f"""
import sys
from firstline_gateway.__main__ import main
from firstline_gateway.jobs import jobs

assert jobs._LEASE_S > {LEASE_S} and jobs._RENEW_S > 1.0
jobs._LEASE_S, jobs._RENEW_S = {LEASE_S}, 1.0
sys.exit(main())
"""
PAUSE_S = 0.1
"""Of each application after an answer. Without one they take all of the processor, and on a busy machine the gateways'
writing threads then wait longer for it than a client waits for the store."""
SCAN_S = 0.3
"""From one promise of an application near a device to its next: so as many are made as the test needs. A device sends
those that wait for a replica slowly while its answers are late, as they all are on a busy machine."""
_SHORT_TIMEOUT = """
import sys
from firstline_edge.__main__ import main
from firstline_edge.outbox import delivery

assert delivery._TIMEOUT_S == 30.0
delivery._TIMEOUT_S = 6.0
sys.exit(main())
"""
"""A fifth of what they are in the field: what the dead replica had begun is waited for."""

_GATEWAY = """\
[api]
port = 0
open_metrics = true
[models]
directory = "{digits}"
[store]
url = "{store}"
[mqtt]
enabled = true
host = "127.0.0.1"
port = {broker}
[log]
level = "warning"
"""
_AGENT = """\
[agent]
device_id = "{device}"
state_dir = "state-{device}"
[api]
port = 0
[models]
directories = ["device"]
[breaker]
open_ms = 50
open_max_ms = 500
[cache]
disk_limit_bytes = 0
[log]
level = "warning"
[[links]]
kind = "{kind}"
"""


class Site:
    """Everything on this machine.

    Attributes:
        balancer: where applications and the device over HTTP reach the gateways.
        replicas: their processes, by URL.
        agents: each device's URL.
        key: an application's.
    """

    def __init__(
        self,
        folder: Path,
        balancer: Balancer,
        replicas: dict[str, TierProcess],
        agents: dict[str, str],
        store: StoreSection,
    ) -> None:
        self.folder = folder
        self.balancer = balancer
        self.replicas = replicas
        self.agents = agents
        self.store = store
        self.key = create_key(store, "application", "application")

    def corrected(self, device: str) -> Counter[str]:
        """How often each promise was kept, as the device wrote down."""
        lines = [
            json.loads(line)
            for path in (self.folder / f"state-{device}").glob("decisions*.jsonl*")
            for line in path.read_bytes().splitlines()
        ]
        return Counter(line["request_id"] for line in lines if line.get("event") == "corrected")

    def recorded(self) -> Counter[tuple[str, str]]:
        """Deliveries that took effect, by device and id."""
        with psycopg.connect(self.store.url.replace("+psycopg", "")) as connection:
            rows = connection.execute("SELECT device, request_id FROM deliveries").fetchall()
        return Counter((device, request_id) for device, request_id in rows)

    def count(self, jobs: str) -> int:
        """Of the jobs, those of which this holds (SQL)."""
        with psycopg.connect(self.store.url.replace("+psycopg", "")) as connection:
            found = connection.execute(f"SELECT count(*) FROM jobs WHERE {jobs}".encode()).fetchone()
        return int(found[0])

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


@asynccontextmanager
async def site(folder: Path, broker: Broker, store: StoreSection) -> AsyncIterator[Site]:
    open_database(store).close()
    shutil.copytree(DIGITS, folder / "device" / "digits", ignore=shutil.ignore_patterns("full.onnx"))
    async with AsyncExitStack() as stack:
        gateway, agent = folder / "gateway.py", folder / "agent.py"
        gateway.write_text(_SHORT_LEASES)
        agent.write_text(_SHORT_TIMEOUT)
        replicas: dict[str, TierProcess] = {}
        for number in range(REPLICAS):
            config = folder / f"gateway-{number}.toml"
            config.write_text(_GATEWAY.format(digits=DIGITS, store=store.url, broker=broker.port))
            running = TierProcess(str(gateway), "--config", config, log=config.with_suffix(".log"))
            replicas[stack.enter_context(running).url] = running
        balancer = await stack.enter_async_context(Balancer([urlsplit(url).port or 0 for url in replicas]))
        urls: dict[str, str] = {}
        for device, kind in DEVICES.items():
            token = folder / f"{device}.token"
            token.touch(mode=0o600)
            token.write_text(create_key(store, device, "device"))
            link = f'url = "{balancer.url}"\ntoken_file = "{token}"\n'
            if kind == "mqtt":
                link = f'host = "127.0.0.1"\nport = {broker.port}\n'
            config = folder / f"agent-{device}.toml"
            config.write_text(_AGENT.format(device=device, kind=kind) + link)
            running = TierProcess(str(agent), "--config", config, log=config.with_suffix(".log"))
            urls[device] = stack.enter_context(running).url
        yield Site(folder, balancer, replicas, urls, store)


class Load:
    """Applications that ask the gateways, and applications near the devices that want corrections."""

    def __init__(self, found: Site) -> None:
        self._site = found
        self._ended = False
        self.answers: list[tuple[int, httpx.Response]] = []
        self.retries = 0
        self.jobs: list[str] = []
        self.promises: dict[str, list[str]] = {device: [] for device in found.agents}
        asking = [self._ask(first) for first in range(3)]
        near = [
            self._promise(device, url, fresh_scans(seed))
            for seed, (device, url) in enumerate(2 * [*found.agents.items()])
        ]
        self._tasks = [asyncio.create_task(each) for each in [*asking, *near, self._hand_in()]]

    async def more(self, answers: int, promises: int) -> None:
        """Waits for `answers` more answers, and `promises` promises of each device."""
        target = len(self.answers) + answers
        least = {device: len(promised) + promises for device, promised in self.promises.items()}
        async with asyncio.timeout(60):
            while len(self.answers) < target or any(len(self.promises[each]) < least[each] for each in least):
                for task in self._tasks:
                    assert not task.done() or task.exception() is None, task
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._ended = True
        await asyncio.gather(*self._tasks)

    async def _ask(self, first: int) -> None:
        headers = bearer(self._site.key)
        async with httpx.AsyncClient(base_url=self._site.balancer.url, headers=headers, timeout=20) as client:
            number = first
            while not self._ended:
                try:
                    reply = await ask(client, picture(number % 50))
                except httpx.TransportError:  # the one that had it is dead: once more
                    self.retries += 1
                    continue
                if reply.status_code == 503:
                    self.retries += 1
                    await asyncio.sleep(0.05)
                    continue
                self.answers.append((number % 50, reply))
                number += 1
                await asyncio.sleep(PAUSE_S)

    async def _hand_in(self) -> None:
        """Jobs, each for whichever replica the balancer chooses."""
        async with httpx.AsyncClient(
            headers=bearer(self._site.key) | {"Prefer": "respond-async"}, timeout=20
        ) as client:
            url = f"{self._site.balancer.url}/firstline/v1/models/digits/infer"
            while not self._ended:
                try:
                    reply = await client.post(url, content=picture(1), headers={"Connection": "close"})
                except httpx.TransportError:  # whether it was taken is not known: nothing was said
                    continue
                assert reply.status_code == 202, reply.text
                self.jobs.append(reply.headers["Location"])
                await asyncio.sleep(0.2)

    async def _promise(self, device: str, url: str, contents: Iterator[bytes]) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            while not self._ended:
                content = next(contents) + device.encode()
                reply = await client.post("/firstline/v1/models/digits/infer?route=cloud&wait=first", content=content)
                assert reply.status_code == 200, reply.text
                if reply.json()["durable"]:
                    self.promises[device].append(reply.json()["request_id"])
                await asyncio.sleep(SCAN_S)


async def requests_of(url: str) -> float:
    """That a gateway answered."""
    async with httpx.AsyncClient(base_url=url) as client:
        text = (await client.get("/metrics")).text
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("firstline_gateway_requests_total{")
    )


async def test_killed_replica_loses_and_repeats_nothing(
    tmp_path: Path, mosquitto: Broker, postgresql: PostgreSql
) -> None:
    async with site(tmp_path, mosquitto, StoreSection(url=postgresql.new_database())) as found:
        load = Load(found)
        await load.more(60, 15)
        for url in found.replicas:
            assert await requests_of(url) > 5, "each replica has its part"
        killed, running = next(iter(found.replicas.items()))
        await killed_at_work(found, killed, running, load)
        await load.more(100, 25)
        await load.end()

        right = expected(list(range(50)))
        for number, reply in load.answers:
            np.testing.assert_allclose(probabilities(reply), right[number], atol=1e-5)
        assert load.retries <= 6, "only what the dead one had"

        for device, promised in load.promises.items():
            async with httpx.AsyncClient(base_url=found.agents[device], timeout=20) as client:
                async with asyncio.timeout(60):
                    while (await client.get("/firstline/v1/status")).json()["outbox"]["items"]:  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.05)
                for request_id in promised:
                    answer = (await client.get(f"/firstline/v1/answers/{request_id}")).json()
                    assert (answer["status"], answer["tier"]) == ("final", "cloud"), answer
            assert set(promised) <= set(found.corrected(device))
            assert set(found.corrected(device).values()) == {1}, "each correction had its effect once"
        recorded = found.recorded()
        assert {(device, each) for device, promised in load.promises.items() for each in promised} == set(recorded)
        assert set(recorded.values()) == {1}

        left = [url for url in found.replicas if url != killed]
        await jobs_are_done(found, load.jobs)
        assert found.count("attempts > 1"), "another took up what the dead one had begun"
        await revoked_everywhere(found, left)
        assert "Traceback" not in found.logs


async def killed_at_work(found: Site, url: str, running: TierProcess, load: Load) -> None:
    """Stops a replica again and again, until it is stopped over a job that it has begun; then it is killed."""
    headers = bearer(found.key) | {"Prefer": "respond-async"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
        while True:
            posts = [client.post("/firstline/v1/models/digits/infer", content=picture(1)) for _ in range(4)]
            taken = [reply.headers["Location"] for reply in await asyncio.gather(*posts)]
            os.kill(running.process.pid, signal.SIGSTOP)
            load.jobs += taken
            ids = ", ".join(f"'{location.rpartition('/')[2]}'" for location in taken)
            begun = f"status = 0 AND holder <> '' AND job_id IN ({ids})"
            if found.count(begun):
                await asyncio.sleep(1)  # another replica that holds the job answers it meanwhile
                if found.count(begun):
                    break
            os.kill(running.process.pid, signal.SIGCONT)
        running.kill()


async def jobs_are_done(found: Site, jobs: list[str]) -> None:
    """Each is answered by whichever replica is asked, and those of the dead one are taken up by another."""
    assert jobs
    async with httpx.AsyncClient(base_url=found.balancer.url, headers=bearer(found.key), timeout=20) as client:
        async with asyncio.timeout(30 + LEASE_S):  # until its lease ends, other replicas leave to it what it had begun
            for job in jobs:
                while (reply := await client.get(job)).status_code == 202:  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(0.1)
                assert reply.status_code == 200, reply.text


async def revoked_everywhere(found: Site, urls: list[str]) -> None:
    """A key that is revoked by way of one is refused by all, in the time that the settings say."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=bearer(found.key), timeout=20))
            for url in urls
        ]
        for client in clients:
            assert (await ask(client, picture(0))).status_code == 200
        revoke_key(found.store, "application")
        began_s = time.monotonic()
        while {(await ask(client, picture(0))).status_code for client in clients} != {401}:
            assert time.monotonic() - began_s < REFRESH_S + 2, "and something for a busy machine"
            await asyncio.sleep(0.05)
