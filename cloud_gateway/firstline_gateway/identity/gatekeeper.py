"""Authentication: verifies certificates and API keys against the credentials in memory, and keeps those up to date.

Every `auth.refresh_s` the gatekeeper reads the changes that any writer made in the store: this gateway, another
replica, or a command. It closes the connections of certificates that were revoked since then. It looks up an unknown
credential in the store before it refuses it, so that a device may call one replica after it has enrolled with another.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from firstline_core.clock import SYSTEM_CLOCK, Clock, end_tasks
from firstline_core.errors import RateLimitedError, UnauthorizedError
from firstline_core.protocol import http_server
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import iso_time
from firstline_gateway.background import PeriodicTask
from firstline_gateway.identity import enrolment
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.credentials import ApiKey, Changes, KnownCredentials, read_changes
from firstline_gateway.identity.keys import key_hash
from firstline_gateway.store.store import Readers

# Beyond this number the bucket that was used longest ago is dropped, and full when its key is seen again.
_BUCKETS = 65_536
# Shortest time between two look-ups of unknown credentials, all clients together.
_SPACING_S = 0.1
# How long a certificate is remembered after it can no longer be renewed, so that the refusal names the reason.
REMEMBERED_S = 90 * 86_400.0

log = logger(__name__)


class TokenBuckets:
    """Rate limits with room for a burst: one bucket per key (an address, a principal), full when first seen."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str, now_s: float, *, per_s: float, burst: float) -> float:
        """Takes a token from the bucket of a key.

        Args:
            key: the owner of the bucket, which always has the same rate and capacity.
            now_s: monotonic time.
            per_s: tokens added each second.
            burst: capacity in tokens; at least 1.

        Returns:
            0 if there was a token; otherwise the seconds until there is one.
        """
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(burst, per_s)
            if len(self._buckets) > _BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return 0.0 if bucket.take(now_s) else bucket.wait_s(now_s)

    def give_back(self, key: str) -> None:
        """Returns the token that `take` took."""
        if key in self._buckets:
            self._buckets[key].earn(1)


class TlsConnections:
    """The open connections by the client certificate of their handshake: the HTTP server's `PeerRegistry`."""

    def __init__(self) -> None:
        self._open: dict[str, set[http_server.Connection]] = {}

    def connected(self, certificate: bytes, connection: http_server.Connection) -> ClientCertificate:
        """Adds a connection, and returns its certificate (given as DER)."""
        peer = ClientCertificate.read(certificate)
        self._open.setdefault(peer.serial, set()).add(connection)
        return peer

    def disconnected(self, peer: ClientCertificate, connection: http_server.Connection) -> None:
        """Removes a connection."""
        connections = self._open.get(peer.serial, set())
        connections.discard(connection)
        if not connections:
            self._open.pop(peer.serial, None)

    def abort(self, serials: Iterable[str]) -> int:
        """Closes the connections of these certificates at once; returns their number."""
        connections = [connection for serial in serials for connection in self._open.get(serial, ())]
        for connection in connections:
            connection.abort()
        return len(connections)


