from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from firstline_core import errors
from firstline_core.errors import ConfigError
from firstline_core.protocol.mqtt_messages import MqttSettings, handshake_problem, refusal, tls_context


def test_a_password_is_read_anew_for_each_connection_and_kept_where_its_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    settings = MqttSettings("broker", password="old", password_file=file)
    assert settings.renewed().password == "old"
    file.write_text("new\n")
    assert settings.renewed().password == "new"
    assert MqttSettings("broker", password="old").renewed().password == "old"


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


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0x80, errors.ProtocolError),
        (0x86, errors.UnauthorizedError),
        (0x87, errors.UnauthorizedError),
        (0x89, errors.CapacityError),
        (0x95, errors.PayloadTooLargeError),
        (0x97, errors.CapacityError),
        (0xFF, errors.ProtocolError),
    ],
)
def test_reason_codes_have_their_place_in_the_tree(code: int, kind: type[errors.FirstlineError]) -> None:
    error = refusal(code, "Some Reason", "the connection")
    assert type(error) is kind
    assert error.message == "The MQTT broker refused the connection: Some Reason."
