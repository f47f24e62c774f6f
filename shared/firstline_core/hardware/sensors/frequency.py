"""How fast the processor's clusters run, may run, and were built to run (admin-guide/pm/cpufreq)."""

from __future__ import annotations

from typing import NamedTuple

from firstline_core.hardware.tree import Found, Tree, placed

_HIGH_HZ = 20e9


class Frequencies(NamedTuple):
    """Hertz, by cpufreq policy: a cluster of cores that share a clock."""

    now_hz: dict[str, Found]
    allowed_hz: dict[str, Found]
    rated_hz: dict[str, Found]


def frequencies(tree: Tree) -> Frequencies:
    """All three, of every cluster; empty where there is no cpufreq, as in most virtual machines."""
    found = Frequencies({}, {}, {})
    for policy in tree.names("sys/devices/system/cpu/cpufreq", "policy*"):
        name = policy.rpartition("/")[2]
        for file, into in zip(("scaling_cur_freq", "scaling_max_freq", "cpuinfo_max_freq"), found, strict=True):
            placed(into, name, tree.number(f"{policy}/{file}", 1e3, low=1, high=_HIGH_HZ))
    return found
