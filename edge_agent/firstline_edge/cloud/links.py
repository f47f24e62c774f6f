"""Creates the links from the settings, and registers their metrics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from firstline_core.clock import Clock, first_of
from firstline_core.errors import ConfigError, FirstlineError, LinkDownError
from firstline_core.protocol.mqtt_messages import MqttSettings, Topics, tls_context
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import InferResponse
from firstline_edge.cloud.breaker import CircuitBreaker, RetryBudget
from firstline_edge.cloud.chain import BudgetGate, LinkChain, no_budget
from firstline_edge.cloud.client import CloudClient
from firstline_edge.cloud.link import Link
from firstline_edge.identity.credentials import Credentials
from firstline_edge.settings.settings import EdgeSettings, LinkSection, link_names, request_limits

if TYPE_CHECKING:
    from firstline_edge.cloud.mqtt_link import MqttLink

Birth = Callable[[], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Links:
    """The links of this device.

    Args:
        chain: all of them in order; empty on a device without links.
        mqtt: links that also announce corrections to local applications.
        joined: links that present the device's certificate.
    """

    chain: LinkChain
    mqtt: tuple[MqttLink, ...] = ()
    joined: tuple[Link, ...] = ()

    async def wait_connected(self) -> None:
        """Waits until one of the brokers is connected."""
        await first_of(*(link.wait_connected() for link in self.mqtt))

    async def wait_usable(self) -> None:
        """Waits until a link may be used."""
        while not self.chain.available:
            await self.chain.wait_recovery(self.chain.recoveries)

    async def publish(self, corrections: Sequence[InferResponse]) -> None:
        """Announces corrections over every connected broker; at least one of them must acknowledge all.

        Raises:
            LinkDownError: none is connected.
            FirstlineError: each broker refused it.
        """
        error: FirstlineError = LinkDownError("No MQTT broker is connected.")
        acknowledged = False
        for link in self.mqtt:
            if not link.connected:
                continue
            try:
                for correction in corrections:
                    await link.publish_correction(correction)
                acknowledged = True
            except FirstlineError as failure:
                error = failure
        if not acknowledged:
            raise error

    async def reconnect(self) -> None:
        """Reconnects every link that presents the device's certificate, with the current certificate."""
        try:
            await asyncio.gather(*(link.reconnect() for link in self.joined))
        finally:
            self.chain.retry_now()


async def open_links(
    settings: EdgeSettings,
    birth: Birth,
    clock: Clock,
    budget_gate: BudgetGate = no_budget,
    *,
    credentials: Credentials | None = None,
) -> Links:
    """Creates and starts the links, without waiting for connections.

    Args:
        settings: name the links.
        birth: returns what brokers keep of this device.
        clock: for deadlines.
        budget_gate: see `LinkChain`.
        credentials: of a device that has joined.

    Raises:
        ConfigError: a URL, a certificate or a secret cannot be used.
    """
    links: list[Link] = []
    mqtt: list[MqttLink] = []
    joined: list[Link] = []
    limits = request_limits(settings.api)
    for number, (name, section) in enumerate(zip(link_names(settings.links), settings.links, strict=True)):
        with _naming(number):
            match section.kind:
                case "http":
                    # httpx takes time and memory to import, which a device that speaks MQTT alone need not spend.
                    from firstline_edge.cloud.http_link import HttpLink

                    links.append(HttpLink(section, credentials, name=name, clock=clock, limits=limits))
                case "mqtt":
                    # paho takes 6 MB of memory, which a device without MQTT need not spend.
                    from firstline_edge.cloud.mqtt_link import MqttLink

                    broker = mqtt_settings(section, f"firstline-edge-{settings.device_id}", credentials)
                    topics = Topics(settings.device_id, section.topic_prefix)
                    mqtt.append(MqttLink(broker, topics, name=name, birth=birth, clock=clock, limits=limits))
                    links.append(mqtt[-1])
                case _:
                    assert_never(section.kind)
        if section.shows_identity and credentials is not None:
            joined.append(links[-1])
    rng = random.Random()  # noqa: S311 (jitter)
    chain = LinkChain(
        links,
        [CircuitBreaker(clock, rng, settings.breaker) for _ in links],
        clock,
        retries=RetryBudget(clock, settings.retries),
        budget_gate=budget_gate,
    )
    await chain.start()
    return Links(chain, tuple(mqtt), tuple(joined))


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """Names a link by its place in the settings in the error about one of its settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.message.replace("links.", f"links[{number}].", 1)) from error


def mqtt_settings(section: LinkSection, client_id: str, credentials: Credentials | None = None) -> MqttSettings:
    """Returns the broker's settings.

    Args:
        section: of an MQTT link.
        client_id: the broker closes an older connection with the same id.
        credentials: of a device that has joined.

    Raises:
        ConfigError: a certificate or a secret that cannot be used.
    """
    broker = MqttSettings(
        section="links",
        host=section.host,
        port=section.port,
        client_id=client_id,
        keepalive_s=section.keepalive_s,
        username=section.username,
        password=read_secret(section.password_file, "links.password_file", "the password"),
        password_file=_path(section.password_file),
        tls_ca_file=_path(section.tls_ca_file),
        tls_certificate_file=_path(section.tls_certificate_file),
        tls_key_file=_path(section.tls_key_file),
        tls=credentials.context if credentials is not None and section.shows_identity else None,
    )
    tls_context(broker)  # the connection is made in the background, where a wrong file would not be reported
    return broker


def _path(file: str) -> Path | None:
    return Path(file) if file else None


def register_metrics(metrics: RequestMetrics, links: Links, client: CloudClient) -> None:
    """Registers availability and times of the links, retries, and requests that were held back."""
    metrics.gauge("link_available", "1 while a link to a gateway may be used.", lambda: float(links.chain.available))
    metrics.readings(
        "rejected_answers_total",
        "Answers of a gateway that were not accepted: of another request or model, or impossible.",
        ("link",),
        lambda: {(name,): float(count) for name, count in links.chain.rejected_answers().items()},
    )
    metrics.readings(
        "link_seconds",
        "Recent times of a link's calls, for payloads of the usual size.",
        ("link", "part", "quantile"),
        lambda: _link_seconds(links),
    )
    metrics.readings(
        "retries_total",
        "Retries after a failure, and retries that the budget did not allow.",
        ("outcome",),
        lambda: _retries(links),
    )
    metrics.readings(
        "held_back_total",
        "Requests that would probably have been answered too late: held back, or sent to measure.",
        ("outcome",),
        lambda: {("held_back",): client.lateness.held_back, ("explored",): client.lateness.explored},
    )


def _link_seconds(links: Links) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for link, timing in links.chain.timings().items():
        for part in ("total", "network", "service"):
            for quantile, field in (("0.5", f"{part}_p50_ms"), ("0.95", f"{part}_p95_ms")):
                ms = getattr(timing, field, None)
                if ms is not None:
                    found[link, part, quantile] = ms / 1000
    return found


def _retries(links: Links) -> dict[tuple[str, ...], float]:
    chain = links.chain
    return {("allowed",): chain.retries.retries, ("denied",): chain.retries.denied} if chain.linked else {}
