"""The gateway answers the recorded traffic of a device, byte for byte as it was sent over HTTP and MQTT 5.

`http.bin` is everything that one device sent on one connection: a health check, escalations and an audit. `mqtt.bin`
is everything that one device sent its broker: CONNECT, SUBSCRIBE, birth and one escalation.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import insert
from support.audits import certified_digits
from support.broker import Broker
from support.databases import sqlite_store
from support.gateway import serving_gateway, wait_for_gauge
from support.mqtt_device import hearing
from support.raw_http import connected, next_reply
from support.waiting import until

from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt_messages import Topics
from firstline_core.types import Status
from firstline_gateway.app import Gateway
from firstline_gateway.identity.enrolment import next_version
from firstline_gateway.identity.keys import key_hash
from firstline_gateway.identity.tables import API_KEYS
from firstline_gateway.tables import open_database

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
_KEY = "flt_n6yJ6h4Lx_XPS2qbbXJRXhBOx4VtCSmQ8E8FBoHCcCk"  # the bearer token in http.bin
_AUDITS = 1  # in http.bin


@asynccontextmanager
async def gateway_in(folder: Path, broker: Broker | None = None) -> AsyncIterator[tuple[Gateway, str]]:
    certified_digits(folder / "models")
    store = sqlite_store(folder)
    database = open_database(store)
    with database.begin() as connection:
        values = {"sha256": key_hash(_KEY), "name": "cam", "kind": "device", "scopes": "infer", "person": ""}
        connection.execute(insert(API_KEYS).values(**values, created_s=0.0, changed=next_version(connection)))
    database.close()
    async with serving_gateway(folder, broker=broker, models__directory=str(folder / "models")) as found:
        yield found


async def test_recorded_http_requests_are_answered(tmp_path: Path) -> None:
    sent = (RECORDED / "http.bin").read_bytes()
    requests = sent.count(b" HTTP/1.1\r\n")
    assert requests > 3
    async with gateway_in(tmp_path) as (gateway, url):
        async with connected(url) as (reader, writer):
            writer.write(sent)
            statuses = [(await next_reply(reader)).status for _ in range(requests)]
        assert statuses == [200] * requests
        await asyncio.wrap_future(gateway.contracts.refresh())
        (pool,) = gateway.contracts.pools()
        assert pool.state.audits == _AUDITS


@pytest.mark.mosquitto
async def test_recorded_mqtt_requests_are_answered(tmp_path: Path, mosquitto: Broker) -> None:
    async with gateway_in(tmp_path, mosquitto) as (gateway, _), hearing(mosquitto, Topics("cam").response) as inbox:
        await wait_for_gauge(gateway, "firstline_gateway_mqtt_connected")
        _, writer = await asyncio.open_connection(mosquitto.host, mosquitto.port)
        writer.write((RECORDED / "mqtt.bin").read_bytes())
        await until(lambda: bool(inbox))
        assert mqtt_messages.read_response(inbox[0]).answer.status is Status.FINAL
        writer.close()
        await writer.wait_closed()
