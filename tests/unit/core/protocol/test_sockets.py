"""Bound addresses, and the errors of those that cannot be had."""

import re
import socket
from typing import Any

import pytest

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.protocol.sockets import bind, url_of


def test_url_is_one_that_a_client_on_this_machine_reaches() -> None:
    with bind("0.0.0.0", 0) as bound:
        port = bound.getsockname()[1]
        assert url_of(bound) == f"http://127.0.0.1:{port}"
        assert url_of(bound, tls=True) == f"https://127.0.0.1:{port}"


def test_a_name_is_bound_to_its_first_address_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_arguments: Any, **_named: Any) -> list[Any]:
        kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(socket.AF_INET6, *kind, ("::1", 0, 0, 0)), (socket.AF_INET, *kind, ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with bind("localhost", 0) as bound:
        assert bound.getsockname()[0] == "127.0.0.1"


def test_an_address_in_brackets_is_one_of_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        with bind("[::1]", 0) as bound:
            assert url_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"
    except CapacityError as error:  # a machine without IPv6
        assert "[::1]:0" in error.message


@pytest.mark.parametrize("host", ["press.invalid", "press..local", "p" * 64])
def test_an_unknown_host_is_an_error_of_its_setting(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"api\.host is '{re.escape(host)}', which is not known"):
        bind(host, 0)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"192\.0\.2\.1:0 is not an address of this machine; correct api\.host"):
        bind("192.0.2.1", 0)
