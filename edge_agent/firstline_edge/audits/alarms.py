"""Announces alarms of certificates over MQTT."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firstline_core.errors import FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_edge.audits.certificate_states import MonitoredCertificate

if TYPE_CHECKING:  # paho takes memory, which a device without MQTT need not spend
    from firstline_edge.cloud.mqtt_link import MqttLink

log = logger(__name__)


class Alarms:
    """Alarms that are still to be announced."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[MonitoredCertificate] = asyncio.Queue()

    def put(self, monitored: MonitoredCertificate) -> None:
        """Adds the alarm of a certificate, which `announce` sends."""
        self._waiting.put_nowait(monitored)

    async def announce(self, links: Sequence[MqttLink]) -> None:
        """Announces each alarm over every link, until it is cancelled."""
        while True:
            record = (await self._waiting.get()).record
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
