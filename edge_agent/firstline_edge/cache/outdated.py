"""Keys of which the file still holds an older value, for the newer one never got there: a miss, and to be removed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

_LIMIT = 4096
_ONE, _ALL = "DELETE FROM results WHERE key = ?", "DELETE FROM results"


class Outdated:
    """A bounded set: where too many are to be remembered, all that the file holds is outdated."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._all = False

    def __bool__(self) -> bool:
        return self._all or bool(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return self._all or key in self._keys

    def add(self, keys: Iterable[bytes]) -> None:
        """The file's values of these are no longer so."""
        self._keys.update(keys)
        self._all |= len(self._keys) > _LIMIT
        if self._all:
            self._keys.clear()

    def merge(self, other: Outdated) -> None:
        """Nor are those that another one knows."""
        self._all |= other._all
        self.add(other._keys)

    def remove_from(self, connection: sqlite3.Connection) -> None:
        """Has the file hold none of them, within the transaction that is open.

        Raises:
            sqlite3.Error: the disk refuses.
        """
        if self._all:
            connection.execute(_ALL)
        connection.executemany(_ONE, [(key,) for key in self._keys])
