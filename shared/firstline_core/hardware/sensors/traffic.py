"""Bytes through the device's network interfaces, by sysfs-class-net-statistics; virtual ones do not count."""

from __future__ import annotations

from typing import NamedTuple

from firstline_core.hardware.readings import Measured
from firstline_core.hardware.tree import Tree


class Rates(NamedTuple):
    """Bytes a second since the reading before; 0 at the first."""

    sent: float = 0.0
    received: float = 0.0


class Traffic:
    """Reads all interfaces; keeps what they said.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._before: dict[str, tuple[float, float]] = {}
        self._at_s = 0.0

    def read(self, now_s: float) -> Rates:
        """Since the reading before; an interface that began anew, or has come since, counts from the next on.

        Args:
            now_s: monotonic time.
        """
        found: dict[str, tuple[float, float]] = {}
        for interface in self._tree.names("sys/class/net", "*"):
            if self._tree.has(f"{interface}/device"):
                sent, received = (
                    self._tree.number(f"{interface}/statistics/{which}_bytes", low=0) for which in ("tx", "rx")
                )
                if isinstance(sent, Measured) and isinstance(received, Measured):
                    found[interface] = sent.value, received.value
        passed_s = now_s - self._at_s
        rates = [0.0, 0.0]
        for name, counts in found.items() if passed_s > 0 else ():
            for way, (now, before) in enumerate(zip(counts, self._before.get(name, counts), strict=True)):
                rates[way] += max(0.0, now - before) / passed_s
        self._before, self._at_s = found, now_s
        return Rates(*rates)
