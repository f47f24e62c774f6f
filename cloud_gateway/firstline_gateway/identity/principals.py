"""The caller, as the transports name it: `device:NAME`, `application:NAME`, or "" where authentication is off."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

from firstline_core.protocol.enrolment import device_of_principal

ANYBODY = "anybody"
"""Whom all callers are where authentication is off."""


@lru_cache(4096)
def device_of(principal: str) -> str | None:
    """The device's name; None for applications."""
    return device_of_principal(principal) if principal else ANYBODY


Scope = Literal["infer", "fleet", "admin"]
"""The permissions:

infer: ask models. fleet: load and unload them; invite, list and revoke devices; read contracts. admin: change
contracts.
"""

SCOPES: tuple[Scope, ...] = get_args(Scope)
