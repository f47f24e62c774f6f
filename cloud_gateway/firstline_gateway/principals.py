"""Who asks, as the transports name them: `device:NAME`, `application:NAME`, or "" where authentication is off."""

from __future__ import annotations

_DEVICE = "device:"
ANYBODY = "anybody"
"""Whom all callers are where authentication is off."""


def device_of(principal: str) -> str | None:
    """The device's name; None for applications and operators."""
    if not principal:
        return ANYBODY
    return principal.removeprefix(_DEVICE) if principal.startswith(_DEVICE) else None
