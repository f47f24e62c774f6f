"""A gateway with TLS and, if wanted, its Mosquitto, as an operator sets them up, for devices that join them."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from sqlalchemy import insert
from support.broker import HOST, Broker, free_port
from support.gateway import gateway_settings, serving, wait_for_gauge
from support.identities import Device, invite
from support.keys import bearer, create_key

from firstline_core.protocol.enrolment import DEVICES_PATH
from firstline_core.protocol.http_server import ServerLimits
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.broker.config import CONFIGURATION
from firstline_gateway.identity import ca
from firstline_gateway.identity.enrolment import next_version
from firstline_gateway.identity.tables import CERTIFICATES

REFRESH_S = 0.2


@dataclass
class TlsSite:
    """A running gateway, and the client of its operator."""

    gateway: Gateway
    url: str
    folder: Path
    operator: httpx.AsyncClient
    broker: Broker | None = None
    device_port: int = 0
    gateway_port: int = 0

    def __post_init__(self) -> None:
        self.authority = self.gateway.identity.folder.open().active

    def device(self, name: str = "press-7") -> Device:
        """A device that has not enrolled."""
        return Device(self.folder / name, self.url, self.authority.pem, name)

    async def enrolled(self, name: str = "press-7") -> Device:
        device = self.device(name)
        (token,) = await invite(self.operator, name)
        assert (await device.enrol(token)).status_code == 200
        return device

    async def token_file(self, device: str) -> Path:
        """A join token as the operator hands it over."""
        (token,) = await invite(self.operator, device)
        file = self.folder / f"{device}.token"
        file.write_text(token + "\n")
        return file

    async def revoke(self, device: str) -> None:
        reply = await self.operator.post(f"{DEVICES_PATH}/{device}/revoke")
        assert reply.status_code == 200, reply.text

    def trusting(self, authority_pem: str) -> httpx.AsyncClient:
        """The operator's client, for a server whose certificate is another authority's."""
        verify = ssl.create_default_context(cadata=authority_pem)
        headers = {"Authorization": self.operator.headers["Authorization"]}
        return httpx.AsyncClient(base_url=self.url, verify=verify, headers=headers)

    def record_certificate(self, device: str, pem: str) -> None:
        """Records in the store, as if the gateway had issued it, a certificate that the test made."""
        found = ca.load_certificate(pem.encode())
        with self.gateway.store.database.begin() as connection:
            connection.execute(
                insert(CERTIFICATES).values(
                    serial=ca.serial_of(found),
                    device=device,
                    issued_s=found.not_valid_before_utc.timestamp(),
                    not_after_s=found.not_valid_after_utc.timestamp(),
                    changed=next_version(connection),
                    retained_until_service_s=0.0,
                )
            )


@asynccontextmanager
async def tls_site(
    folder: Path, *, mosquitto: bool = False, limits: ServerLimits | None = None, **overrides: object
) -> AsyncIterator[TlsSite]:
    """Serves the digits over HTTPS on a free port; with `mosquitto` also runs a broker on the files that it writes."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 (a test's own)
    device_port, gateway_port = free_port(), free_port()
    defaults: dict[str, object] = {"tls__enabled": True, "tls__hosts": (HOST,), "auth__refresh_s": REFRESH_S}
    if mosquitto:
        defaults |= {
            "identity__broker_host": HOST,
            "identity__broker_port": device_port,
            "mqtt__enabled": True,
            "mqtt__port": gateway_port,
            "broker__directory": str(folder / "broker"),
            "broker__port": device_port,
            "broker__gateway_port": gateway_port,
            "broker__pid_file": str(folder / "mosquitto.pid"),
        }
    settings = gateway_settings(folder, **(defaults | overrides))
    operator = bearer(create_key(settings.store, f"operator-{gateway_port}", "operator"))
    gateway = open_gateway(settings)
    async with AsyncExitStack() as stack:
        broker = None
        if mosquitto:
            config = folder / "broker" / CONFIGURATION
            broker = stack.enter_context(Broker(folder, config=config, port=gateway_port))
        url = await stack.enter_async_context(serving(gateway, limits=limits))
        if mosquitto:
            await wait_for_gauge(gateway, "firstline_gateway_mqtt_connected")
        verify = ssl.create_default_context(cadata=gateway.identity.folder.open().pem)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, verify=verify, headers=operator, timeout=20)
        )
        yield TlsSite(gateway, url, folder, client, broker, device_port, gateway_port)


async def refusal(client: httpx.AsyncClient, path: str = "/v2", headers: dict[str, str] | None = None) -> str:
    """Returns the sentence with which a request without valid credentials is refused."""
    reply = await client.get(path, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized"), reply.text
    return str(reply.json()["error"])
