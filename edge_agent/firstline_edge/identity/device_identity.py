"""The identity of a device in a running agent: its credentials, and their renewal."""

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


class DeviceIdentity:
    """The identity of one device, which may have none.

    Args:
        settings: where the identity is stored, and whether it is used.
        clock: the device's.

    Attributes:
        folder: where the identity is stored.
        credentials: None on a device that has not joined, and if the identity is damaged.
    """

    def __init__(self, settings: EdgeSettings, clock: Clock) -> None:
        files = IdentityFiles(settings.state_dir)
        self.folder = files.folder
        self.credentials: Credentials | None = None
        self._clock = clock
        self._damage = ""
        if not settings.agent.use_identity:
            return
        try:
            written, identity = files.written(), files.read()
        except ConfigError as error:
            self._damage = error.message
            return
        if identity is not None:
            self.credentials = Credentials(files, identity, written, clock)

    @property
    def problems(self) -> list[str]:
        """The problems, in sentences."""
        found = [self._damage]
        if self.credentials is not None:
            found.append(self.credentials.problem)
            if not self.credentials.floor.believes_clock:
                found.append(
                    f"The clock says {shown(self._clock.wall_s())}, which cannot be; certificates are judged by what "
                    f"the gateway said last, {shown(self.credentials.floor.floor_s)}. Set it: sudo timedatectl "
                    "set-ntp true"
                )
        return [problem for problem in found if problem]

    def describe(self) -> dict[str, object] | None:
        """Returns the identity for `status`; None for a device that has not joined."""
        if self.credentials is None:
            return None
        known = self.credentials.identity
        return {
            "device": known.device,
            "gateway": known.gateway,
            "not_after": shown(known.not_after_s),
            "authority": known.authority,
        }


class CredentialUpkeep:
    """Renews the certificate when it is due, and takes up a new identity that `edge-agent join` has written.

    Args:
        credentials: renewed in place.
        adopt: makes the links use the new certificate.
        clock: the device's.

    Attributes:
        renewal: renews the certificate.
    """

    def __init__(self, credentials: Credentials, adopt: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._credentials = credentials
        self.renewal = Renewal(credentials, adopt, clock, random.Random())  # noqa: S311 (jitter)
        self._rejoining = Rejoining(self.renewal, clock)

    @property
    def problems(self) -> list[str]:
        """The problems, in sentences."""
        return [problem for problem in (self.renewal.problem, self._rejoining.problem) if problem]

    async def look(self) -> None:
        """Takes up a new identity now, if there is one."""
        await self._rejoining.look()

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.renewal.run(), name="renewal")
                tasks.create_task(self._rejoining.run(), name="rejoining")
        finally:
            await asyncio.to_thread(self._credentials.floor.save)
