"""What a registry needs done in time: metadata renewed before it ends, people warned, files forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.fleet.expiry import DAY_S, HOUR_S, warnings
from firstline_core.telemetry.logs import logger
from firstline_gateway.registry.registry import Registry
from firstline_gateway.registry.signing import ONLINE_LIFE

_EVERY_S = 60.0
# Half of their life: a gateway that is away for less than the other half leaves no gap.
_RENEW_BEFORE_S = ONLINE_LIFE.total_seconds() / 2
# A push may take a day over a slow link before it lists what it has sent.
_UNLISTED_S = DAY_S
_SWEEP_EVERY_S = HOUR_S

log = logger(__name__)


class RegistryKeeper:
    """Looks after one registry, minute by minute.

    Args:
        registry: looked after.
        clock: when.
    """

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._keeping: asyncio.Task[None] | None = None
        self._expiries: Mapping[str, float] = {}
        self._warned_s: dict[str, float] = {}
        self._swept_s = clock.monotonic_s()
        self._trouble = ""

    @property
    def expiries(self) -> dict[tuple[str, ...], float]:
        """When each role's metadata, and the devices' authority, end, as was last seen (wall time, seconds)."""
        return {(role,): end_s for role, end_s in self._expiries.items()}

    def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def look(self) -> None:
        """Renews what ends soon, and warns of what cannot be renewed here, once a day.

        Raises:
            FirstlineError: the store, or the online key, is away.
        """
        try:
            if await self._registry.renew(_RENEW_BEFORE_S):
                log.info("snapshot and timestamp renewed")
        finally:
            self._expiries = await self._registry.expiries()
            now_s = self._clock.wall_s()
            for role, sentence in warnings(self._expiries, now_s).items():
                if now_s - self._warned_s.get(role, 0.0) >= DAY_S:
                    self._warned_s[role] = now_s
                    log.warning("registry expiry", role=role, warning=sentence)
        if self._clock.monotonic_s() - self._swept_s >= _SWEEP_EVERY_S:
            self._swept_s = self._clock.monotonic_s()
            if gone := await self._registry.sweep(_UNLISTED_S):
                log.info("files forgotten that nothing lists", files=gone)

    async def _keep(self) -> None:
        while True:
            try:
                await self.look()
            except FirstlineError as error:
                if error.message != self._trouble:
                    log.error("registry not kept", error=error.message)
                self._trouble = error.message
            except Exception:  # the outermost loop of a task that must never end
                log.exception("registry not kept")
            else:
                self._trouble = ""
            await self._clock.sleep(_EVERY_S)
