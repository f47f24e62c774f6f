import tomllib
from pathlib import Path

import msgspec
import pytest
from support.example_settings import GATEWAY_FILE as EXAMPLE

from firstline_core.errors import ConfigError
from firstline_core.hardware import kernel_files
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import ExecutionSection, Settings


def test_the_example_shows_every_key_with_its_default() -> None:
    assert tomllib.loads(EXAMPLE.read_text()) == msgspec.json.decode(msgspec.json.encode(Settings()))


def test_relative_paths_count_from_the_files_folder() -> None:
    found = load(EXAMPLE)
    assert Path(found.models.directory) == EXAMPLE.parent / "models"
    assert found.mqtt.password_file == found.mqtt.tls_ca_file == found.store.password_file == ""
    assert found.store.url == f"sqlite:///{EXAMPLE.parent / 'gateway.db'}"
    assert load(EXAMPLE, overrides={"store.url": "sqlite:////srv/g.db"}).store.url == "sqlite:////srv/g.db"
    assert load(None, overrides={"mqtt.tls_ca_file": "system"}).mqtt.tls_ca_file == "system"
    assert load(EXAMPLE, overrides={"models.directory": "/srv/models"}).models.directory == "/srv/models"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example"])
def test_authentication_is_off_on_loopback_only(host: str) -> None:
    with pytest.raises(ConfigError, match=r'auth\.mode = "off" would let anybody who reaches'):
        load(None, overrides={"auth.mode": "off", "api.host": host})
    assert load(None, overrides={"api.host": host, "api.plain_http": True}).auth.mode == "tokens"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_plain_http_beyond_loopback_is_switched_on_by_name(host: str) -> None:
    with pytest.raises(
        ConfigError, match=r"over the network unencrypted; set tls\.enabled = true and tls\.hosts, or api"
    ):
        load(None, overrides={"api.host": host})
    assert load(None, overrides={"api.host": host, "api.plain_http": True}).api.host == host
    with_tls = {"api.host": host, "tls.enabled": True, "tls.hosts": ["gateway.example"]}
    assert load(None, overrides=with_tls).tls.hosts == ("gateway.example",)


@pytest.mark.parametrize(
    "overrides", [{"auth.proxy_certificate_header": "X-Client-Cert"}, {"auth.trusted_proxies": ["192.0.2.7"]}]
)
def test_a_proxys_header_needs_the_proxy_and_the_header(overrides: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="a header counts from named proxies alone"):
        load(None, overrides=overrides)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_this_machine_alone(host: str) -> None:
    assert load(None, overrides={"auth.mode": "off", "api.host": host}).auth.mode == "off"


def test_the_environment_is_read() -> None:
    found = load(None, environ={"FIRSTLINE_GATEWAY_EXECUTION__PROVIDERS": '["CUDAExecutionProvider"]'})
    assert found.execution.providers == ("CUDAExecutionProvider",)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "neither"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///gateway.db?mode=ro", "names no file"),
        ("postgresql+psycopg://[::1/name", "no URL"),
    ],
)
def test_a_store_that_makes_no_sense_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(None, overrides={"store.url": url})


def test_replicas_share_a_server() -> None:
    url = "postgresql+psycopg://firstline@db.example/firstline"
    assert load(EXAMPLE, overrides={"store.url": url}).store.url == url


def test_a_password_needs_a_user() -> None:
    with pytest.raises(ConfigError, match=r"without mqtt\.username"):
        load(None, overrides={"mqtt.password_file": "p"})


@pytest.mark.parametrize("key", ["api.keep_alive_s", "api.drain_s"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e9"])
def test_durations_are_durations(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(None, overrides={key: float(value)})


def test_no_broker_is_needed_without_mqtt() -> None:
    assert load(None, overrides={"mqtt.host": ""}).mqtt.host == ""


def test_limits_and_sessions_follow_from_the_settings() -> None:
    found = load(None, overrides={"api.body_limit_bytes": 1000, "api.rows_limit": 7})
    assert (found.limits.body_bytes, found.limits.json_bytes, found.limits.rows) == (1000, 1000, 7)
    assert found.sessions >= 1
    assert load(None, overrides={"execution.sessions": 3}).sessions == 3


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [
        (["ftp://gpu-1"], "http://HOST:PORT"),
        (["http://user:secret@gpu-1"], "its token into oip.token_file"),
        (["http://gpu-1:99999"], "http://HOST:PORT"),
        (["http://gpu 1"], "http://HOST:PORT"),
        (["http://gpu-1/?x=1"], "http://HOST:PORT"),
        (["http://gpu-1", "http://gpu-1/"], "names a server twice"),
    ],
)
def test_an_engine_elsewhere_needs_to_be_somewhere(endpoints: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        load(None, environ={}, overrides={"execution.engine": "oip", "oip.endpoints": endpoints})
    assert "secret" not in refused.value.message


def test_servers_have_names_addresses_and_paths(tmp_path: Path) -> None:
    endpoints = ["http://gpu-1", "https://gpu-2.example.com:8443/v", "http://[::1]:8000", "http://192.0.2.1:1"]
    file = tmp_path / "gateway.toml"
    file.write_text('[oip]\ntoken_file = "t"\n')
    found = load(file, environ={}, overrides={"execution.engine": "oip", "oip.endpoints": endpoints})
    assert found.oip.endpoints == tuple(endpoints)
    assert found.oip.token_file == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"executors": {"far": {"engine": "oip", "endpoints": ["gpu-1"]}}}, r"executors\.far\.endpoints has 'gpu-1'"),
        ({"executors": {"here": {"endpoints": ["http://gpu-1"]}}}, r"executors\.here\.endpoints is for"),
        ({"executors": {"a": {"engine": "ray", "providers": ["X"]}}}, r"executors\.a\.providers is for"),
        ({"executors": {"a": {"engine": "ray"}, "b": {"engine": "ray"}}}, "joins one cluster"),
        ({"executors": {"a b": {}}}, "executors"),
        ({"executors": {"a": {}}, "execution.engine": "ray"}, "both set"),
        ({"executors": {"a": {}}, "models.executors_of": {"m": []}}, "without an executor"),
    ],
)
def test_executors_that_make_no_sense_are_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(None, environ={}, overrides=overrides)


