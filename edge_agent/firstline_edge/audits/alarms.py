"""Announces alarms of certificates over MQTT."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firstline_core.errors import FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_edge.audits.records import Record

if TYPE_CHECKING:  # paho takes memory, which a device without MQTT need not spend
    from firstline_edge.cloud.mqtt_link import MqttLink

log = logger(__name__)


async def announce_alarms(alarms: asyncio.Queue[Record], links: Sequence[MqttLink]) -> None:
    """Announces each alarm over every link, until it is cancelled."""
    while True:
        record = await alarms.get()
        facts = {
            "event": "contract_alarm",
            "model": record.model,
            "version": record.version,
            "cause": record.cause,
            "threshold": record.tightened,
            "escalates_all": record.escalates_all,
        }
        for link in links:
            try:
                await link.publish_event(facts)
            except FirstlineError as error:  # the birth message says it at the next connection
                log.info("alarm not announced over MQTT", error=error.message)
