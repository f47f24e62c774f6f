"""Network interfaces and what kind of link each is (sysfs-class-net)."""

from __future__ import annotations

from firstline_core.hardware.catalogue import MOST, LinkKind, NetworkLink
from firstline_core.hardware.readings import Measured
from firstline_core.hardware.tree import Tree, name_of

_LOOPBACK, _ETHERNET = "772", "1"  # ARPHRD_LOOPBACK and ARPHRD_ETHER of linux/if_arp.h


def links(tree: Tree) -> tuple[NetworkLink, ...]:
    """All of them, with hardware first."""
    found = [_link(tree, folder) for folder in tree.names("sys/class/net", "*")]
    return tuple(sorted(found, key=lambda link: link.kind in ("virtual", "loopback"))[:MOST])


def _link(tree: Tree, folder: str) -> NetworkLink:
    kind = _kind(tree, folder)
    state = tree.text(f"{folder}/operstate")
    megabits = tree.number(f"{folder}/speed", 1e6, low=1, high=1e13)  # -1 where it does not say
    up = state == "up" or (state == "unknown" and kind in ("loopback", "cellular"))
    return NetworkLink(name_of(folder.rpartition("/")[2]), kind, up, _value(megabits))


def _kind(tree: Tree, folder: str) -> LinkKind:
    if tree.text(f"{folder}/type") == _LOOPBACK:
        return "loopback"
    if tree.has(f"{folder}/wireless") or tree.has(f"{folder}/phy80211"):
        return "wifi"
    told = tree.text(f"{folder}/uevent")
    if isinstance(told, str) and "DEVTYPE=wwan" in told.splitlines():
        return "cellular"
    if not tree.has(f"{folder}/device"):
        return "virtual"
    return "ethernet" if tree.text(f"{folder}/type") == _ETHERNET else "other"


def _value(reading: object) -> float | None:
    return reading.value if isinstance(reading, Measured) else None
