import ssl
from pathlib import Path

import pytest

from firstline_core.errors import ConfigError
from firstline_core.protocol.mqtt_messages import MqttSettings
from firstline_core.protocol.mqtt_tls import handshake_problem, tls_context


def test_no_authorities_is_no_tls() -> None:
    assert tls_context(MqttSettings("broker")) is None
    assert tls_context(MqttSettings("broker", tls_ca_file=Path("system"))) is not None


def test_a_certificate_is_never_silently_left_out() -> None:
    for named in ({"tls_certificate_file": Path("a.pem")}, {"tls_key_file": Path("a.key")}):
        with pytest.raises(ConfigError, match="tls_ca_file"):
            tls_context(MqttSettings("broker", **named))


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.pem"):
        tls_context(MqttSettings("broker", tls_ca_file=tmp_path / "absent.pem"))


def test_an_alert_about_the_certificate_is_told_as_what_it_means() -> None:
    alert = ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_REVOKED] sslv3 alert certificate revoked (_ssl.c:2580)")
    assert handshake_problem("b:8883", alert) == (
        "The MQTT broker at b:8883 refuses this client's certificate: it was revoked; enrol with a new join token."
    )
    other = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    assert "do not agree on TLS: " in handshake_problem("b:8883", other)