@dataclass(eq=False)
class Gatekeeper:
    """Authenticates the callers of one gateway. Used on its event loop, except for the constructor.

    Args:
        readers: reads the store.
        folder: gets a new list of revoked certificates whenever it grows.
        refresh_s: interval at which changes are read.
        grace_s: how long after its end a certificate can still be renewed.
        clock: gives wall and monotonic time.

    Attributes:
        connections: the open TLS connections.
        credentials: devices, certificates and API keys.

    Raises:
        CapacityError: the store refuses.
        ConfigError: the folder cannot be used.
    """

    readers: Readers
    folder: AuthorityFolder
    refresh_s: float
    grace_s: float
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        self.connections = TlsConnections()
        self.credentials = KnownCredentials()
        self._buckets = TokenBuckets()
        self._lock = asyncio.Lock()
        self._waiting_refresh: asyncio.Task[None] | None = None
        self._refresh_began_s = -_SPACING_S
        self._task = PeriodicTask("revocations", self._keep_fresh, interval_s=self.refresh_s, clock=self.clock)
        with self.readers.database.reading() as connection:
            self.credentials.apply(self._read(connection))
        self._revoke_listed()

    async def start(self) -> None:
        """Starts to read changes."""
        await self._task.start()

    async def close(self) -> None:
        """Stops reading changes."""
        await self._task.close()
        await end_tasks(self._waiting_refresh)

    async def authenticate_key(self, text: str, *, counts: bool = True) -> ApiKey:
        """Returns the API key with this text, and counts a use of it unless `counts` is false.

        Raises:
            UnauthorizedError: there is none, or it has expired.
            RateLimitedError: it was used too often.
            CapacityError: it is not known here, and the store cannot be read.
        """
        digest = key_hash(text)
        key = self.credentials.key(digest)
        if key is None:
            await self.refreshed()
            key = self.credentials.key(digest)
        if key is None:
            raise UnauthorizedError(
                "This API key is not valid here: it is unknown, revoked or expired. Ask the gateway's operator for "
                "another."
            )
        if key.expires_s is not None and key.expires_s <= self.clock.wall_s():
            raise UnauthorizedError(
                f"The API key '{key.name}' expired on {iso_time(key.expires_s)}; ask the gateway's operator for a "
                "new one."
            )
        if counts and (rate := key.requests_per_s) is not None:
            wait_s = self._buckets.take(key.sha256, self.clock.monotonic_s(), per_s=rate, burst=max(1.0, rate))
            if wait_s:
                often = "once" if rate == 1 else f"{rate:g} times"
                raise RateLimitedError(f"The API key '{key.name}' may be used {often} a second.", retry_after_s=wait_s)
        return key

    def holds(self, text: str) -> bool:
        """Returns whether the API key with this text is known and has not expired; does not count as a use."""
        key = self.credentials.key(key_hash(text))
        return key is not None and (key.expires_s is None or key.expires_s > self.clock.wall_s())

    async def authenticate_certificate(self, certificate: ClientCertificate, *, renewing: bool = False) -> str:
        """Returns the device of a certificate.

        Args:
            certificate: signed by one of our authorities.
            renewing: accept an expired certificate while it can still be renewed.

        Raises:
            UnauthorizedError: it names no device, is not known, revoked, expired, or not valid yet.
            CapacityError: it is not known here, and the store cannot be read.
        """
        if certificate.device is None:
            raise UnauthorizedError("The client certificate is no device's; enrol the device with a join token.")
        issued = self.credentials.certificate(certificate.serial)
        if issued is None:
            await self.refreshed()
            issued = self.credentials.certificate(certificate.serial)
        if issued is None or issued.device != certificate.device:
            raise UnauthorizedError(
                f"This gateway has not issued the certificate {certificate.serial} to '{certificate.device}'; enrol "
                "the device with a new join token."
            )
        device = certificate.device
        if issued.revoked_s is not None:
            raise UnauthorizedError(
                f"The certificate of '{device}' was revoked on {iso_time(issued.revoked_s)}; to let the device in "
                "again, enrol it with a new join token."
            )
        now_s = self.clock.wall_s()
        if now_s < certificate.not_before_s:
            raise UnauthorizedError(
                f"The certificate of '{device}' is valid from {iso_time(certificate.not_before_s)} on, and here it is "
                f"{iso_time(now_s)}; is the gateway's clock right?"
            )
        if now_s > certificate.not_after_s + (self.grace_s if renewing else 0):
            late = now_s > certificate.not_after_s + self.grace_s
            raise UnauthorizedError(
                f"The certificate of '{device}' expired on {iso_time(certificate.not_after_s)}; "
                + ("enrol the device with a new join token." if late else "renew it.")
            )
        return device

    async def admit_device(self, device: str) -> None:
        """Returns if a device may call over MQTT, where the broker checked its certificate or password.

        Raises:
            UnauthorizedError: the device is not known, was revoked, or its certificate or key is not valid any more.
            CapacityError: it is not known here, and the store cannot be read.
        """
        if self.credentials.admits(device, self.clock.wall_s()):
            return
        if not self.credentials.is_revoked(device):
            await self.refreshed()
        if not self.credentials.admits(device, self.clock.wall_s()):
            raise UnauthorizedError(
                f"The device '{device}' has no certificate or key that is valid here; enrol it with a new join token."
            )

    async def refreshed(self) -> None:
        """Returns once all changes that were made before this call are applied.

        Raises:
            CapacityError: the store refuses.
        """
        if self._waiting_refresh is None:
            self._waiting_refresh = asyncio.create_task(self._refresh_once())
            # All callers may have left before it fails.
            self._waiting_refresh.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.shield(self._waiting_refresh)

    async def _refresh_once(self) -> None:
        await asyncio.sleep(max(0.0, self._refresh_began_s + _SPACING_S - self.clock.monotonic_s()))
        async with self._lock:
            self._waiting_refresh = None  # only here: all callers that come while this waits get its result
            await self._refresh()

    async def _refresh(self) -> None:
        """Applies changes; one call at a time."""
        self._refresh_began_s = self.clock.monotonic_s()
        revoked = self.credentials.apply(await self.readers.read(self._read))
        if revoked:
            aborted = self.connections.abort(revoked)
            log.info("certificates revoked", certificates=len(revoked), connections=aborted)
            await asyncio.to_thread(self.folder.write_revocations, self.credentials.revoked_certificates())

    def _revoke_listed(self) -> None:
        """Revokes the certificates that are on the list of revoked ones and valid in the store, which has lost that."""
        listed = self.folder.listed()
        lost = {
            serial: when_s
            for serial, when_s in listed.items()
            if (issued := self.credentials.certificate(serial)) is not None and issued.revoked_s is None
        }
        if lost:
            with self.readers.database.begin() as connection:
                enrolment.revoke_listed(connection, lost)
                self.credentials.apply(self._read(connection))
            log.error("revocations restored from the list that the store has lost", certificates=len(lost))

    def _read(self, connection: Connection) -> Changes:
        return read_changes(connection, self.credentials.version)

    async def _keep_fresh(self) -> None:
        """Applies changes; while the store is away, the known credentials stay valid."""
        async with self._lock:
            await self._refresh()
        self.credentials.remove_expired(self.clock.wall_s(), self.grace_s + REMEMBERED_S)
