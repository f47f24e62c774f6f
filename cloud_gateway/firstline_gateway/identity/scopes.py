"""The permissions of an API key."""

from __future__ import annotations

from typing import Literal, get_args

Scope = Literal["infer", "fleet", "admin"]
"""The permissions:

infer: ask models. fleet: load and unload them; invite, list and revoke devices; read contracts. admin: change
contracts.
"""

SCOPES: tuple[Scope, ...] = get_args(Scope)
