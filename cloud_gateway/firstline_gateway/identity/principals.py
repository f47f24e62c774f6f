"""The caller, as the transports name it: `device:NAME`, `application:NAME`, or "" where authentication is off."""

from __future__ import annotations

from functools import lru_cache

from firstline_core.protocol.enrolment import device_of_principal

ANYBODY = "anybody"
"""Whom all callers are where authentication is off."""


@lru_cache(4096)
def device_of(principal: str) -> str | None:
    """The device's name; None for applications."""
    return device_of_principal(principal) if principal else ANYBODY
