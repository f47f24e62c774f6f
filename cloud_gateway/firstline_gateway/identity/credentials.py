"""The credentials that requests are checked against, in memory: devices, their certificates, and API keys."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from firstline_gateway.identity.tables import API_KEYS, CERTIFICATES, DEVICES, VERSION
from firstline_gateway.store import service_clock

_INDEX_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Certificate:
    """One that a device was given; times are seconds since 1970, but for `kept_service_s`, which is of service."""

    serial: str
    device: str
    not_after_s: float
    revoked_s: float | None
    kept_service_s: float


class Revoked(NamedTuple):
    """A certificate that is refused: its serial number in hexadecimal, when it was revoked, and its device."""

    serial: str
    revoked_s: float
    device: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One caller's key.

    Args:
        sha256: of the key's text, as hexadecimal digits.
        name: unique among those that are not revoked.
        kind: "device" for a device of that name, otherwise "application".
        scopes: its permissions.
        expires_s: wall time until which it is valid; None without end.
        requests_per_s: how often it may be used; None without limit.
    """

    sha256: str
    name: str
    kind: str
    scopes: frozenset[str]
    expires_s: float | None
    requests_per_s: float | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes in the store since a version, and the store's service time in seconds."""

    version: int
    service_s: float
    devices: list[Any] = field(default_factory=list)
    certificates: list[Any] = field(default_factory=list)
    api_keys: list[Any] = field(default_factory=list)


def read_changes(connection: Connection, since: int) -> Changes:
    """Returns the changes after version `since`; 0 returns everything."""
    version = connection.execute(select(VERSION.c.version)).scalar_one()
    service_s = service_clock.read(connection)
    if version == since:
        return Changes(version, service_s)

    def changed(table: Any) -> list[Any]:
        return list(connection.execute(select(table).where(table.c.changed > since)))

    return Changes(version, service_s, changed(DEVICES), changed(CERTIFICATES), changed(API_KEYS))


class Known:
    """All of it; changed by `apply` alone."""

    def __init__(self) -> None:
        self.version = 0
        self._service_s = 0.0
        self._revoked_devices: set[str] = set()
        self._certificates: dict[str, Certificate] = {}
        self._keys: dict[str, ApiKey] = {}

    @property
    def anybody(self) -> bool:
        """Whether there is an API key or a certificate at all."""
        return bool(self._keys or self._certificates)

    def is_revoked(self, device: str) -> bool:
        """Whether a device was revoked, and has not enrolled again since."""
        return device in self._revoked_devices

    def certificate(self, serial: str) -> Certificate | None:
        """A certificate that was issued here."""
        return self._certificates.get(serial)

    @property
    def revoked_devices(self) -> frozenset[str]:
        """Devices that were revoked, and have not enrolled again since."""
        return frozenset(self._revoked_devices)

    def revoked(self) -> list[Revoked]:
        """The revoked certificates that are not forgotten: by whose clock the others are over is not for us to say."""
        return [
            Revoked(one.serial, one.revoked_s, one.device)
            for one in self._certificates.values()
            if one.revoked_s is not None
        ]

    def key(self, sha256: str) -> ApiKey | None:
        """The API key with this hash; takes the same time however much of a guess is right."""
        # The index sees only a hash, which a guesser cannot steer; the comparison that decides is constant-time.
        found = self._keys.get(sha256[:_INDEX_CHARACTERS])
        return found if found is not None and hmac.compare_digest(found.sha256, sha256) else None

    def apply(self, changes: Changes) -> list[str]:
        """Takes changes over, of which some may be known already.

        Returns:
            Serial numbers of the certificates that are revoked now and were not before.
        """
        for row in changes.devices:
            (self._revoked_devices.discard if row.revoked_s is None else self._revoked_devices.add)(row.name)
        revoked = []
        for row in changes.certificates:
            before = self._certificates.get(row.serial)
            if row.revoked_s is not None and (before is None or before.revoked_s is None):
                revoked.append(row.serial)
            self._certificates[row.serial] = Certificate(
                row.serial, row.device, row.not_after_s, row.revoked_s, row.kept_service_s
            )
        for row in changes.api_keys:
            if row.revoked_s is not None:
                self._keys.pop(row.sha256[:_INDEX_CHARACTERS], None)
            else:
                self._keys[row.sha256[:_INDEX_CHARACTERS]] = ApiKey(
                    row.sha256, row.name, row.kind, frozenset(row.scopes.split()), row.expires_s, row.requests_per_s
                )
        self.version = max(self.version, changes.version)
        self._service_s = max(self._service_s, changes.service_s)
        return revoked

    def forget(self, now_s: float, kept_s: float) -> None:
        """Drops certificates that ended more than `kept_s` ago, by wall time and by seconds of service."""
        self._certificates = {
            serial: one
            for serial, one in self._certificates.items()
            if one.not_after_s >= now_s - kept_s or one.kept_service_s >= self._service_s - kept_s
        }
