"""The broker's configuration as text, and what the settings make of it."""

import base64
import hashlib
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import ConfigError
from firstline_core.types import NAME_PATTERN, Name
from firstline_gateway.broker.config import access_list, configuration, denied_devices, password_line
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import BROKER_USER, ApiSection, BrokerSection, MqttSection, Settings

NAMES = st.from_regex(NAME_PATTERN, fullmatch=True)
FOLDER = PurePosixPath("/mosquitto/config")


@given(st.sets(NAMES, max_size=4))
def test_denied_devices_are_read_from_the_access_list(devices: set[str]) -> None:
    assert denied_devices(access_list("firstline/v1", devices)) == devices


@given(NAMES)
def test_no_name_of_a_device_adds_a_line_of_its_own(device: str) -> None:
    before, after = access_list("p").splitlines(), access_list("p", [device]).splitlines()
    assert [line for line in after if line not in (f"user {device}", "topic deny #", "")] == [
        line for line in before if line
    ]


def test_no_device_can_be_given_the_gateways_user() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(BROKER_USER, Name)


def test_a_password_is_hashed_as_mosquitto_does() -> None:
    line = password_line("_gateway", "secret", bytes(12))
    user, _, rest = line.strip().partition(":")
    _, kind, iterations, salt, digest = rest.split("$")
    assert (user, kind, base64.b64decode(salt)) == ("_gateway", "7", bytes(12))
    assert base64.b64decode(digest) == hashlib.pbkdf2_hmac("sha512", b"secret", bytes(12), int(iterations))


def test_limits_come_from_the_settings() -> None:
    broker = BrokerSection(directory=str(FOLDER), connections=5, pid_file="/run/p")
    text = configuration(
        Settings(broker=broker, api=ApiSection(body_limit_bytes=1000), mqtt=MqttSection(concurrency=7))
    )
    assert f"max_packet_size {1000 + 65_536}\n" in text
    assert "max_inflight_messages 7\n" in text
    assert "max_connections 5\n" in text
    assert "pid_file /run/p\n" in text
    assert "pid_file" not in configuration(Settings(broker=BrokerSection(directory=str(FOLDER))))
    here = configuration(Settings(broker=BrokerSection(directory=str(FOLDER), pid_file="p")))
    assert f"pid_file {Path.cwd() / 'p'}\n" in here


def test_without_a_pid_file_the_working_directory_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert "pid_file" not in configuration(Settings(broker=BrokerSection(directory=str(FOLDER))))


def test_a_gateway_with_the_brokers_folder_needs_no_credentials_beside(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[identity]\nbroker_host = "broker.example.com"\n[mqtt]\nenabled = true\n'
        '[broker]\ndirectory = "broker"\nport = 28883\ngateway_port = 28884\npid_file = "broker.pid"\n'
        'seen_as = "/mosquitto/config"\n'
    )
    found = load(file, environ={})
    folder = tmp_path / "broker"
    assert (found.mqtt.username, found.mqtt.password_file) == (BROKER_USER, str(folder / "gateway_password"))
    assert found.mqtt.tls_ca_file == str(folder / "ca.pem")
    assert found.broker.hosts == ("broker.example.com", "127.0.0.1")
    assert BrokerFolder(found).path == folder
    assert (found.broker.seen_folder, found.broker.data_folder) == (FOLDER, FOLDER / "data")
    assert f"max_packet_size {found.api.body_limit_bytes + 65_536}\n" in configuration(found)
    assert (found.identity.broker_port, found.mqtt.port) == (28883, 28884), "what is said once is not asked again"
    assert found.broker.pid_file == str(tmp_path / "broker.pid")
    mapped = load(file, environ={}, overrides={"identity.broker_port": 443, "mqtt.port": 28885})
    assert (mapped.identity.broker_port, mapped.mqtt.port) == (443, 28885)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"broker.directory": "b"}, "broker.hosts is empty"),
        ({"broker.directory": "b", "broker.hosts": ["not a host"]}, "neither a host name nor an address"),
    ],
)
def test_a_broker_without_hosts_is_refused(overrides: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(None, environ={}, overrides=overrides)
