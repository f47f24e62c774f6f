"""Takes up a new identity that `edge-agent join --force` wrote while the agent runs."""

from __future__ import annotations

import asyncio

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger
from firstline_edge.identity.files import Written
from firstline_edge.identity.renewal import Renewal
from firstline_edge.settings.identity import Identity

LOOK_S = 5.0
"""How soon an agent notices that its device has joined anew."""

log = logger(__name__)


def restart_needed(was: Identity, now: Identity) -> bool:
    """Whether more has changed than the certificate: name and addresses stand in topics, logs and links.

    So it is with another authority: an agent believes the one that it began with until it ends.
    """
    return any(
        getattr(was, each) != getattr(now, each) for each in ("device", "gateway", "proxy", "broker", "authority")
    )


class Rejoining:
    """Looks for another identity than the one in use.

    Args:
        renewal: of that one.
        clock: for waits.

    Attributes:
        problem: what to do about an identity that cannot be taken up; "" if there is none.
    """

    def __init__(self, renewal: Renewal, clock: Clock) -> None:
        self._renewal = renewal
        self._clock = clock
        self._passed_by: Written = None  # what only a restart takes up
        self.problem = ""

    async def run(self) -> None:
        """Looks every `LOOK_S`, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:  # the outermost loop of a task without which the device never comes back
                log.exception("the device's identity cannot be looked at")

    async def look(self) -> None:
        """Takes up what `join` has written since the last time, or could not be loaded then.

        Root, who joins, gives the agent's user one file after the other.
        """
        credentials = self._renewal.credentials
        written = credentials.files.written()
        if credentials.problem and written == credentials.written and credentials.load():
            await self._renewal.adopt()
        if written is None or written in (credentials.written, self._passed_by):
            return
        try:
            found = await asyncio.to_thread(credentials.files.read)
        except ConfigError as error:  # a moment later it may be readable
            self.problem = error.message
            return
        self.problem = ""
        if found is None:  # somebody clears up
            return
        if restart_needed(credentials.identity, found):
            self.problem = (
                f"The device has joined {found.gateway} as '{found.device}' since this agent was started; "
                "start it anew."
            )
            log.warning("joined anew as somebody else", device=found.device, gateway=found.gateway)
            self._passed_by = written
            return
        await self._renewal.take_up(found, written)
        log.info("joined anew", device=found.device, not_after_s=found.not_after_s)
