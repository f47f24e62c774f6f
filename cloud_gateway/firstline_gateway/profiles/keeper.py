"""Ends requests that nobody fulfilled in time, minute by minute."""

from __future__ import annotations

import asyncio

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_gateway.profiles.requests import Requests

_EVERY_S = 60.0

log = logger(__name__)


class RequestKeeper:
    """Of one gateway; replicas may do it at the same time.

    Args:
        requests: looked after.
        clock: when.
    """

    def __init__(self, requests: Requests, clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            try:
                await self._requests.expire()
            except FirstlineError as error:
                log.warning("requests for profiles not ended", error=error.message)
            except Exception:  # the outermost loop of a task that must never end
                log.exception("requests for profiles not ended")
            await self._clock.sleep(_EVERY_S)
