"""Whether a host is reached from this machine only."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


@lru_cache(maxsize=64)  # of the Host of each request without authentication; reading an address takes 5 us
def is_loopback(host: str) -> bool:
    """Returns whether a name, or an address that may be in brackets, is reached from this machine only."""
    address = ip_address_of(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def ip_address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the address, of IPv4 if it is mapped into IPv6; None for a name."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
