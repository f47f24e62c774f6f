"""What an API key may do."""

from __future__ import annotations

from typing import Literal, get_args

Scope = Literal["infer", "fleet", "admin"]
"""infer: ask models; fleet: invite, list and revoke devices, and read contracts; admin: change contracts."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
