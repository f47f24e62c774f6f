"""How the registry asks whether devices still need a signed version."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

MODEL, CONFIGURATION = "model", "configuration"


class SignedVersion(NamedTuple):
    """One version of a bundle or of a configuration (`kind`)."""

    kind: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"{'' if self.kind == MODEL else f'{self.kind} '}{self.name} version {self.version}"


class BundleUse(Protocol):
    """Knows which signed versions devices still need."""

    def reason_to_keep(self, connection: Connection, removed: Collection[SignedVersion]) -> str | None:
        """Returns why one of these versions has to stay, and what to do about it; None if all may go.

        Args:
            connection: the transaction that publishes.
            removed: the versions that the new targets no longer list.
        """
        ...
