"""What the desired state means for one update of a model or of the configuration. Pure."""

from __future__ import annotations

from firstline_core.fleet.twin import DesiredVersion

# The wall clock may be set meanwhile.
LOOK_S = 60.0
"""Longest wait for a wall time."""


def is_same(one: DesiredVersion, other: DesiredVersion) -> bool:
    """Whether it is one update: when it is to be tried may change on the way."""
    return _identity(one) == _identity(other)


def is_taken_back(target: DesiredVersion, wanted: DesiredVersion) -> bool:
    """Whether the fleet's word now is that an update to `target`, or what it brought, is to be given up."""
    return wanted.undone if is_same(target, wanted) else target.sha256 in wanted.withdrawn


def is_over(wanted: DesiredVersion, now_s: float) -> bool:
    """Whether it is too late to begin it."""
    return 0 < wanted.expires_s <= now_s


def wait_s(wanted: DesiredVersion, now_s: float) -> float:
    """Seconds after which to see whether it may be tried; 0 where it may be now."""
    found_s = max(0.0, wanted.not_before_s - now_s)
    if found_s == 0 and wanted.window is not None:
        found_s = wanted.window.wait_s(now_s)
    left_s = max(wanted.expires_s - now_s, 0.1) if wanted.expires_s else LOOK_S
    return min(found_s, left_s, LOOK_S)


def _identity(wanted: DesiredVersion) -> tuple[str, int, str, str, int]:
    return wanted.name, wanted.version, wanted.sha256, wanted.rollout, wanted.attempt
