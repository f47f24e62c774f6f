"""Renews the device's certificate in time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_edge.identity.credentials import Credentials

# The share of a certificate's life after which it is renewed: devices that joined together must not renew together.
_DUE_SHARE = (0.63, 0.70)
# Longest wait without a look at the clock, which may be set at any moment.
_LONGEST_WAIT_S = 3600.0
_BACKOFF_BASE_S = 30.0
_BACKOFF_MAX_S = 3600.0

log = logger(__name__)


class CredentialRenewal:
    """Keeps the credentials of a running agent valid.

    Args:
        credentials: renewed in place.
        apply_to_links: makes the links use the new certificate; called after each renewal.
        clock: for waits.
        rng: for jitter.

    Attributes:
        problem: why the latest renewal failed, in sentences; "" after a success.
    """

    def __init__(
        self, credentials: Credentials, apply_to_links: Callable[[], Awaitable[None]], clock: Clock, rng: random.Random
    ) -> None:
        self.credentials = credentials
        self._apply_to_links = apply_to_links
        self._clock = clock
        self._rng = rng
        self._due_s = self._random_due_s()
        self.problem = ""

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            await self._renew_when_due()
        finally:
            await self._save_floor()

    async def _renew_when_due(self) -> None:
        failures = 0
        while True:
            await self._save_floor()
            if (left_s := self._due_s - self.credentials.floor.now_s()) > 0:
                await self._clock.sleep(min(left_s, _LONGEST_WAIT_S))
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

    async def _save_floor(self) -> None:
        with contextlib.suppress(*REFUSED):  # without a free thread it is saved later
            await asyncio.to_thread(self.credentials.floor.save)

    async def renew(self) -> None:
        """Gets a certificate for a new key, stores it, and makes every link use it.

        Raises:
            FirstlineError: the gateway does not answer or refuses, the disk refuses, or the device has joined again
                meanwhile; the current certificate stays in use.
        """
        # `cryptography` and httpx are heavy, and needed once in months.
        from firstline_edge.identity import enrolment

        credentials, current = self.credentials, self.credentials.identity
        key = await asyncio.to_thread(enrolment.new_key)
        csr = enrolment.signing_request(key)
        answer = await enrolment.renew(current.gateway, csr, credentials.context, proxy=current.proxy)
        credentials.observe_time(answer.now_s)
        authority = bytes.fromhex(current.authority)
        identity = enrolment.identity_from(answer, key, authority, gateway=current.gateway, proxy=current.proxy)
        content = (identity, answer.ca, key, answer.certificate)
        revision = await asyncio.to_thread(credentials.files.save, *content, credentials.revision)
        log.info("certificate renewed", device=identity.device, not_after_s=identity.not_after_s)
        credentials.use_certificate(identity, revision)
        self.problem, self._due_s = "", self._random_due_s()
        await self._apply_to_links()

    def _random_due_s(self) -> float:
        identity = self.credentials.identity
        return identity.not_before_s + self._rng.uniform(*_DUE_SHARE) * (identity.not_after_s - identity.not_before_s)
