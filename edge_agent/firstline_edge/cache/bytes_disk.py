"""How diskcache stores the result cache's entries: as bytes in its database, and nothing else."""

from __future__ import annotations

from typing import Any

import diskcache
from diskcache.core import MODE_RAW


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no type information
    """Stores bytes, and reads nothing but bytes.

    diskcache's own `Disk` and `JSONDisk` unpickle whatever the database says is a pickle, so that a file in the cache
    directory could run code (CVE-2025-69872). This class overrides every method that pickles or unpickles, or that
    opens or removes a file named by the database.
    """

    def put(self, key: bytes) -> tuple[bytes, bool]:
        """Returns the key as the database stores it, and that it is raw."""
        return key, True

    def get(self, key: Any, raw: bool) -> bytes:
        """Returns a stored key.

        Raises:
            TypeError: the database holds a key of another kind.
        """
        if not raw or not isinstance(key, bytes):
            raise TypeError("the key is not bytes")
        return key

    def store(self, value: bytes, read: bool, key: Any = diskcache.UNKNOWN) -> tuple[int, int, None, bytes]:
        """Returns size outside the database, mode, file name and value, as the database stores them.

        Raises:
            TypeError: the value is not bytes.
        """
        if read or not isinstance(value, bytes):
            raise TypeError("the value is not bytes")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes | None:
        """Returns a stored value; None for anything that `store` did not write."""
        return value if mode == MODE_RAW and filename is None and not read and isinstance(value, bytes) else None

    def remove(self, file_path: str) -> None:
        """Removes nothing: no entry has a file, so a file name in the database is not this agent's."""
