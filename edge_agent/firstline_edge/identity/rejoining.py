"""`edge-agent join --force` beside an agent that runs: the agent takes the new identity up by itself."""

from __future__ import annotations

import asyncio

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger
from firstline_edge.identity.files import Identity
from firstline_edge.identity.renewal import Renewal

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
        problem: what to do about an identity that cannot be taken up; "" where there is none.
    """

    def __init__(self, renewal: Renewal, clock: Clock) -> None:
        self._renewal = renewal
        self._clock = clock
        self._seen = renewal.credentials.files.written()
        self.problem = ""

    async def run(self) -> None:
        """Looks every `LOOK_S`, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Takes up what `join` has written since the last time."""
        credentials = self._renewal.credentials
        written = credentials.files.written()
        if written == self._seen:
            return
        self._seen = written
        self.problem = ""
        try:
            found = await asyncio.to_thread(credentials.files.read)
        except ConfigError as error:
            self.problem = error.message
            return
        if found is None or found == credentials.identity:  # somebody clears up, or it was this agent that wrote
            return
        if restart_needed(credentials.identity, found):
            self.problem = (
                f"The device has joined {found.gateway} as '{found.device}' since this agent was started; "
                "start it anew."
            )
            log.warning("joined anew as somebody else", device=found.device, gateway=found.gateway)
            return
        await self._renewal.take_up(found)
        log.info("joined anew", device=found.device, not_after_s=found.not_after_s)
