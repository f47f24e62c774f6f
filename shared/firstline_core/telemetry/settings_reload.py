"""Reloads the settings of a running process: applies what can change, and logs the keys that need a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from firstline_core.errors import FirstlineError
from firstline_core.storage.settings import changed_keys, with_keys_of
from firstline_core.telemetry.logs import logger

_Settings = TypeVar("_Settings", bound=msgspec.Struct)

log = logger(__name__)


@dataclass(eq=False)
class SettingsReload(Generic[_Settings]):
    """The settings of one running process.

    Args:
        running: in use.
        read: reads the configuration again, in a thread.
        apply: uses other settings from now on, which differ from those in use only in live keys; returns the
            files that it read again, such as tokens; raises a `FirstlineError` before it has changed anything.
        live: returns the keys that can change while the process runs, such as "log.level".
    """

    running: _Settings
    read: Callable[[], _Settings]
    apply: Callable[[_Settings], Awaitable[Collection[str]]]
    live: Callable[[], Collection[str]]

    async def keep(self, requested: asyncio.Event) -> None:
        """Reloads the settings each time that the event is set."""
        while True:
            await requested.wait()
            requested.clear()
            await self.reload()

    async def reload(self) -> None:
        """Reloads the settings once; after an error, which is logged, the process keeps those in use."""
        try:
            found = await asyncio.to_thread(self.read)
            changed = changed_keys(self.running, found)
            live = self.live()
            applied = [key for key in changed if key in live]
            settings = with_keys_of(self.running, found, applied)
            files = await self.apply(settings)
        except FirstlineError as error:
            log.error("configuration not reloaded", why=error.message)
            return
        except Exception:  # a fault of ours must not end the task, because later requests would then have no effect
            log.exception("configuration not reloaded")
            return
        self.running = settings
        log.info("configuration reloaded", applied=", ".join(applied) or "none", files_read=", ".join(files) or "none")
        if waiting := [key for key in changed if key not in live]:
            log.warning("settings changed that need a restart", keys=", ".join(waiting))
