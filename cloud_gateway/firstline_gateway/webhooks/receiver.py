"""A receiver of messages, and one attempt to deliver a message to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from firstline_core.clock import Clock
from firstline_core.protocol.http_client import (
    HTTP_FAILURES,
    ClientSettings,
    connection_fault,
    open_async_client,
    without_environment,
)
from firstline_core.storage.setting_places import quoted
from firstline_gateway.settings.settings import WebhookSection
from firstline_gateway.webhooks import messages
from firstline_gateway.webhooks.messages import Message

_TIMEOUT_S = 10.0
_REFUSED = (401, 403)
_NOT_FOUND = (404, 405, 410)
_TRUST = "Name the file of the receiver's authority in SSL_CERT_FILE, and restart the gateway."


class DeliveryAttempt(NamedTuple):
    """An attempt to deliver a message.

    Attributes:
        status: of the answer; None without one.
        latency_ms: until the answer or the failure.
        problem: why the message was not delivered; "" if it was.
        remedy: what to do about the problem, as a sentence; "" without one.
    """

    status: int | None
    latency_ms: float
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver of one webhook.

    Args:
        name: of the webhook.
        server: the receiver; its URL may contain a secret, so it is in no message.
        signing_key: signs messages.
        clock: gives the time of an attempt.
    """

    name: str
    server: ClientSettings
    signing_key: bytes
    clock: Clock

    def client(self) -> httpx.AsyncClient:
        """Returns a client for attempts; the caller closes it."""
        return open_async_client(self.server)

    async def attempt(self, message: Message, client: httpx.AsyncClient) -> DeliveryAttempt:
        """Sends a message once."""
        started_s = self.clock.monotonic_s()
        status, problem, remedy = await self._send(message, client)
        return DeliveryAttempt(status, round(1000 * (self.clock.monotonic_s() - started_s), 1), problem, remedy)

    async def _send(self, message: Message, client: httpx.AsyncClient) -> tuple[int | None, str, str]:
        headers = messages.headers(message, self.signing_key, self.clock.wall_s())
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                client.stream("POST", self.server.url, content=message.body, headers=headers) as response,
            ):
                status = response.status_code  # its body is not read
        except (TimeoutError, httpx.TimeoutException):
            return (
                None,
                f"it did not answer within {_TIMEOUT_S:g} s",
                f"{self._reach} It has to answer before its work.",
            )
        except HTTP_FAILURES as error:
            fault = connection_fault(error, self.server.url)
            return None, f"it cannot be reached: {fault}", _TRUST if "certificate" in fault else self._reach
        if response.is_success:
            return status, "", ""
        return status, f"it answered with status {status}", self._remedy(status)

    def _remedy(self, status: int) -> str:
        if status in _REFUSED:
            key = self._setting("secret_file")
            return f"Compare its signing key with {key} here, its clock with this machine's, and a token in its URL."
        if status in _NOT_FOUND:
            return f"Check the path of the address in {self._setting('url')}."
        if 300 <= status < 400:
            return f"Name the final address in {self._setting('url')}; the gateway follows no redirect."
        return "Look into the receiver's log."

    @property
    def _reach(self) -> str:
        return f"Check that the receiver runs, and that this gateway reaches the address in {self._setting('url')}."

    def _setting(self, key: str) -> str:
        return f"webhooks.{quoted(self.name)}.{key}"


def receiver_of(name: str, settings: WebhookSection, clock: Clock) -> Receiver:
    """Returns the receiver of a webhook, with the proxy and the authorities that the environment names now. Blocks.

    Raises:
        ConfigError: the file of the signing key, or a variable of the environment, cannot be used.
    """
    signing_key = messages.read_key(settings.secret_file, f"webhooks.{quoted(name)}.secret_file")
    server = ClientSettings(settings.url, timeout=_TIMEOUT_S, use_environment=True)
    return Receiver(name, without_environment(server), signing_key, clock)
