"""Which proxy the environment names for a server, and what happens with variables that cannot be used."""

import os
from pathlib import Path

import pytest

from firstline import AsyncClient, Client
from firstline_core.errors import ConfigError
from firstline_core.protocol.http_client import ClientSettings, open_client
from firstline_core.protocol.proxies import environment_proxy, is_this_machine

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("url", "variables", "proxy"),
    [
        ("https://gateway.example", {}, ""),
        ("https://gateway.example", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://gateway.example", {"https_proxy": "proxy.example:3128"}, PROXY),
        ("https://gateway.example", {"HTTP_PROXY": PROXY}, ""),
        ("http://gateway.example", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://gateway.example", {"ALL_PROXY": PROXY}, PROXY),
        ("http://gateway.example", {"ALL_PROXY": "socks5://proxy", "HTTP_PROXY": PROXY}, PROXY),
        ("http://a.gateway.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "other, gateway.example"}, ""),
        ("http://gateway.example", {"HTTP_PROXY": PROXY, "no_proxy": "*"}, ""),
        ("http://10.1.2.3", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, ""),
        ("http://10.1.2.3", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.1.2.3"}, ""),
        ("http://10.1.2.3", {"HTTP_PROXY": PROXY, "NO_PROXY": "gateway.example,11.0.0.0/8"}, PROXY),
        ("http://10.1.2.3:8000", {"HTTP_PROXY": PROXY, "NO_PROXY": "10.1.2.3:8000"}, ""),
        ("http://gateway.example:8000", {"HTTP_PROXY": PROXY, "NO_PROXY": "gateway.example:8000"}, ""),
        ("http://gateway.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "gateway.example:8000"}, PROXY),
        ("http://[fd00::1]:8000", {"HTTP_PROXY": PROXY, "NO_PROXY": "fd00::/8"}, ""),
        ("http://[fd00::1]:8000", {"HTTP_PROXY": PROXY, "NO_PROXY": "[fd00::1]:8000"}, ""),
        ("http://[fd00::1]:8000", {"HTTP_PROXY": PROXY, "NO_PROXY": "[fd00::1]"}, ""),
        ("http://[fe80::1]:8000", {"HTTP_PROXY": PROXY, "NO_PROXY": "fd00::/8"}, PROXY),
    ],
)
def test_variables_choose_the_proxy(
    monkeypatch: pytest.MonkeyPatch, url: str, variables: dict[str, str], proxy: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment_proxy(url) == proxy


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("Agent.LocalHost.", True),
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", True),
        ("localhost.example", False),
        ("128.0.0.1", False),
        ("gateway", False),
    ],
)
def test_this_machine_is_recognized(host: str, here: bool) -> None:
    assert is_this_machine(host) is here


@pytest.mark.parametrize("url", ["http://127.0.0.1:8070", "http://localhost:8070", "http://[::1]:8070"])
def test_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for value in (PROXY, "socks5://proxy"):
        monkeypatch.setenv("HTTP_PROXY", value)
        monkeypatch.setenv("ALL_PROXY", value)
        assert environment_proxy(url) == ""
        Client(url).close()


def test_a_unix_socket_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy")
    Client("http://agent.example", socket=tmp_path / "agent").close()


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("url", "variables", "named"),
    [
        ("http://gateway.example", {"ALL_PROXY": "socks5://user:secret@proxy:1080"}, "ALL_PROXY names a proxy of the"),
        ("https://gateway.example", {"all_proxy": "socks4://proxy"}, "all_proxy names a proxy of the"),
        ("https://gateway.example", {"HTTPS_PROXY": "http://[secret"}, "HTTPS_PROXY is not a URL"),
        ("https://gateway.example", {"HTTPS_PROXY": "http://proxy:secret"}, "HTTPS_PROXY is not a URL"),
        ("https://gateway.example", {"HTTPS_PROXY": "http://"}, "HTTPS_PROXY is not a URL"),
        ("https://10.0.0.1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "fd00::/999"}, "NO_PROXY contains 'fd00::/999'"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch,
    client: type[Client] | type[AsyncClient],
    url: str,
    variables: dict[str, str],
    named: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=named) as raised:
        client(url)
    assert "secret" not in raised.value.message


def test_a_configured_proxy_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"The proxy for http://gateway\.example names a proxy of the kind socks5://"):
        open_client(ClientSettings("http://gateway.example", proxy="socks5://proxy"))
