"""Settings and messages of the MQTT client, independent of any MQTT library."""

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
        port: by convention 1883, with TLS 8883.
        client_id: unique at the broker, which ends an older connection with the same id.
        username: "" for none; the password is sent only with it.
        password_file: read again for each connection; None to keep `password`.
        tls_ca_file: trusted authorities for the broker's certificate, or "system" for those of the machine; TLS is on
            if and only if this is set.
        tls_certificate_file: client certificate, if the broker requires one, with `tls_key_file`.
        tls: a ready context instead of all these files.
        keepalive_s: ping interval of an idle connection; a silent loss is detected within twice this time.
        connect_timeout_s: for TCP, TLS and the CONNACK each.
        reconnect_max_s: maximum delay between two attempts.
        receive_maximum: unacknowledged messages of QoS 1, and so concurrent handlers.
        maximum_packet_bytes: the broker does not deliver larger packets.
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
        """Returns the settings with the current password of the file; with the old one if it cannot be read."""
        if self.password_file is None:
            return self
        try:
            return replace(self, password=read_secret(str(self.password_file), "password_file"))
        except ConfigError:  # it was readable before; the broker decides whether the old one is still valid
            return self


@dataclass(frozen=True, slots=True)
class Publication:
    """A message to publish.

    Args:
        properties: MQTT 5 user properties.
        expiry_s: seconds after which the broker drops it; None for never.
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
    """A received message. If a user property is repeated, the last one counts.

    Args:
        expiry_s: remaining time; the broker has subtracted the time that the message waited there.
        ack: acknowledges it; only the first call counts, and only on the connection that delivered it.
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
