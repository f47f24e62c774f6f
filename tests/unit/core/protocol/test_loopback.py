"""Loopback hosts: reached from this machine only."""

import pytest

from firstline_core.protocol.loopback import is_loopback

LOOPBACK = ("127.0.0.1", "127.8.9.10", "::1", "[::1]", "::ffff:127.0.0.1", "localhost", "LOCALHOST")
OTHERS = ("0.0.0.0", "::", "::ffff:192.0.2.7", "192.0.2.7", "gateway", "127.0.0.1.example", "a.localhost", "")


@pytest.mark.parametrize("host", [*LOOPBACK, *OTHERS])
def test_only_loopback_addresses_and_their_name_are_loopback(host: str) -> None:
    assert is_loopback(host) is (host in LOOPBACK)
