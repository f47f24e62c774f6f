"""What an agent promised, over restarts, changed settings, and brokers that hang or go."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.agent import edge_settings
from support.broker import Broker, free_port
from support.escalations import request, response
from support.gateway import mqtt_link
from support.mqtt_device import hearing
from support.waiting import until

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.protocol import mqtt_messages
from firstline_core.types import Status
from firstline_edge.app import EdgeAgent
from firstline_edge.cloud.links import open_links
from firstline_edge.outbox.announcer import Announcer
from firstline_edge.outbox.database import Receiver
from firstline_edge.outbox.outbox import Outbox, OutboxItem

RESULTS = "firstline/v1/device-1/results"


async def test_promise_expires_without_links(tmp_path: Path) -> None:
    link = {"kind": "http", "url": f"http://127.0.0.1:{free_port()}"}
    infer_request = request()
    async with EdgeAgent(edge_settings(tmp_path, links=[link])) as agent:
        item = OutboxItem(infer_request, (0,), response(infer_request, Status.PROVISIONAL), SYSTEM_CLOCK.wall_s())
        await agent.outbox.put(item)
    async with EdgeAgent(edge_settings(tmp_path, outbox__max_age_s=0.05)) as agent:
        await until(lambda: agent.outbox.depth == 0)
        answer = (await agent.outbox.answer(infer_request.request_id, "local")).answer
    assert answer.status is Status.EXPIRED


class House:
    """An application that hears the corrections of one device."""

    def __init__(self, broker: Broker, tmp_path: Path) -> None:
        self.broker = broker
        self.path = tmp_path / "outbox" / "outbox.db"
        self.settings = edge_settings(tmp_path / "state", links=[mqtt_link(broker)])

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Callable[[], list[str]]]:
        """Yields a function that returns the ids of the corrections heard."""
        async with hearing(self.broker, RESULTS) as messages:
            yield lambda: [mqtt_messages.read_response(message).answer.request_id for message in messages]

    @contextlib.asynccontextmanager
    async def announcing(self) -> AsyncIterator[Outbox]:
        outbox = Outbox(self.path, announcing=lambda: [Receiver.APPLICATIONS])
        links = await open_links(self.settings, dict, SYSTEM_CLOCK)
        receiver, rng = Receiver.APPLICATIONS, random.Random(1)
        announcer = Announcer(outbox, receiver, links.publish, links.wait_connected, SYSTEM_CLOCK, rng, timeout_s=0.2)
        task = asyncio.create_task(announcer.run())
        await asyncio.wait_for(links.wait_connected(), 5)
        yield outbox
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await links.chain.close()
        outbox.close()


async def corrected(outbox: Outbox) -> str:
    escalated = request()
    await outbox.put(OutboxItem(escalated, (0,), response(escalated, Status.PROVISIONAL), SYSTEM_CLOCK.wall_s()))
    await outbox.finish(escalated.request_id, response(escalated))
    return escalated.request_id


@pytest.fixture
def house(mosquitto: Broker, tmp_path: Path) -> House:
    return House(mosquitto, tmp_path)


@pytest.mark.mosquitto
async def test_correction_is_announced_after_broker_outages(house: House) -> None:
    process = house.broker._process
    async with house.announcing() as outbox:
        async with house.listening() as announced_ids:
            process.send_signal(signal.SIGSTOP)
            while_hung = await corrected(outbox)
            await asyncio.sleep(0.5)  # longer than an announcement may take
            assert announced_ids() == []
            process.send_signal(signal.SIGCONT)
            await until(lambda: while_hung in announced_ids())
        house.broker.kill()
        while_away = await corrected(outbox)
        house.broker.start()
        async with house.listening() as announced_ids:
            last = await corrected(outbox)
            await until(lambda: {while_away, last} <= set(announced_ids()))


@pytest.mark.mosquitto
async def test_corrections_from_before_a_kill_are_announced_after_it(house: House) -> None:
    outbox = Outbox(house.path, announcing=lambda: [Receiver.APPLICATIONS])
    before = await corrected(outbox)
    outbox.close()
    async with house.listening() as announced_ids, house.announcing():
        await until(lambda: announced_ids() == [before])
