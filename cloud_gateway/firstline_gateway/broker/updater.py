"""How a revoked device leaves the broker.

Mosquitto looks at revocations when a connection is made. An open connection continues: with the new access list it can
neither write nor receive, but it stays open. A broker ends the older of two sessions of one client id
(MQTT 5, section 3.1.4), and on the gateways' listener client ids are free: so the gateway takes the device's, and
leaves at once. The device cannot come back, for its certificate is on the list by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.protocol.mqtt_connection import Connection
from firstline_core.protocol.mqtt_messages import Message, MqttSettings
from firstline_core.telemetry.logs import logger
from firstline_gateway.background import PeriodicTask
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.identity.credentials import KnownCredentials

log = logger(__name__)


async def end_sessions(settings: MqttSettings, devices: Iterable[str]) -> list[str]:
    """Ends the sessions of devices, one after the other up to the first that fails, and what the broker kept for them.

    Args:
        settings: of the gateway's own connection.
        devices: their names, which are their client ids.

    Returns:
        Those of which the broker did not say so.
    """
    left = list(devices)
    while left:
        device = left[0]
        connection = Connection(replace(settings.renewed(), client_id=device), will=None, on_message=_ignore)
        try:
            await connection.open()
        except FirstlineError as error:
            log.warning("revoked devices' MQTT sessions not ended", devices=len(left), error=error.message)
            return left
        finally:
            await connection.close()
        del left[0]
    return left


def _ignore(message: Message) -> None:
    message.ack()


# Mosquitto handles a signal within a tenth of a second; `run.sh` looks once a second.
_RELOAD_S = 1.5
# Certificates that are about to expire, and authorities that a command replaced, are noticed within this time.
_LOOK_S = 600.0
# How soon sessions that could not be ended are tried again: the broker may only be unreachable from here.
_RETRY_S = 30.0


@dataclass(eq=False)
class BrokerUpdater:
    """Keeps the files of one gateway's broker up to date. Used on its event loop.

    Args:
        folder: the broker's.
        authorities: the gateway's.
        credentials: devices and certificates that are refused.
        connect: returns the settings of the gateway's own connection to the broker, by which sessions are ended.
        refresh_s: how often changes of the credentials are looked for.
        clock: dates certificates.

    Attributes:
        task: looks for changes.
    """

    folder: BrokerFolder
    authorities: AuthorityFolder
    credentials: KnownCredentials
    connect: Callable[[], MqttSettings]
    refresh_s: float
    clock: Clock

    def __post_init__(self) -> None:
        self._open_sessions: set[str] = set()  # devices whose sessions are still to be ended
        self._applied_version = -1
        self._looked_s = self.clock.monotonic_s()
        self.task = PeriodicTask("broker files", self._update, interval_s=self.refresh_s, clock=self.clock)

    def refresh(self) -> set[str]:
        """Updates the folder, and returns the devices that are refused since, whose sessions are to be ended. Blocks.

        Raises:
            ConfigError: the folder cannot be written.
        """
        now_s = self.clock.wall_s()
        refused = self.folder.refresh(self.authorities.open(), self.credentials, now_s)
        self._open_sessions |= refused
        return refused

    async def _update(self) -> None:
        """Updates the folder after a change, and ends the sessions of devices that are refused since.

        Raises:
            FirstlineError: the folder cannot be written.
        """
        now_s, version = self.clock.monotonic_s(), self.credentials.version
        if version == self._applied_version and now_s - self._looked_s < (_RETRY_S if self._open_sessions else _LOOK_S):
            return
        self._looked_s = now_s
        await asyncio.to_thread(self.refresh)
        self._applied_version = version
        if self._open_sessions:
            log.info("revoked devices refused by broker", devices=len(self._open_sessions))
            await self.clock.sleep(_RELOAD_S)
            self._open_sessions = set(await end_sessions(self.connect(), sorted(self._open_sessions)))
