"""What an MQTT client is told and what it carries, free of any MQTT library."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.storage.secrets import read_secret


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """How to reach the broker.

    Args:
        host: name or address.
        port: 1883 by custom, 8883 with TLS.
        client_id: unique at the broker, which ends an older connection of the same id.
        username: "" for none; the password is sent only with it.
        password_file: where to read the password anew for each connection, None to keep the first.
        tls_ca_file: authorities that may sign the broker's certificate; TLS is on if and only if this is
            set ("system" takes the machine's own).
        tls_certificate_file: this client's own, where the broker asks for one, with `tls_key_file`.
        tls: a context of the caller's own instead of all of these.
        keepalive_s: how often a quiet connection is tried; a silent loss is noticed within twice that.
        connect_timeout_s: for TCP, TLS and the broker's greeting each.
        reconnect_max_s: cap of the wait between two attempts.
        receive_maximum: messages of QoS 1 that may wait for our acknowledgement, and so handlers at once.
        maximum_packet_bytes: larger packets are kept from us by the broker.
    """

    host: str
    port: int = 1883
    client_id: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    tls_ca_file: Path | None = None
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    keepalive_s: int = 20
    connect_timeout_s: float = 5.0
    reconnect_max_s: float = 30.0
    receive_maximum: int = 64
    maximum_packet_bytes: int = 64 * 1024 * 1024

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def renewed(self) -> MqttSettings:
        """With the password that the file holds now; the one before where it cannot be read."""
        if self.password_file is None:
            return self
        try:
            return replace(self, password=read_secret(str(self.password_file), "password_file"))
        except ConfigError:  # it was read once; the broker says whether the old one still holds
            return self


@dataclass(frozen=True, slots=True)
class Publication:
    """A message to publish.

    Args:
        properties: MQTT 5 user properties.
        expiry_s: the broker drops it after so many seconds; None keeps it.
        qos: 0 or 1.
    """

    topic: str
    payload: bytes
    properties: dict[str, str] = field(default_factory=dict)
    response_topic: str = ""
    correlation_data: bytes = b""
    expiry_s: int | None = None
    retain: bool = False
    qos: int = 1


@dataclass(frozen=True, slots=True)
class Message:
    """A message received. Where a user property is repeated, the last one holds.

    Args:
        expiry_s: what is left of it, as the broker counts: the time it waited there is already gone.
        ack: acknowledges; only the first call counts, and none after the connection that brought it.
    """

    topic: str
    payload: bytes
    properties: dict[str, str] = field(default_factory=dict)
    response_topic: str = ""
    correlation_data: bytes = b""
    expiry_s: int | None = None
    retain: bool = False
    qos: int = 1
    ack: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
