"""The result cache: model outputs for rows, in memory and on disk. It stores outputs, not decisions.

The policy is applied again on every hit, so a tightened threshold also holds for stored outputs. A key names the
model's digest and the generation of the processing (see `result_key`), so a new model never gets an old model's output.
Only final outputs are stored.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from msgspec import Struct

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import payload_bytes
from firstline_edge.cache.disk_cache import DiskCache
from firstline_edge.requests.context import ModelOutput
from firstline_edge.settings.settings import CacheSection, EncryptionSection
from firstline_edge.state import open_seal

# Memory of an entry in addition to its arrays: key, objects, links of the ordered map.
_OVERHEAD_BYTES = 400
_EXPIRE_EVERY_S = 3600.0


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
        self._size_bytes = self._public_entries = self._public_bytes = 0

    def __len__(self) -> int:
        """Number of entries in memory, without private ones, which no metric may show."""
        return self._public_entries

    @property
    def size_bytes(self) -> int:
        """Size of these entries in bytes."""
        return self._public_bytes

    @property
    def problem(self) -> str:
        """Why nothing is stored on disk, and what was lost; "" if there is no problem."""
        problems = (self._disk.problem, self._disk.damage) if self._disk is not None else (self._refusal,)
        return " ".join(filter(None, problems))

    def get(self, key: bytes) -> ModelOutput | None:
        """Returns the output stored under `key`, or None."""
        entry = self._entries.get(key)
        if entry is not None:
            if entry.expires_s > self._clock.monotonic_s():
                self._entries.move_to_end(key)
                return entry.output
            self._forget(key)
        if self._disk is None or (stored := self._disk.get(key)) is None:
            return None
        value, left_s = stored
        found = ModelOutput.decode(value)
        if found is not None:
            self._remember(key, found, payload_bytes(found.outputs.values()), left_s, private=False)
        return found

    def put(self, key: bytes, output: ModelOutput, *, private: bool = False) -> None:
        """Stores a model output.

        Args:
            key: from `requests.context.result_key`.
            output: copied, for its arrays may be views of a whole batch or message.
            private: whether the input is `local_only`: never on disk, never counted.
        """
        copies = {name: array.copy() for name, array in output.outputs.items()}
        output, size_bytes = ModelOutput(copies, output.score, output.value), payload_bytes(copies.values())
        self._remember(key, output, size_bytes, self._ttl_s, private=private)
        if not private and self._disk is not None:
            self._disk.put(key, output, size_bytes)

    async def keep_expiring(self) -> None:
        """Deletes expired entries from the disk every hour, also while no request arrives, until it is cancelled."""
        while True:
            if self._disk is not None:
                self._disk.expire()
            await self._clock.sleep(_EXPIRE_EVERY_S)

    def close(self) -> None:
        """Closes the disk; calling it twice is harmless."""
        if self._disk is not None:
            self._disk.close()

    def _remember(self, key: bytes, output: ModelOutput, size_bytes: int, left_s: float, *, private: bool) -> None:
        size_bytes += _OVERHEAD_BYTES
        if key in self._entries:
            self._forget(key)
        if size_bytes > self._limit_bytes:
            return
        entry = self._entries[key] = _Entry(self._clock.monotonic_s() + left_s, output, private, size_bytes)
        self._count(entry, 1)
        while self._size_bytes > self._limit_bytes:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._count(entry, -1)

    def _count(self, entry: _Entry, times: int) -> None:
        self._size_bytes += times * entry.size_bytes
        if not entry.private:
            self._public_entries += times
            self._public_bytes += times * entry.size_bytes


def open_cache(section: CacheSection, encryption: EncryptionSection, path: Path, clock: Clock) -> ResultCache:
    """Returns the cache: in memory, and on disk if the settings give it room there."""
    disk, refusal = None, ""
    if section.disk_limit_bytes:
        try:
            disk = DiskCache(
                path, limit_bytes=section.disk_limit_bytes, ttl_s=section.ttl_s, seal=open_seal(encryption), clock=clock
            )
        except CapacityError as error:
            refusal = error.message
    memory_bytes = section.memory_limit_bytes
    return ResultCache(limit_bytes=memory_bytes, ttl_s=section.ttl_s, disk=disk, clock=clock, refusal=refusal)


def register_metrics(metrics: RequestMetrics, cache: ResultCache) -> None:
    """Registers the number and the size of the results in memory."""
    metrics.gauge("cache_entries", "Results in the cache's memory front.", lambda: len(cache))
    metrics.gauge("cache_bytes", "Size of the cache's memory front.", lambda: cache.size_bytes)
