"""The next certificate in time: asked for by the agent itself at two thirds of the life of the present one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.identity.credentials import Credentials
from firstline_edge.identity.files import Written
from firstline_edge.settings.identity import Identity

# Devices that joined together must not renew together.
_DUE_SHARE = (0.63, 0.70)
# No longer than this without a look at the clock, which may be set at any moment.
_LOOK_S = 3600.0
_BACKOFF_BASE_S = 30.0
_BACKOFF_MAX_S = 3600.0

log = logger(__name__)


class Renewal:
    """Keeps the credentials fresh.

    Args:
        credentials: renewed in place.
        adopt: makes the links use the new certificate; called after each renewal.
        clock: for waits.
        rng: for the jitter.

    Attributes:
        credentials: as given.
        problem: why the latest attempt failed, "" since one succeeded.
    """

    def __init__(
        self, credentials: Credentials, adopt: Callable[[], Awaitable[None]], clock: Clock, rng: random.Random
    ) -> None:
        self.credentials = credentials
        self.adopt = adopt
        self._clock = clock
        self._rng = rng
        self.problem = ""
        self._due_s = self._draw()

    async def run(self) -> None:
        """Renews whenever it is due, until cancelled."""
        failures = 0
        while True:
            floor = self.credentials.floor
            await asyncio.to_thread(floor.save)
            if (left_s := self._due_s - floor.now_s()) > 0:
                await self._clock.sleep(min(left_s, _LOOK_S))
                continue
            try:
                await self.renew()
                failures = 0
            except FirstlineError as error:
                self.problem = f"The device's certificate was not renewed: {error.message}"
                log.warning("certificate not renewed", error=error.message)
                wait_s = full_jitter_s(self._rng, failures, base_s=_BACKOFF_BASE_S, max_s=_BACKOFF_MAX_S)
                failures += 1
                await self._clock.sleep(max(wait_s, error.retry_after_s or 0.0))
            except Exception:  # the outermost loop of a task without which the device's access ends some day
                log.exception("certificate not renewed")
                await self._clock.sleep(_BACKOFF_MAX_S)

    async def renew(self) -> None:
        """Gets a certificate for a new key, keeps it, and has every link show it.

        Raises:
            FirstlineError: the gateway does not answer or refuses, the disk does, or `join` was here meanwhile; the
            present one goes on.
        """
        # `cryptography` and httpx are heavy, and needed once in months.
        from firstline_edge.identity import exchange, keys

        credentials, known = self.credentials, self.credentials.identity
        key = await asyncio.to_thread(keys.new_key)
        answer = await exchange.renew(known.gateway, keys.signing_request(key), credentials.context, proxy=known.proxy)
        credentials.heard(answer.now_s)
        authority = bytes.fromhex(known.authority)
        identity = keys.accepted(answer, key, authority, gateway=known.gateway, proxy=known.proxy)
        what = (identity, answer.ca, key, answer.certificate)
        written = await asyncio.to_thread(credentials.files.save, *what, credentials.written)
        log.info("certificate renewed", device=identity.device, not_after_s=identity.not_after_s)
        await self.take_up(identity, written)

    async def take_up(self, identity: Identity, written: Written) -> None:
        """Has every link show the certificate that the files hold now, as of that writing of them."""
        self.credentials.renewed(identity, written)
        self.problem, self._due_s = "", self._draw()
        await self.adopt()

    def _draw(self) -> float:
        known = self.credentials.identity
        return known.not_before_s + self._rng.uniform(*_DUE_SHARE) * (known.not_after_s - known.not_before_s)
