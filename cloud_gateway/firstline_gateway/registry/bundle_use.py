"""How the registry asks whether devices still need a signed version."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from sqlalchemy import Connection

from firstline_core.fleet.update import UpdateKind


class SignedVersion(NamedTuple):
    """One version of a bundle or of a configuration."""

    what: UpdateKind
    name: str
    version: int

    def __str__(self) -> str:
        return f"{'' if self.what is UpdateKind.MODEL else f'{self.what} '}{self.name} version {self.version}"


BundleUse = Callable[[Connection, Collection[SignedVersion]], str | None]
"""Returns why one of the versions that new targets no longer list has to stay, and what to do about it; None if all may
go. The connection is that of the transaction that publishes."""
