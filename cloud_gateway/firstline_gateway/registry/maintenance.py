"""The registry's periodic work: renews metadata before it expires, warns of what expires, deletes unlisted files."""

from __future__ import annotations

from collections.abc import Mapping

from firstline_core.clock import Clock
from firstline_core.fleet.registry import DAY_S, HOUR_S, expiry_warnings
from firstline_core.telemetry.logs import logger
from firstline_gateway.registry.registry import Registry
from firstline_gateway.registry.signing import ONLINE_LIFE

# Half of their life: a gateway that is away for less than the other half leaves no gap.
_RENEW_BEFORE_S = ONLINE_LIFE.total_seconds() / 2
# A push may take a day over a slow link before it lists what it has sent.
_UNLISTED_S = DAY_S
_SWEEP_INTERVAL_S = HOUR_S

log = logger(__name__)


class RegistryMaintenance:
    """Maintains one registry; `run` is called every minute.

    Args:
        registry: the registry.
        clock: decides what is due.

    Attributes:
        expiries: by role, when its metadata or the devices' authority expires, as last seen (wall time, seconds).
    """

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self.expiries: Mapping[str, float] = {}
        self._warned_s: dict[str, float] = {}
        self._swept_s = clock.monotonic_s()

    async def run(self) -> None:
        """Renews what expires soon, and warns once a day of what cannot be renewed here.

        Raises:
            FirstlineError: the store or the online key is away.
        """
        try:
            if await self._registry.renew(_RENEW_BEFORE_S):
                log.info("snapshot and timestamp renewed")
        finally:
            self.expiries = await self._registry.expiries()
            now_s = self._clock.wall_s()
            for role, sentence in expiry_warnings(self.expiries, now_s).items():
                if now_s - self._warned_s.get(role, 0.0) >= DAY_S:
                    self._warned_s[role] = now_s
                    log.warning("registry expiry", role=role, warning=sentence)
        if self._clock.monotonic_s() - self._swept_s >= _SWEEP_INTERVAL_S:
            self._swept_s = self._clock.monotonic_s()
            if deleted := await self._registry.sweep(_UNLISTED_S):
                log.info("unlisted files deleted", files=deleted)
