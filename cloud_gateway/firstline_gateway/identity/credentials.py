"""The credentials that requests are checked against, in memory: devices, their certificates, and API keys."""

from __future__ import annotations

import hmac
import math
from collections import defaultdict
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Table, select

from firstline_core.telemetry.logs import logger
from firstline_gateway.identity.tables import API_KEYS, CERTIFICATES, DEVICES, VERSION
from firstline_gateway.store import service_clock

_INDEX_CHARACTERS = 16

_T = TypeVar("_T", bound=NamedTuple)

log = logger(__name__)


class RevokedCertificate(NamedTuple):
    """A certificate that is refused: its serial number in hexadecimal, when it was revoked, and its device."""

    serial: str
    revoked_s: float
    device: str


class DeviceRow(NamedTuple):
    """A row of the enrolled devices; see the tables for all columns."""

    name: str
    revoked_s: Any  # a damaged time of a revocation is one, too


class CertificateRow(NamedTuple):
    """A row of the certificates."""

    serial: Annotated[str, Meta(pattern="^[0-9a-f]+$")]
    device: str
    not_after_s: float
    # Until the end of the year 9999: a list of revoked certificates can hold no other time.
    revoked_s: Annotated[float, Meta(ge=0, lt=253_402_300_800)] | None
    retained_until_service_s: float


class ApiKey(NamedTuple):
    """One caller's key, as a row of the API keys.

    Attributes:
        name: unique among the keys that are not revoked.
        sha256: of the key's text, as hexadecimal digits.
        kind: "device" for a device of that name, otherwise "application".
        scopes: its permissions, with spaces between them.
        expires_s: wall time until which it is valid; None without end.
        requests_per_s: its rate limit; None without limit.
        person: the user; "" for a program.
        revoked_s: wall time at which it was revoked; None if it was not.
    """

    name: str
    sha256: str
    kind: str
    scopes: str
    expires_s: float | None
    requests_per_s: float | None
    person: str
    revoked_s: float | None


_REVOKED = {
    "not_after_s": math.inf,
    "revoked_s": 0.0,
    "retained_until_service_s": math.inf,
    "expires_s": None,
    "requests_per_s": None,
}
"""Numbers of a damaged row."""


class Changes(NamedTuple):
    """The rows that were changed since a version, and the store's service time in seconds."""

    version: int
    service_s: float
    devices: list[DeviceRow]
    certificates: list[CertificateRow]
    api_keys: list[ApiKey]


def read_changes(connection: Connection, since: int) -> Changes:
    """Returns the changes after version `since`; 0 returns everything.

    A damaged row is logged and counts as revoked, because it may have been valid before. A row without a readable
    owner or serial number is left out.
    """
    version = connection.execute(select(VERSION.c.version)).scalar_one()

    def changed(table: Table, kind: type[_T]) -> list[_T]:
        if version == since:
            return []
        rows = []
        for row in connection.execute(select(*(table.c[name] for name in kind._fields)).where(table.c.changed > since)):
            try:
                rows.append(msgspec.convert(tuple(row), kind))
            except msgspec.ValidationError as error:
                effect = "it is refused; revoke it and create another"
                log.error("credential damaged", table=table.name, name=ascii(row[0]), error=str(error), effect=effect)
                revoked = [_REVOKED.get(name, value) for name, value in zip(kind._fields, row, strict=True)]
                with suppress(msgspec.ValidationError):
                    rows.append(msgspec.convert(revoked, kind))
        return rows

    service_s = service_clock.read(connection)
    devices, certificates = changed(DEVICES, DeviceRow), changed(CERTIFICATES, CertificateRow)
    return Changes(version, service_s, devices, certificates, changed(API_KEYS, ApiKey))


class KnownCredentials:
    """All credentials; only `apply` changes them."""

    def __init__(self) -> None:
        self.version = 0
        self._service_s = 0.0
        self._devices: dict[str, bool] = {}  # whether it was revoked, and has not enrolled again since
        self._certificates: dict[str, CertificateRow] = {}
        self._serials: defaultdict[str, set[str]] = defaultdict(set)  # by device
        self._keys: dict[str, ApiKey] = {}
        self._device_keys: dict[str, str] = {}  # by device, the index of its key

    @property
    def is_empty(self) -> bool:
        """Whether there is neither an API key nor a certificate."""
        return not (self._keys or self._certificates)

    def is_revoked(self, device: str) -> bool:
        """Returns whether a device was revoked, and has not enrolled again since."""
        return self._devices.get(device, False)

    @property
    def revoked_devices(self) -> frozenset[str]:
        """Devices that were revoked, and have not enrolled again since."""
        return frozenset(name for name, revoked in self._devices.items() if revoked)

    def knows(self, device: str) -> bool:
        """Returns whether a device has enrolled here, revoked or not."""
        return device in self._devices

    def admits(self, device: str, now_s: float) -> bool:
        """Returns whether a device has a certificate or an API key that is valid at a wall time."""
        if self.is_revoked(device):
            return False
        certificates = (self._certificates[serial] for serial in self._serials.get(device, ()))
        key = self._keys.get(self._device_keys.get(device, ""))
        return any(one.revoked_s is None and now_s <= one.not_after_s for one in certificates) or (
            key is not None and (key.expires_s is None or now_s < key.expires_s)
        )

    def revoked_certificates(self) -> list[RevokedCertificate]:
        """Returns the revoked certificates, expired ones included: a verifier's clock may be behind."""
        return [
            RevokedCertificate(one.serial, one.revoked_s, one.device)
            for one in self._certificates.values()
            if one.revoked_s is not None
        ]

    def certificate(self, serial: str) -> CertificateRow | None:
        """Returns a certificate that was issued here."""
        return self._certificates.get(serial)

    def key(self, sha256: str) -> ApiKey | None:
        """Returns the API key with this hash; takes the same time however much of a guess is right."""
        # The index sees only a hash, which a guesser cannot steer; the comparison that decides is constant-time.
        key = self._keys.get(sha256[:_INDEX_CHARACTERS])
        return key if key is not None and hmac.compare_digest(key.sha256, sha256) else None

    def apply(self, changes: Changes) -> list[str]:
        """Applies changes, some of which may have been applied before.

        Returns:
            Serial numbers of the certificates that are revoked now and were not before.
        """
        for device in changes.devices:
            self._devices[device.name] = device.revoked_s is not None
        newly_revoked = []
        for certificate in changes.certificates:
            before = self._certificates.get(certificate.serial)
            if certificate.revoked_s is not None and (before is None or before.revoked_s is None):
                newly_revoked.append(certificate.serial)
            self._certificates[certificate.serial] = certificate
            self._serials[certificate.device].add(certificate.serial)
        for key in changes.api_keys:
            index = key.sha256[:_INDEX_CHARACTERS]
            if key.revoked_s is not None:
                self._keys.pop(index, None)
                if key.kind == "device" and self._device_keys.get(key.name, "") == index:
                    del self._device_keys[key.name]
            else:
                self._keys[index] = key
                if key.kind == "device":
                    self._device_keys[key.name] = index
        self.version = max(self.version, changes.version)
        self._service_s = max(self._service_s, changes.service_s)
        return newly_revoked

    def remove_expired(self, now_s: float, retention_s: float) -> None:
        """Drops certificates that ended more than `retention_s` ago, by wall time and by seconds of service."""
        self._certificates = {
            serial: one
            for serial, one in self._certificates.items()
            if one.not_after_s >= now_s - retention_s or one.retained_until_service_s >= self._service_s - retention_s
        }
        self._serials.clear()
        for serial, one in self._certificates.items():
            self._serials[one.device].add(serial)
