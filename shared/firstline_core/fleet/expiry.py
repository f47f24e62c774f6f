"""Warnings about metadata and certificate authorities that expire soon. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

HOUR_S, DAY_S = 3600.0, 86_400.0

AUTHORITY = "authority"

# Time before the expiry at which the warning begins: long enough to bring together the people who can renew it.
_WARN_S: Mapping[str, float] = {
    "root": 30 * DAY_S,
    "targets": 14 * DAY_S,
    "snapshot": 6 * HOUR_S,
    "timestamp": 6 * HOUR_S,
    AUTHORITY: 60 * DAY_S,
}
_REMEDY: Mapping[str, str] = {
    "root": "renew it with two of the root keys: `firstline keys renew --gateway URL`",
    "targets": "renew it: `firstline keys renew --gateway URL`, or push a bundle",
    "snapshot": "the gateway has not renewed it: see its log, and whether it has the online key that the root names",
    "timestamp": "the gateway has not renewed it: see its log, and whether it has the online key that the root names",
    AUTHORITY: "let another take over in time: `firstline-gateway ca next`",
}


def warnings(expires_s: Mapping[str, float], now_s: float) -> dict[str, str]:
    """Returns one sentence for each item that has expired or expires soon, with the remedy.

    Args:
        expires_s: expiry of each role's metadata and of the devices' certificate `AUTHORITY` (wall time, seconds).
        now_s: wall time.
    """
    found = {}
    for role, end_s in expires_s.items():
        left_s = end_s - now_s
        if left_s < _WARN_S[role]:
            what = "The devices' certificate authority" if role == AUTHORITY else f"The {role} metadata"
            when = datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
            tense = f"ends in {_long(left_s)}, on" if left_s > 0 else "ended on"
            found[role] = f"{what} {tense} {when}; {_REMEDY[role]}."
    return found


def _long(seconds: float) -> str:
    if seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:.0f} days"
    return f"{seconds / HOUR_S:.0f} hours" if seconds >= 2 * HOUR_S else f"{seconds / 60:.0f} minutes"
