"""The agent's settings: the example shows every default, and invalid settings are explained."""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.example_settings import EDGE_FILE as EXAMPLE

from firstline_core.errors import ConfigError, UnauthorizedError
from firstline_edge.api.access import TokenAccess, first_token, parse_tokens
from firstline_edge.settings.load import load, load_or_last_good
from firstline_edge.settings.settings import ApiSection, EdgeSettings, LinkSection


def test_the_example_changes_nothing() -> None:
    defaults = EdgeSettings()
    found = load(EXAMPLE, environ={})
    anchored = msgspec.structs.replace(defaults.agent, state_dir=str(defaults.state_dir))
    assert found == msgspec.structs.replace(defaults, agent=anchored)


def test_the_uncommented_example_links_are_valid(tmp_path: Path) -> None:
    text = re.sub(r"^# ?(?=\[\[links|[a-z_]+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    (tmp_path / "edge-agent.toml").write_text(text)
    found = load(tmp_path / "edge-agent.toml", environ={})
    assert [link.kind for link in found.links] == ["http", "mqtt"]
    assert found.links[0].token_file == str(tmp_path / "gateway.token")
    shown = {key for table in tomllib.loads(text)["links"] for key in table}
    assert shown == {key.name for key in msgspec.structs.fields(LinkSection)}


@pytest.mark.parametrize("host", ["gateway:8080", "127.0.0.1.example.com", "192.0.2.1", "[2001:db8::1]:8080"])
def test_plain_http_beyond_loopback_is_switched_on_by_name(host: str) -> None:
    link = {"kind": "http", "url": f"http://{host}"}
    with pytest.raises(ConfigError, match=r"links\[0\]\.url is .* unencrypted; use https://, or set plain_http"):
        load(None, environ={}, overrides={"links": [link]})
    (found,) = load(None, environ={}, overrides={"links": [link | {"plain_http": True}]}).links
    assert found.url == link["url"]


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        load_or_last_good(file, {})


def test_environment_and_flags_win() -> None:
    found = load(None, environ={"FIRSTLINE_EDGE_API__PORT": "9000", "OTHER": "x"}, overrides={"log.format": "json"})
    assert (found.api.port, found.log.format) == (9000, "json")
    assert load(None, environ={"FIRSTLINE_EDGE_API__PORT": "9000"}, overrides={"api.port": 1}).api.port == 1


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        *(
            ({"links": [{"kind": "http", "url": url}]}, r"links\[0\].url is '.*'; an http link needs a URL such as")
            for url in ("http://127.0.0.1:abc", "http://:80", "https://", "http://[::1", "ftp://h")
        ),
        *(
            ({"links": [{"kind": "http", "url": url}]}, r"links\[0\].url is ")
            for url in ("https://h/a b", "https://h?a=b", "https://h#a", "https://h:0")
        ),
        ({"links": [{"kind": "http", "url": "https://h", "proxy": "h:80"}]}, r"links\[0\].proxy is not a URL"),
        (
            {"links": [{"kind": "mqtt", "host": "h", "tls_certificate_file": "c", "tls_key_file": "k"}]},
            r"links\[0\].tls_certificate_file is named but tls_ca_file is empty",
        ),
        (
            {"links": [{"kind": "mqtt", "host": "h", "tls_ca_file": "system", "tls_key_file": "k"}]},
            r"links\[0\].tls_key_file is named without its tls_certificate_file",
        ),
        ({"policy.threshold": math.nan}, "policy.threshold is not a number"),
        ({"policy.threshold_cross_entropy": math.nan}, "policy.threshold_cross_entropy is not a number"),
        ({"policy.min_threshold": math.nan}, "policy.min_threshold is not a number"),
        ({"costs.heat_limit_c": math.nan}, "costs.heat_limit_c is not a number"),
        ({"api.bodies_limit_bytes": 1000}, "api.bodies_limit_bytes is 1000, less than one body may take"),
    ],
)
def test_invalid_combinations_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(None, environ={}, overrides=values)


def test_more_threads_than_a_runtime_takes_are_refused() -> None:
    assert load(None, environ={}, overrides={"models.threads": 1024}).models.threads == 1024
    with pytest.raises(ConfigError, match=r"models\.threads"):
        load(None, environ={}, overrides={"models.threads": 2**31})


@pytest.mark.parametrize(
    "price", [{"budget.bytes_per_day": 1}, {"costs.money_per_request": 0.1}, {"policy.least_value": 0.01}]
)
def test_a_policy_by_price_needs_a_price(price: dict[str, Any]) -> None:
    assert load(None, environ={}, overrides={"policy.kind": "value"} | price).policy.kind == "value"


class TestSecrets:
    def test_tokens(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text("\ufeffcamera: 0123456789abcdef \n# who may call\n\nphone:fedcba9876543210\n")
        tokens = TokenAccess(parse_tokens(str(file), "api.token_file"))
        assert tokens.bearer("Bearer fedcba9876543210") == "phone"
        assert tokens.bearer("bearer  0123456789abcdef") == "camera"
        assert first_token(ApiSection(token_file=str(file))) == "0123456789abcdef"
        for wrong in ("", "Bearer", "Bearer x", "Basic 0123456789abcdef", "0123456789abcdef"):
            with pytest.raises(UnauthorizedError):
                tokens.bearer(wrong)

    @pytest.mark.parametrize("text", ["", "# nothing", "camera:short", ":0123456789abcdef", "camera:0123456789abcdéf"])
    def test_a_file_without_tokens_is_refused(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "tokens"
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"api\.token_file: .*tokens"):
            parse_tokens(str(file), "api.token_file")

    def test_a_name_has_one_token(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text("camera:0123456789abcdef\ncamera:fedcba9876543210\n")
        with pytest.raises(ConfigError, match="tokens:2 gives 'camera' a second token"):
            parse_tokens(str(file), "api.token_file")


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/state", "/var/lib/x\0y"])
def test_an_invalid_folder_is_refused(tmp_path: Path, folder: str) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(f"[agent]\nstate_dir = {json.dumps(folder)}\n")
    with pytest.raises(ConfigError, match=r"home directory|zero byte"):
        load(file, environ={})
    with pytest.raises(ConfigError, match=r"home directory|zero byte"):
        load(None, environ={}, overrides={"agent.state_dir": folder})
