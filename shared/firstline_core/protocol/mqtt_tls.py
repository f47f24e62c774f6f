"""TLS of the connection to a broker."""

from __future__ import annotations

import ssl

from firstline_core.errors import ConfigError
from firstline_core.protocol.mqtt_messages import MqttSettings

# RFC 8446, section 6.2, with OpenSSL's names.
_ALERTS = {
    "ALERT_CERTIFICATE_REVOKED": "it was revoked; enrol with a new join token",
    "ALERT_CERTIFICATE_EXPIRED": "by the broker's clock it has ended, or has not begun",
    "ALERT_UNKNOWN_CA": "it is of an authority that the broker does not believe",
    "ALERT_CERTIFICATE_REQUIRED": "there is none",
}


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
