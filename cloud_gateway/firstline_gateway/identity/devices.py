"""The gateway's services for its devices: invite, enrol, renew, revoke and list them."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, ConfigError, RateLimitedError, RequestError, UnauthorizedError
from firstline_core.protocol import enrolment as wire
from firstline_core.telemetry.logs import logger
from firstline_core.units import DAY_S
from firstline_gateway.identity import ca, enrolment
from firstline_gateway.identity.authorities import Authorities, AuthorityFolder
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.enrolment import Issue, Issued
from firstline_gateway.identity.gatekeeper import REMEMBERED_S, Gatekeeper, TokenBuckets
from firstline_gateway.settings.settings import IdentitySection
from firstline_gateway.store.store import Store

# A device renews once in two months; the limit is for one that crashes each time before it has stored the answer.
_RENEWALS_PER_S = 1 / 600
_RENEWALS_BURST = 6.0

log = logger(__name__)


@dataclass(eq=False)
class Devices:
    """The devices of one gateway, or of the replicas that share its store and its authority.

    Args:
        folder: the folder of the authority.
        store: reads and writes it.
        gatekeeper: is refreshed after each change.
        settings: of the identities.
        server_authority: PEM of the authority of the server's certificate; "" is the gateway's own authority.
        broker: the broker's address for devices.
        clock: gives wall and monotonic time.
    """

    folder: AuthorityFolder
    store: Store
    gatekeeper: Gatekeeper
    settings: IdentitySection
    server_authority: str
    broker: wire.BrokerAddress | None
    clock: Clock
    _attempts: TokenBuckets = field(default_factory=TokenBuckets)
    _renewals: TokenBuckets = field(default_factory=TokenBuckets)

    async def authorities_pem(self) -> str:
        """Returns the authorities that devices trust: the server's authority first, then those of certificates.

        Raises:
            RequestError: no device was ever invited here, so there is no authority.
            CapacityError: its folder cannot be used.
        """
        if not self.folder.exists:  # an unauthenticated request must not create one
            raise RequestError(
                "This gateway has no certificate authority; it makes one when it first invites a device."
            )
        return self.server_authority + (await self._authorities()).pem

    async def invite(self, request: wire.InviteRequest, by: str) -> wire.InviteAnswer:
        """Creates a join token for each device; the store keeps only their hashes.

        Args:
            request: the devices, and the validity of the tokens.
            by: the principal that invites.

        Raises:
            CapacityError: the store refuses.
        """
        now_s = self.clock.wall_s()
        expires_s = now_s + request.valid_s
        tokens = {name: wire.format_secret(secrets.token_bytes(wire.SECRET_BYTES)) for name in request.devices}
        hashes = [(name, enrolment.secret_hash(secret)) for name, secret in tokens.items()]
        authorities = await self._authorities()  # the first invitation creates them
        trusted = wire.public_key_hash(self.server_authority + authorities.pem)
        await self.store.change(lambda on: enrolment.invite(on, hashes, by=by, now_s=now_s, expires_s=expires_s))
        for name in tokens:
            log.info("device invited", device=name, principal=by, valid_s=request.valid_s)
        return wire.InviteAnswer(
            tuple(
                wire.Invitation(name, wire.format_join_token(secret, trusted), expires_s)
                for name, secret in tokens.items()
            )
        )

    async def enrol(self, request: wire.EnrolRequest, address: str) -> wire.EnrolAnswer:
        """Gives the device that a join token is for its certificate.

        Args:
            request: the token's secret and the device's key.
            address: the sender; an address with too many failures has to wait.

        Raises:
            RequestError: the CSR is invalid.
            UnauthorizedError: the token is unknown, expired or used.
            RateLimitedError: too many failures.
            CapacityError: the store refuses.
        """
        per_s = self.settings.attempts_per_minute / 60
        wait_s = self._attempts.take(
            address, self.clock.monotonic_s(), per_s=per_s, burst=float(self.settings.attempts_per_minute)
        )
        if wait_s:
            raise RateLimitedError("Too many attempts to enrol came from this address.", retry_after_s=wait_s)
        key = ca.requested_key(request.csr)
        now_s, sha256 = self.clock.wall_s(), enrolment.secret_hash(request.secret)
        enrolled = None
        try:
            # An unknown token costs no write.
            if await self.store.read(lambda on: enrolment.is_token(on, sha256, now_s)):
                issue = await self._issuing(key)
                enrolled = await self.store.change(
                    lambda on: enrolment.redeem(on, sha256, ca.key_hash(key), issue, now_s, address=address)
                )
        except CapacityError:
            self._attempts.give_back(address)  # the store's fault, not the device's
            raise
        if enrolled is None:
            log.warning("enrolment refused", address=address)
            raise UnauthorizedError(
                "The join token is not valid here: it was used, has expired, or another has replaced it. Ask the "
                "gateway's operator for a new one."
            )
        self._attempts.give_back(address)
        log.info("device enrolled", device=enrolled.device, address=address, again=enrolled.again)
        await self.gatekeeper.refreshed()
        return await self._answer(enrolled.device, enrolled.certificate)

    async def renew(self, request: wire.RenewRequest, certificate: ClientCertificate) -> wire.EnrolAnswer:
        """Issues the next certificate of a device.

        Args:
            request: the device's next key, which may be the present one.
            certificate: its present certificate.

        Raises:
            RequestError: the CSR is invalid.
            UnauthorizedError: the present certificate is not valid, or can no longer be renewed.
            RateLimitedError: the device renews too often.
            CapacityError: the store refuses.
        """
        device = await self.gatekeeper.authenticate_certificate(certificate, renewing=True)
        wait_s = self._renewals.take(device, self.clock.monotonic_s(), per_s=_RENEWALS_PER_S, burst=_RENEWALS_BURST)
        if wait_s:
            raise RateLimitedError(f"'{device}' renews its certificate too often.", retry_after_s=wait_s)
        issue = await self._issuing(ca.requested_key(request.csr))
        now_s = self.clock.wall_s()
        retention_s = self.settings.renew_grace_days * DAY_S + REMEMBERED_S

        def renew(on: Connection) -> str | None:
            renewed = enrolment.renew(on, device, certificate.serial, issue, now_s)
            enrolment.delete_expired(on, now_s, retention_s)
            return renewed

        renewed = await self.store.change(renew)
        if renewed is None:
            raise UnauthorizedError(f"The certificate of '{device}' was revoked; enrol it with a new join token.")
        log.info("certificate renewed", device=device, before=certificate.serial)
        await self.gatekeeper.refreshed()
        return await self._answer(device, renewed)

    async def revoke(self, device: str, by: str) -> None:
        """Refuses a device from now on: here at once, elsewhere within `auth.refresh_s`.

        Raises:
            RequestError: there is no such device.
            CapacityError: the store refuses.
        """
        now_s = self.clock.wall_s()
        if not await self.store.change(lambda on: enrolment.revoke(on, device, by, now_s)):
            raise RequestError(f"There is no device {device[:64]!a} here; `firstline device list` lists the devices.")
        log.warning("device revoked", device=device, principal=by)
        await self.gatekeeper.refreshed()

    async def list(self, after: str, limit: int) -> wire.DeviceList:
        """Returns a page of devices by name, from the first one after a name on.

        Raises:
            CapacityError: the store refuses.
        """
        now_s = self.clock.wall_s()
        devices = await self.store.read(lambda on: enrolment.list_devices(on, after, limit, now_s))
        return wire.DeviceList(tuple(devices), devices[-1].device if len(devices) == limit else None)

    async def _issuing(self, key: ec.EllipticCurvePublicKey) -> Issue:
        authority = (await self._authorities()).active
        now_s, days = self.clock.wall_s(), self.settings.certificate_days

        def issue(device: str) -> Issued:
            certificate = ca.issue_device(authority, device, key, now_s, days)
            return Issued(
                ca.serial_of(certificate), ca.pem_of(certificate), certificate.not_valid_after_utc.timestamp()
            )

        return issue

    async def _answer(self, device: str, certificate: str) -> wire.EnrolAnswer:
        return wire.EnrolAnswer(
            device=device,
            certificate=certificate,
            ca=await self.authorities_pem(),
            broker=self.broker,
            now_s=self.clock.wall_s(),
        )

    async def _authorities(self) -> Authorities:
        """Returns the authorities; creates the first one if missing.

        Raises:
            CapacityError: their folder cannot be used; the operator has to repair it.
        """
        try:
            return await asyncio.to_thread(self.folder.open)
        except ConfigError as error:
            log.error("certificate authority not opened", error=error.message)
            raise CapacityError("This gateway's certificate authority cannot be opened; its log says why.") from error
