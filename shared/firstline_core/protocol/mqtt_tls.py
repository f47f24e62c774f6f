"""TLS towards a broker, as the settings ask for it."""

from __future__ import annotations

import ssl

from firstline_core.errors import ConfigError
from firstline_core.protocol.mqtt_messages import MqttSettings

# RFC 8446, 6.2, in OpenSSL's spelling.
_ALERTS = {
    "ALERT_CERTIFICATE_REVOKED": "it was revoked; enrol with a new join token",
    "ALERT_CERTIFICATE_EXPIRED": "by the broker's clock it has ended, or has not begun",
    "ALERT_UNKNOWN_CA": "it is of an authority that the broker does not believe",
    "ALERT_CERTIFICATE_REQUIRED": "there is none",
}


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """None where the settings ask for no TLS.

    Raises:
        ConfigError: a file that cannot be used, or a certificate without TLS to show it in.
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


def disagreement(where: str, error: ssl.SSLError) -> str:
    """What a failed handshake means for whoever asks; OpenSSL names alerts of TLS alone."""
    reason = str(error)
    for alert, meaning in _ALERTS.items():
        if alert in reason:
            return f"The MQTT broker at {where} refuses this client's certificate: {meaning}."
    return f"The MQTT broker at {where} and this client do not agree on TLS: {error}."
