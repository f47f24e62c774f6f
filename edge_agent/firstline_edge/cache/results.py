"""The result cache: model outputs for rows, in memory and on disk. It stores outputs, not decisions.

The policy is applied again on every hit, so a tightened threshold also holds for stored outputs. A key names the
model's digest (see `result_key`), so a new model never gets an old model's output. Only final outputs are stored.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from msgspec import Struct

from firstline_core.clock import Clock
from firstline_edge.cache.disk import DiskCache
from firstline_edge.requests.context import ModelOutput

# What an entry costs in memory beside its probabilities: key, objects, links of the ordered map.
_OVERHEAD_BYTES = 400


class _Entry(Struct, frozen=True, eq=False):
    """An output in memory, valid until a point in monotonic time."""

    expires_s: float
    output: ModelOutput
    private: bool
    size_bytes: int


class ResultCache:
    """An LRU cache in memory in front of an optional `DiskCache`. For one thread.

    Args:
        limit_bytes: of memory; 0 stores nothing in memory.
        ttl_s: seconds that an entry lives.
        disk: None if results must not outlive the process.
        refusal: why there is no disk although the settings want one; "" otherwise.
    """

    def __init__(
        self, *, limit_bytes: int, ttl_s: float, disk: DiskCache | None, clock: Clock, refusal: str = ""
    ) -> None:
        self._refusal = refusal
        self._limit_bytes = limit_bytes
        self._ttl_s = ttl_s
        self._disk = disk
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._size_bytes = 0
        self._told = 0
        self._told_bytes = 0

    def __len__(self) -> int:
        """Number of entries in memory, without private ones, which no metric may show."""
        return self._told

    @property
    def size_bytes(self) -> int:
        """Size of these entries in bytes."""
        return self._told_bytes

    @property
    def problem(self) -> str:
        """Why nothing is stored on disk, and what was lost; "" if all is well."""
        told = (self._disk.problem, self._disk.damage) if self._disk is not None else (self._refusal,)
        return " ".join(filter(None, told))

    def get(self, key: bytes) -> ModelOutput | None:
        """Returns the output stored under `key`, or None."""
        entry = self._entries.get(key)
        if entry is not None:
            if entry.expires_s > self._clock.monotonic_s():
                self._entries.move_to_end(key)
                return entry.output
            self._forget(key)
        if self._disk is None:
            return None
        stored = self._disk.get(key)
        if stored is None:
            return None
        value, left_s = stored
        found = ModelOutput.decode(value)
        if found is not None:
            self._remember(key, found, left_s, private=False)
        return found

    def put(self, key: bytes, output: ModelOutput, *, private: bool = False) -> None:
        """Stores a model output.

        Args:
            key: from `requests.context.result_key`.
            output: its probabilities are copied, for they may be a view of a whole batch or message.
            private: whether the input is `local_only`: never on disk, never counted.
        """
        output = ModelOutput(output.probabilities.copy(), output.score, output.value)
        self._remember(key, output, self._ttl_s, private=private)
        if not private and self._disk is not None:
            self._disk.put(key, output.encode())

    def expire(self) -> None:
        """Removes expired entries from the disk, in the background."""
        if self._disk is not None:
            self._disk.expire()

    def clear(self) -> list[Path]:
        """Deletes all entries; returns what is still to be erased on the disk.

        Raises:
            OSError: the disk refuses.
        """
        self._entries.clear()
        self._size_bytes = self._told = self._told_bytes = 0
        return self._disk.clear() if self._disk is not None else []

    def close(self) -> None:
        """Closes the disk; calling it twice is harmless."""
        if self._disk is not None:
            self._disk.close()

    def _remember(self, key: bytes, output: ModelOutput, left_s: float, *, private: bool) -> None:
        size_bytes = output.probabilities.nbytes + _OVERHEAD_BYTES
        if key in self._entries:
            self._forget(key)
        if size_bytes > self._limit_bytes:
            return
        self._entries[key] = _Entry(self._clock.monotonic_s() + left_s, output, private, size_bytes)
        self._size_bytes += size_bytes
        if not private:
            self._told += 1
            self._told_bytes += size_bytes
        while self._size_bytes > self._limit_bytes:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._size_bytes -= entry.size_bytes
        if not entry.private:
            self._told -= 1
            self._told_bytes -= entry.size_bytes
