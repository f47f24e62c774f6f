"""The caller, as the transports name it: `device:NAME`, `application:NAME`, or "" while authentication is off."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

from firstline_core.protocol.enrolment import device_of_principal

UNAUTHENTICATED = "anybody"
"""The device, or the operator, of every request while authentication is off."""


@lru_cache(4096)
def device_of(principal: str) -> str | None:
    """Returns the device of a principal; None for an application."""
    return device_of_principal(principal) if principal else UNAUTHENTICATED


Scope = Literal["infer", "fleet", "admin", "delegate"]
"""The permissions.

infer: run models. fleet: load and unload models; invite, list and revoke devices; read contracts. admin: change
contracts. delegate: act for the persons who sign in to a console.
"""

SCOPES: tuple[Scope, ...] = get_args(Scope)
