"""Models that are signed for the fleet and not served here yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firstline_core.errors import EngineUnavailableError
from firstline_core.types import ModelKey

_RETRY_AFTER_S = 2.0
_VERSION_DIGITS = 18


class PendingModels:
    """Notes requests for models that can be fetched. Belongs to one event loop.

    Attributes:
        requested: set when a request needs such a model; the fetching task clears it.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._available: frozenset[ModelKey] = frozenset()
        self._wanted: set[ModelKey] = set()

    def offer(self, keys: Iterable[ModelKey]) -> None:
        """Replaces the versions that can be fetched."""
        self._available = frozenset(keys)

    def request(self, name: str, version: str) -> EngineUnavailableError | None:
        """Notes that a request needs a version.

        Returns:
            The error to answer with, which asks the caller to retry; None if this version cannot be fetched.
        """
        if not (version.isascii() and version.isdigit() and len(version) <= _VERSION_DIGITS):
            return None
        key = ModelKey(name, int(version))
        if key not in self._available:
            return None
        self._wanted.add(key)
        self.requested.set()
        return EngineUnavailableError(
            f"The full model of {name} version {version} is being fetched for this gateway; send it again in a moment.",
            retry_after_s=_RETRY_AFTER_S,
        )

    def take(self) -> set[ModelKey]:
        """Returns the versions that requests have asked for since the last call."""
        wanted, self._wanted = self._wanted, set()
        return wanted
