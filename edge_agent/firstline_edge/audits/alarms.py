"""Announces alarms of certificates over MQTT."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from firstline_core.errors import FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_edge.audits.certificate_states import MonitoredCertificate

log = logger(__name__)


class AlarmLink(Protocol):
    """A link that can announce an event; the MQTT link implements it."""

    async def publish_event(self, facts: Mapping[str, object]) -> None:
        """Announces an event.

        Raises:
            FirstlineError: the broker did not acknowledge it.
        """


class Alarms:
    """Alarms that are still to be announced."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[MonitoredCertificate] = asyncio.Queue()

    def put(self, monitored: MonitoredCertificate) -> None:
        """Adds the alarm of a certificate, which `announce` sends."""
        self._waiting.put_nowait(monitored)

    async def announce(self, links: Sequence[AlarmLink]) -> None:
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
