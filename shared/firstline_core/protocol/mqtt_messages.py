"""Settings, TLS, messages and errors of the MQTT client, independent of any MQTT library."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from firstline_core.errors import (
    CapacityError,
    ConfigError,
    FirstlineError,
    LinkDownError,
    PayloadTooLargeError,
    ProtocolError,
    UnauthorizedError,
)
from firstline_core.storage.secrets import read_secret

# RFC 8446, section 6.2, with OpenSSL's names.
_ALERTS = {
    "ALERT_CERTIFICATE_REVOKED": "it was revoked; enrol with a new join token",
    "ALERT_CERTIFICATE_EXPIRED": "by the broker's clock it has ended, or has not begun",
    "ALERT_UNKNOWN_CA": "it is of an authority that the broker does not believe",
    "ALERT_CERTIFICATE_REQUIRED": "there is none",
}


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


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """Returns the TLS context of the settings; None without TLS.

    Raises:
        ConfigError: a file that cannot be used, or a client certificate without TLS.
    """
    if settings.tls is not None:
        return settings.tls
    if settings.tls_ca_file is None:
        if settings.tls_certificate_file is not None or settings.tls_key_file is not None:
            raise ConfigError(
                "The MQTT connection has a certificate or key but no tls_ca_file, so it would not be encrypted; name "
                'the authorities to trust, or "system" for the machine\'s own.'
            )
        return None
    system = str(settings.tls_ca_file) == "system"
    try:
        context = ssl.create_default_context(cafile=None if system else settings.tls_ca_file)
        if settings.tls_certificate_file is not None:
            context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        files = [settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file]
        named = ", ".join(str(file) for file in files if file is not None)
        raise ConfigError(f"The TLS files of the MQTT connection ({named}) cannot be used: {error}.") from error
    return context


def handshake_problem(where: str, error: ssl.SSLError) -> str:
    """Returns a sentence about a failed handshake; OpenSSL only names the TLS alert."""
    reason = str(error)
    for alert, meaning in _ALERTS.items():
        if alert in reason:
            return f"The MQTT broker at {where} refuses this client's certificate: {meaning}."
    return f"The MQTT broker at {where} and this client do not agree on TLS: {error}."


def refusal(code: int, name: str, what: str) -> FirstlineError:
    """Returns the error for a reason code (MQTT 5, section 2.4).

    Args:
        code: 0x80 or more.
        name: of the broker or the standard.
        what: the refused operation, e.g. "the connection".
    """
    message = f"The MQTT broker refused {what}: {name}."
    match code:
        case 0x86 | 0x87 | 0x8A | 0x8C:  # bad user name or password, not authorised, banned, bad authentication
            return UnauthorizedError(message)
        case 0x88 | 0x89 | 0x96 | 0x97 | 0x9F:  # unavailable, busy, rate too high, quota exceeded
            return CapacityError(message)
        case 0x95:
            return PayloadTooLargeError(message)
        case _:
            return ProtocolError(message)


def not_connected(address: str) -> LinkDownError:
    """Returns the error for sending without a connection."""
    return LinkDownError(f"Not connected to the MQTT broker at {address}.")


def connection_lost(address: str, why: str) -> LinkDownError:
    """Returns the error for a packet whose answer cannot arrive."""
    return LinkDownError(f"The connection to the MQTT broker at {address} was lost ({why}).")
