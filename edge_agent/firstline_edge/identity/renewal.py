"""Renews the device's certificate in time, and uses a new identity that `edge-agent join --force` wrote."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.identity.credentials import Credentials
from firstline_edge.identity.files import Revision
from firstline_edge.settings.identity import IdentityDocument

CHECK_S = 5.0
"""Seconds between two checks whether the device has joined again."""

# The share of a certificate's life after which it is renewed: devices that joined together must not renew together.
_DUE_SHARE = (0.63, 0.70)
# Longest wait without a look at the clock, which may be set at any moment.
_LONGEST_WAIT_S = 3600.0
_BACKOFF_BASE_S = 30.0
_BACKOFF_MAX_S = 3600.0

log = logger(__name__)


def restart_needed(before: IdentityDocument, now: IdentityDocument) -> bool:
    """Returns whether more has changed than the certificate.

    Name and addresses are in topics, logs and links, and an agent trusts one authority until it ends.
    """
    return any(
        getattr(before, field) != getattr(now, field) for field in ("device", "gateway", "proxy", "broker", "authority")
    )


class CredentialRenewal:
    """Keeps the credentials of a running agent valid.

    Args:
        credentials: renewed in place.
        apply_to_links: makes the links use the new certificate; called after each renewal.
        clock: for waits.
        rng: for jitter.

    Attributes:
        renewal_problem: why the latest renewal failed; "" after a success.
        rejoin_problem: what to do about a new identity that cannot be used; "" if there is none.
    """

    def __init__(
        self, credentials: Credentials, apply_to_links: Callable[[], Awaitable[None]], clock: Clock, rng: random.Random
    ) -> None:
        self.credentials = credentials
        self._apply_to_links = apply_to_links
        self._clock = clock
        self._rng = rng
        self._due_s = self._random_due_s()
        self._needs_restart: Revision = None  # the files of an identity that needs a restart
        self.renewal_problem = ""
        self.rejoin_problem = ""

    @property
    def problems(self) -> list[str]:
        """The problems, in sentences."""
        return [problem for problem in (self.renewal_problem, self.rejoin_problem) if problem]

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew_when_due(), name="renewal")
                tasks.create_task(self._watch_files(), name="rejoining")
        finally:
            await asyncio.to_thread(self.credentials.floor.save)

    async def _renew_when_due(self) -> None:
        failures = 0
        while True:
            floor = self.credentials.floor
            await asyncio.to_thread(floor.save)
            if (left_s := self._due_s - floor.now_s()) > 0:
                await self._clock.sleep(min(left_s, _LONGEST_WAIT_S))
                continue
            try:
                await self.renew()
                failures = 0
            except FirstlineError as error:
                self.renewal_problem = f"The device's certificate was not renewed: {error.message}"
                log.warning("certificate not renewed", error=error.message)
                wait_s = full_jitter_s(self._rng, failures, base_s=_BACKOFF_BASE_S, max_s=_BACKOFF_MAX_S)
                failures += 1
                await self._clock.sleep(max(wait_s, error.retry_after_s or 0.0))
            except Exception:  # the outermost loop of a task without which the device's access ends some day
                log.exception("certificate not renewed")
                await self._clock.sleep(_BACKOFF_MAX_S)

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
        await self._use(identity, revision)

    async def _watch_files(self) -> None:
        while True:
            await self._clock.sleep(CHECK_S)
            try:
                await self.check_files()
            except Exception:  # the outermost loop of a task without which the device never comes back
                log.exception("device identity check failed")

    async def check_files(self) -> None:
        """Uses the files that `join` has written since the last check, or that could not be loaded then.

        If root joins, it gives the files to the agent's user one after the other.
        """
        credentials = self.credentials
        revision = credentials.files.revision()
        if credentials.problem and revision == credentials.revision and credentials.load():
            await self._apply_to_links()
        if revision is None or revision in (credentials.revision, self._needs_restart):
            return
        try:
            identity = await asyncio.to_thread(credentials.files.read)
        except ConfigError as error:  # it may become readable
            self.rejoin_problem = error.message
            return
        self.rejoin_problem = ""
        if identity is None:  # the files are being deleted
            return
        if restart_needed(credentials.identity, identity):
            self.rejoin_problem = (
                f"The device has joined {identity.gateway} as '{identity.device}' since this agent was started; "
                "restart it."
            )
            log.warning("device joined under another identity", device=identity.device, gateway=identity.gateway)
            self._needs_restart = revision
            return
        await self._use(identity, revision)
        log.info("device rejoined", device=identity.device, not_after_s=identity.not_after_s)

    async def _use(self, identity: IdentityDocument, revision: Revision) -> None:
        """Makes every link use the certificate in the files of this revision."""
        self.credentials.use_certificate(identity, revision)
        self.renewal_problem, self._due_s = "", self._random_due_s()
        await self._apply_to_links()

    def _random_due_s(self) -> float:
        identity = self.credentials.identity
        return identity.not_before_s + self._rng.uniform(*_DUE_SHARE) * (identity.not_after_s - identity.not_before_s)
