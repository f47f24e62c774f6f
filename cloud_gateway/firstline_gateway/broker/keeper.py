"""How a revoked device leaves the broker.

Mosquitto looks at revocations when a connection is made. An open connection continues: with the new access list it can
neither write nor receive, but it stays open. A broker ends the older of two sessions of one client id
(MQTT 5, section 3.1.4), and on the gateways' listener client ids are free: so the gateway takes the device's, and
leaves at once. The device cannot come back, for its certificate is on the list by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from firstline_core.clock import Clock, end_tasks
from firstline_core.errors import FirstlineError
from firstline_core.protocol.mqtt_connection import Connection
from firstline_core.protocol.mqtt_messages import Message, MqttSettings
from firstline_core.telemetry.logs import logger
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.identity.authorities import Authorities
from firstline_gateway.identity.credentials import RevokedCertificate

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
        connection = Connection(
            replace(settings.renewed(), client_id=device),
            will=None,
            clean_start=True,
            session_expiry_s=0,
            on_message=_ignore,
        )
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


# Mosquitto sees to a signal within a tenth of a second; `run.sh` looks once a second.
_RELOAD_S = 1.5
# Nothing tells of a certificate that is about to end, or of another authority.
_LOOK_S = 600.0
# How soon sessions are ended of which the broker has not said that they are: it may only be out of reach from here.
_RETRY_S = 30.0

log = logger(__name__)


class Revocations(Protocol):
    """The devices and certificates that are refused (`identity.credentials.Credentials`)."""

    @property
    def version(self) -> int:
        """Changes with each change of a device or a certificate."""
        ...

    @property
    def revoked_devices(self) -> Collection[str]:
        """The names of revoked devices."""
        ...

    def revoked_certificates(self) -> Sequence[RevokedCertificate]:
        """Returns the revoked certificates."""
        ...


class BrokerKeeper:
    """Of one gateway; used on its event loop.

    Args:
        folder: the broker's.
        authorities: returns the current authorities; blocks.
        revocations: devices and certificates that are refused.
        refresh_s: how often the version is looked at.
        clock: dates certificates.
    """

    def __init__(
        self,
        folder: BrokerFolder,
        *,
        authorities: Callable[[], Authorities],
        revocations: Revocations,
        refresh_s: float,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._authorities = authorities
        self._revocations = revocations
        self._refresh_s = refresh_s
        self._clock = clock
        self._open_sessions: set[str] = set()  # devices whose sessions are still to be ended
        self._task: asyncio.Task[None] | None = None

    def refresh(self) -> set[str]:
        """Brings the folder up to date, and notes whose sessions are to be ended: the devices refused since. Blocks.

        Raises:
            ConfigError: the folder cannot be written.
        """
        now_s = self._clock.wall_s()
        refused = self._folder.refresh(
            self._authorities(), self._revocations.revoked_certificates(), self._revocations.revoked_devices, now_s
        )
        self._open_sessions |= refused
        return refused

    def start(self, connection: MqttSettings) -> None:
        """Begins to keep up.

        Args:
            connection: the gateway's own to the broker, by which sessions are ended.
        """
        self._task = asyncio.create_task(self._keep(connection))

    async def close(self) -> None:
        await end_tasks(self._task)

    async def _keep(self, connection: MqttSettings) -> None:
        seen, looked_s = -1, self._clock.monotonic_s()
        while True:
            now_s, version = self._clock.monotonic_s(), self._revocations.version
            if version == seen and now_s - looked_s < (_RETRY_S if self._open_sessions else _LOOK_S):
                await self._clock.sleep(self._refresh_s)
                continue
            looked_s = now_s
            try:
                await asyncio.to_thread(self.refresh)
                seen = version
                if self._open_sessions:
                    log.info("revoked devices refused by broker", devices=len(self._open_sessions))
                    await self._clock.sleep(_RELOAD_S)
                    self._open_sessions = set(await end_sessions(connection, sorted(self._open_sessions)))
            except FirstlineError as error:
                log.error("broker files outdated", error=error.message)
                await self._clock.sleep(self._refresh_s)
            except Exception:  # the outermost loop of a task that must never end
                log.exception("broker files outdated")
                await self._clock.sleep(self._refresh_s)
