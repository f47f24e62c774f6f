"""Corrections take effect once, end to end: lost answers, a gateway that dies between commit and answer, replicas."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from support.agent import edge_settings
from support.broker import Broker, free_port
from support.databases import PostgreSql
from support.deliveries import all_final, answered, counted, delivery, picture, promise, same
from support.gateway import DIGITS, serving_gateway
from support.inference import post, read
from support.mqtt_device import device_at
from support.processes import TierProcess
from support.proxy import FINE, ChaosProxy, Network
from support.waiting import until

from firstline_core.types import InferRequest
from firstline_edge.app import EdgeAgent

DELIVERIES = 5  # one, and as many as are sent at once when a link is back: the next would wait for 16 s


async def test_lost_answers_are_repeated(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateway, address = await stack.enter_async_context(serving_gateway(tmp_path, auth__mode="off"))
        network = await stack.enter_async_context(ChaosProxy(httpx.URL(address).port or 0))
        link = {"kind": "http", "url": f"http://127.0.0.1:{network.port}"}
        agent = await stack.enter_async_context(EdgeAgent(edge_settings(tmp_path / "device", links=[link])))
        await all_final(agent, [await promise(agent, 0)])  # the link is known to work
        await network.become(Network(truncate_bytes=0))
        promises = (promise(agent, seed) for seed in range(1, DELIVERIES))
        request_ids = await asyncio.gather(*promises)

        await until(lambda: counted(gateway, "recorded") > 1 and not agent.links.chain.available)
        assert agent.outbox.depth == DELIVERIES - 1
        await network.become(FINE)
        await all_final(agent, request_ids)
        assert counted(gateway, "recorded") == answered(gateway) == DELIVERIES
        assert counted(gateway, "repeated") >= 1


# The first delivery is on the disk when this gateway dies of it.
_DIES_BEFORE_IT_ANSWERS = """
import os, signal, sys
from firstline_gateway.__main__ import main
from firstline_gateway.serving.deliveries.deliveries import Deliveries

put = Deliveries._put

async def put_and_die(self, *arguments):
    await put(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)

Deliveries._put = put_and_die
sys.exit(main())
"""


async def test_delivery_committed_before_a_kill_is_answered_again(tmp_path: Path) -> None:
    port, request, dying = free_port(), delivery(1), tmp_path / "dying.py"
    dying.write_text(_DIES_BEFORE_IT_ANSWERS)
    environ = os.environ | {
        "FIRSTLINE_GATEWAY_AUTH__MODE": "off",
        "FIRSTLINE_GATEWAY_MODELS__DIRECTORY": str(DIGITS),
        "FIRSTLINE_GATEWAY_STORE__URL": f"sqlite:///{tmp_path / 'gateway.db'}",
    }
    log = tmp_path / "gateway.log"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        with TierProcess(str(dying), log=log, port=port, environ=environ) as gateway:
            with pytest.raises(httpx.TransportError):
                await post(client, request)
            assert gateway.process.wait(20) == -signal.SIGKILL
        with TierProcess("firstline_gateway", log=log, port=port, environ=environ):
            first, again = read(await post(client, request)), read(await post(client, request))
            metrics = (await client.get("/metrics")).text.splitlines()
    assert same(first, again)
    assert 'firstline_gateway_deliveries_total{result="repeated"} 2.0' in metrics
    assert not any(line.startswith("firstline_gateway_requests_total{") for line in metrics)  # nothing ran


async def test_replicas_answer_each_delivery_once(tmp_path: Path, postgresql: PostgreSql) -> None:
    shared = {"auth__mode": "off", "store__url": postgresql.new_database()}
    async with (
        serving_gateway(tmp_path, **shared) as (one, here),
        serving_gateway(tmp_path, **shared) as (other, there),
        httpx.AsyncClient() as client,
    ):
        for seed in range(20):
            request = delivery(seed)
            replies = await asyncio.gather(*(post(client, request, address) for address in (here, there, here, there)))
            first, *others = map(read, replies)
            assert all(same(first, again) for again in others)
        assert counted(one, "recorded") + counted(other, "recorded") == 20
        request = delivery(99)
        first = read(await post(client, request, here))
        ran = answered(other)
        assert same(first, read(await post(client, request, there)))
        assert answered(other) == ran
        other_content = InferRequest("digits", (picture(98),), request.request_id, version="1", promised=True)
        reply = await post(client, other_content, there)
        assert (reply.status_code, reply.json()["code"]) == (409, "request_id_reused")


@pytest.mark.mosquitto
async def test_delivery_takes_effect_once_over_mqtt(mosquitto: Broker, tmp_path: Path) -> None:
    async with (
        serving_gateway(tmp_path, broker=mosquitto, auth__mode="off") as (gateway, _),
        device_at(mosquitto, "cam") as device,
    ):
        request = delivery(1)
        assert same(await device.infer(request), await device.infer(request))
        assert (counted(gateway, "recorded"), counted(gateway, "repeated"), answered(gateway)) == (1, 1, 1)
