"""Loopback hosts: reached from this machine only."""

from __future__ import annotations

import pytest

from firstline_core.protocol.loopback import is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "::ffff:127.0.0.1", "localhost", "LOCALHOST"]
)
def test_loopback_addresses_and_their_name(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "::ffff:192.0.2.7", "192.0.2.7", "gateway", "127.0.0.1.example", "a.localhost", ""]
)
def test_other_hosts_may_be_reached_from_elsewhere(host: str) -> None:
    assert not is_loopback(host)