def test_several_executors_take_the_place_of_the_one(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[executors.gpu]\nproviders = ["CUDAExecutionProvider"]\n'
        '[executors.far]\nengine = "oip"\nendpoints = ["http://gpu-1:8000"]\n'
        '[models]\nexecutors_of = { large = ["far"] }\n'
    )
    found = load(file, environ={})
    assert list(found.engines) == ["gpu", "far"]
    assert (found.loads_here, found.providers) == (True, ("CUDAExecutionProvider",))
    alone = load(None, environ={}, overrides={"execution.engine": "oip", "oip.endpoints": ["http://gpu-1"]})
    assert (list(alone.engines), alone.loads_here, alone.providers) == (["oip"], False, ("CPUExecutionProvider",))


@pytest.mark.parametrize(
    ("executors", "executors_of", "copies"),
    [
        ({}, {}, 1),
        ({"a": {}, "b": {}}, {}, 2),
        ({"a": {}, "b": {}}, {"m": ["b"]}, 1),
        ({"a": {}, "far": {"engine": "oip", "endpoints": ["http://gpu-1"]}}, {}, 1),
        ({"a": {}, "far": {"engine": "oip", "endpoints": ["http://gpu-1"]}}, {"m": ["far"]}, 0),
    ],
)
def test_a_model_has_a_copy_for_each_local_executor(
    executors: dict[str, object], executors_of: dict[str, object], copies: int
) -> None:
    overrides = {"executors": executors, "models.executors_of": executors_of}
    assert load(None, environ={}, overrides=overrides).copies_of("m") == copies


@pytest.mark.parametrize("table", ["executors", "webhooks"])
@pytest.mark.parametrize("name", ["a[b", "[...]", ""])
def test_an_invalid_name_of_a_table_is_named_and_nothing_else(tmp_path: Path, table: str, name: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[webhooks.ops]\nurl = "https://hooks.example/secret"\n[executors.ok]\nengine = "local"\n[{table}."{name}"]\n'
    )
    with pytest.raises(ConfigError) as refused:
        load(file, environ={})
    assert f"{name!r} cannot be a name in '{table}'; use a name of 1 to 64 letters" in refused.value.message
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("webhook", "message"),
    [
        ({}, r"webhooks\.ops\.url is no URL"),
        ({"url": "https://user:secret@example.com/"}, r"webhooks\.ops\.url is no URL"),
        ({"url": "https://example.com/#secret"}, r"webhooks\.ops\.url is no URL"),
        ({"url": "https://example.com/?\n"}, r"webhooks\.ops\.url is no URL"),
        ({"url": "http://example.com/?token=secret"}, r"webhooks\.ops\.url would send messages unencrypted"),
        ({"url": "http://127.0.0.1:1/", "events": []}, r"webhooks\.ops\.events is empty"),
    ],
)
def test_a_webhook_needs_a_protected_address_and_a_key(webhook: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        load(None, environ={}, overrides={"webhooks": {"ops": webhook}})
    assert "=secret" not in refused.value.message


def test_the_key_of_a_webhook_is_next_to_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[webhooks.ops]\nurl = "http://[::1]:9/a?token=b"\nsecret_file = "ops.secret"\n')
    assert load(file, environ={}).webhooks["ops"].secret_file == str(tmp_path / "ops.secret")


@pytest.mark.parametrize(
    ("usable", "sessions"), [((8.0, False), 8), ((2.0, True), 2), ((1.5, True), 2), ((0.05, True), 1)]
)
def test_a_containers_quota_bounds_the_sessions(
    usable: tuple[float, bool], sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_files, "usable_cores", lambda _tree: usable)
    assert Settings().sessions == sessions
    assert Settings(execution=ExecutionSection(sessions=3)).sessions == 3
