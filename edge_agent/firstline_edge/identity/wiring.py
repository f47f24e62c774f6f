"""Everything of the identity in a running agent: the credentials, their renewal, and what to tell of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_edge.identity.credentials import Credentials
from firstline_edge.identity.files import IdentityFiles
from firstline_edge.identity.rejoining import Rejoining
from firstline_edge.identity.renewal import Renewal
from firstline_edge.identity.tls import shown
from firstline_edge.settings.settings import EdgeSettings


class IdentityRoom:
    """The identity of one agent, which works without one.

    Args:
        settings: say where it lies, and whether it is used.
        clock: the device's.

    Attributes:
        credentials: None on a device that has not joined, and where the identity is damaged.
        renewal: None where there are no credentials.
    """

    def __init__(self, settings: EdgeSettings, clock: Clock) -> None:
        files = IdentityFiles(settings.state_dir)
        self.folder = files.folder
        self._clock = clock
        self._damage = ""
        self.renewal: Renewal | None = None
        self._rejoining: Rejoining | None = None
        self.credentials: Credentials | None = None
        if not settings.agent.use_identity:
            return
        try:
            written, identity = files.written(), files.read()
        except ConfigError as error:
            self._damage = error.message
            return
        if identity is not None:
            self.credentials = Credentials(files, identity, written, clock)
            self.renewal = Renewal(self.credentials, clock, random.Random())  # noqa: S311 (jitter)
            self._rejoining = Rejoining(self.renewal, clock)

    @property
    def problems(self) -> list[str]:
        """What is wrong, in sentences."""
        found = [self._damage]
        if self.credentials is not None:
            found.append(self.credentials.problem)
            if not self.credentials.floor.believes_clock:
                found.append(
                    f"The clock says {shown(self._clock.wall_s())}, which cannot be; certificates are judged by what "
                    f"the gateway said last, {shown(self.credentials.floor.floor_s)}. Set it: sudo timedatectl "
                    "set-ntp true"
                )
        if self.renewal is not None:
            found.append(self.renewal.problem)
        if self._rejoining is not None:
            found.append(self._rejoining.problem)
        return [problem for problem in found if problem]

    def renews(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Has links make new connections whenever there is a new certificate."""
        if self.renewal is not None:
            self.renewal.adopt = adopt

    async def run(self) -> None:
        """Renews the certificate whenever it is due, and takes up what `join` writes, until cancelled."""
        if self.credentials is None or self.renewal is None or self._rejoining is None:
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.renewal.run(), name="renewal")
                tasks.create_task(self._rejoining.run(), name="rejoining")
        finally:
            await asyncio.to_thread(self.credentials.floor.save)

    def describe(self) -> dict[str, object] | None:
        """For `status`; None where the device has not joined."""
        if self.credentials is None:
            return None
        known = self.credentials.identity
        return {
            "device": known.device,
            "gateway": known.gateway,
            "not_after": shown(known.not_after_s),
            "authority": known.authority,
        }
