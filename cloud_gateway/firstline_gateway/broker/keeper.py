"""Keeps a broker in step with what the gateway knows: revocations, authorities, the broker's own certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.protocol.mqtt import MqttSettings
from firstline_core.telemetry.logs import logger
from firstline_gateway.broker.files import BrokerFolder, Revoked
from firstline_gateway.broker.sessions import end_sessions
from firstline_gateway.identity.authorities import Authorities

# Mosquitto sees to a signal within a tenth of a second; `reload.sh` looks once a second.
_RELOAD_S = 1.5
# Nothing tells of a certificate that is about to end.
_LOOK_S = 3600.0

log = logger(__name__)


class BrokerKeeper:
    """Of one gateway; used on its event loop.

    Args:
        folder: the broker's.
        authorities: asked anew each time; blocks.
        revoked: certificates that would still be valid at a wall time.
        devices: the names of revoked devices.
        settings: of the gateway's connection to the broker, by which sessions are ended.
        clock: what certificates are dated by.
    """

    def __init__(
        self,
        folder: BrokerFolder,
        *,
        authorities: Callable[[], Authorities],
        revoked: Callable[[float], Iterable[Revoked]],
        devices: Callable[[], Iterable[str]],
        settings: MqttSettings,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._authorities = authorities
        self._revoked = revoked
        self._devices = devices
        self._settings = settings
        self._clock = clock
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to keep up."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._keep())

    def changed(self) -> None:
        """Takes note that something was revoked; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def refresh(self) -> set[str]:
        """Brings the folder up to date; the devices that are refused from now on. Blocks.

        Raises:
            ConfigError: the folder cannot be written.
        """
        now_s = self._clock.wall_s()
        return self._folder.refresh(self._authorities(), self._revoked(now_s), self._devices(), now_s)

    async def _keep(self) -> None:
        while True:
            try:
                refused = await asyncio.to_thread(self.refresh)
                if refused:
                    log.info("revoked devices are refused by the broker", devices=len(refused))
                    await self._clock.sleep(_RELOAD_S)
                    await end_sessions(self._settings, sorted(refused))
            except FirstlineError as error:
                log.error("the broker's files are not up to date", error=error.message)
            except Exception:  # the outermost loop of a task that must never end
                log.exception("the broker's files are not up to date")
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
