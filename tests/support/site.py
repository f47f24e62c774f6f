"""A gateway that serves HTTPS on loopback, and its fleet manager."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from sqlalchemy import insert
from support.databases import sqlite_store
from support.gateway import DIGITS, serving
from support.identities import Device, invite
from support.keys import bearer, create_key

from firstline_core.protocol.http_server import ServerLimits
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.identity import ca
from firstline_gateway.identity.enrolment import next_version
from firstline_gateway.identity.tables import CERTIFICATES
from firstline_gateway.settings.load import load

REFRESH_S = 0.2


class Site:
    """A gateway that serves HTTPS, and its fleet manager."""

    def __init__(self, gateway: Gateway, url: str, folder: Path, keeper: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.url = url
        self.folder = folder
        self.keeper = keeper
        self.authority = gateway.identity.folder.open().active

    def device(self, name: str = "press-7") -> Device:
        return Device(self.folder / name, self.url, self.authority.pem, name)

    async def enrolled(self, name: str = "press-7") -> Device:
        device = self.device(name)
        (token,) = await invite(self.keeper, name)
        assert (await device.enrol(token)).status_code == 200
        return device

    def trusting(self, believed_pem: str) -> httpx.AsyncClient:
        """The keeper's client, for a server whose certificate is another authority's."""
        believed = ssl.create_default_context(cadata=believed_pem)
        headers = {"Authorization": self.keeper.headers["Authorization"]}
        return httpx.AsyncClient(base_url=self.url, verify=believed, headers=headers)

    def issued(self, device: str, pem: str) -> None:
        """Has the store know a certificate that the test made."""
        found = ca.load_certificate(pem.encode())
        with self.gateway.store.database.begin() as on:
            version = next_version(on)
            on.execute(
                insert(CERTIFICATES).values(
                    serial=ca.serial_of(found),
                    device=device,
                    issued_s=found.not_valid_before_utc.timestamp(),
                    not_after_s=found.not_valid_after_utc.timestamp(),
                    changed=version,
                    kept_service_s=0.0,
                )
            )


@asynccontextmanager
async def site(folder: Path, limits: ServerLimits | None = None, **overrides: object) -> AsyncIterator[Site]:
    settings = load(
        None,
        overrides={
            "models.directory": str(DIGITS.parent),
            "store.url": sqlite_store(folder).url,
            "tls.enabled": True,
            "tls.hosts": ["127.0.0.1"],
            "identity.directory": str(folder / "identity"),
            "auth.refresh_s": REFRESH_S,
        }
        | overrides,
    )
    headers = bearer(create_key(settings.store, f"anna-{time.time_ns()}", "operator"))
    gateway = open_gateway(settings)
    believed = ssl.create_default_context(cadata=gateway.identity.folder.open().pem)
    async with (
        serving(gateway, limits=limits) as url,
        httpx.AsyncClient(base_url=url, verify=believed, headers=headers) as keeper,
    ):
        yield Site(gateway, url, folder, keeper)


async def refusal(client: httpx.AsyncClient, path: str = "/v2", headers: dict[str, str] | None = None) -> str:
    """The sentence with which a request is refused for who asks."""
    reply = await client.get(path, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized"), reply.text
    sentence: str = reply.json()["error"]
    return sentence
