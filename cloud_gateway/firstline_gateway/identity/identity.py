"""A gateway's identities put together from its settings: authority, devices, gatekeeper, TLS, trusted proxies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, UnauthorizedError
from firstline_core.protocol.enrolment import BrokerAddress
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.units import DAY_S
from firstline_gateway.identity import authorities, ca, client_certificate, tls
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.devices import Devices
from firstline_gateway.identity.gatekeeper import Gatekeeper
from firstline_gateway.identity.tls import ServerTls
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store.store import Readers, Store


class IdentityService:
    """Everything that decides who may call this gateway.

    Args:
        settings: as `settings/load.py` gave them.
        store: has devices and keys; not closed here.
        clock: gives wall and monotonic time.

    Raises:
        ConfigError: a file that the settings name cannot be used.
        CapacityError: the store refuses.
    """

    def __init__(self, settings: Settings, store: Store, *, clock: Clock) -> None:
        auth, identity = settings.auth, settings.identity
        self.requires_credentials = auth.mode != "off"
        self.cors_origins = settings.api.cors_origins
        self.refresh_s = auth.refresh_s
        self.proxy_header = auth.proxy_certificate_header.lower()
        self._trusted = client_certificate.networks(auth.trusted_proxies)
        self.folder = AuthorityFolder(Path(identity.directory), clock)
        self.readers = Readers(store.database)
        self.gatekeeper = Gatekeeper(
            self.readers, self.folder, refresh_s=auth.refresh_s, grace_s=identity.renew_grace_days * DAY_S, clock=clock
        )
        self.devices = Devices(
            self.folder,
            store,
            self.gatekeeper,
            identity,
            server_authority=_server_authority(settings.tls.ca_file),
            broker=BrokerAddress(identity.broker_host, identity.broker_port, settings.mqtt.prefix)
            if identity.broker_host
            else None,
            clock=clock,
        )
        self.tls = ServerTls(settings.tls, self.folder, clock) if settings.tls.enabled else None
        self.folder.write_revocations(self.gatekeeper.credentials.revoked_certificates())

    async def start(self) -> None:
        """Begins to take changes over."""
        await self.gatekeeper.start()
        if self.tls is not None:
            await self.tls.task.start()

    async def close(self) -> None:
        await self.gatekeeper.close()
        if self.tls is not None:
            await self.tls.task.close()

    async def admit_device(self, device: str) -> None:
        """Returns if a device of this name may call over MQTT.

        Raises:
            UnauthorizedError: authentication is on, and the device has no valid certificate or key.
            CapacityError: it is not known here, and the store cannot be read.
        """
        if self.requires_credentials:
            await self.gatekeeper.admit_device(device)

    def trusts(self, address: str) -> bool:
        """Returns whether a connection from this address may forward a client's certificate."""
        return client_certificate.is_trusted(address, self._trusted)

    async def proxied_certificate(self, values: Sequence[str]) -> ClientCertificate | None:
        """Returns the certificate that a trusted proxy names; None if it names none.

        Raises:
            UnauthorizedError: it cannot be used.
        """
        if not any(values):
            return None
        if not self.folder.exists:
            raise UnauthorizedError(
                "This gateway has no certificate authority, so no client certificate is valid here."
            )
        return client_certificate.proxied_certificate(values, await asyncio.to_thread(self.folder.open))


def register_metrics(metrics: RequestMetrics, identity: IdentityService) -> None:
    """Registers when the server's certificate begins and ends."""
    metrics.readings(
        "server_certificate_timestamp_seconds",
        "Begin and end of the validity of the certificate that the gateway shows to its clients (Unix time).",
        ("bound",),
        lambda: {} if identity.tls is None else identity.tls.validity,
    )


def check_files(settings: Settings) -> None:
    """Tries what the settings name, without making anything.

    Raises:
        ConfigError: a certificate, its key or its authority, or a proxy's address is invalid.
    """
    client_certificate.networks(settings.auth.trusted_proxies)
    _server_authority(settings.tls.ca_file)
    tls.check(settings.tls)
    directory = Path(settings.identity.directory)
    if (directory / authorities.BUNDLE_FILE).exists():  # else it is made when it is first needed
        authorities.open_authorities(directory, time.time())


def _server_authority(file: str) -> str:
    """Returns the certificate of another authority of the server; "" if none is configured.

    Raises:
        ConfigError: it is not an authority's certificate.
    """
    if not file:
        return ""
    content = authorities.read(Path(file))
    try:
        certificate = ca.load_certificate(content)
        ca.check_authority(certificate)
    except ConfigError as error:
        raise ConfigError(f"tls.ca_file {file}: {error.message}") from error
    return ca.pem_of(certificate)
