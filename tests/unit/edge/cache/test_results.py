"""The result cache in memory: outputs are unchanged, and bounded in bytes and in time."""

from pathlib import Path

import numpy as np

from firstline_core.clock import SimulatedClock
from firstline_core.types import PROBABILITIES
from firstline_edge.cache.disk_cache import DiskCache
from firstline_edge.cache.results import ResultCache
from firstline_edge.requests.context import ModelOutput


def output(score: float | None = 0.5, classes: int = 3) -> ModelOutput:
    return ModelOutput({PROBABILITIES: np.linspace(0, 1, classes, dtype=np.float32)[None]}, score)


def entry_bytes() -> int:
    cache = ResultCache(limit_bytes=1 << 20, ttl_s=60, disk=None, clock=SimulatedClock())
    cache.put(b"k", output())
    return cache.size_bytes


def test_the_value_comes_back_from_memory_and_disk(tmp_path: Path) -> None:
    learned = ModelOutput({PROBABILITIES: np.zeros((1, 3), np.float32)}, 0.5, 0.25)
    for limit_bytes in (1 << 20, 0):
        disk = DiskCache(tmp_path / str(limit_bytes), limit_bytes=1 << 20, ttl_s=60)
        cache = ResultCache(limit_bytes=limit_bytes, ttl_s=60, disk=disk, clock=SimulatedClock())
        cache.put(b"k", learned)
        assert (cached := cache.get(b"k")) is not None and cached.value == 0.25
        cache.close()


def test_the_least_recently_used_goes_first() -> None:
    cache = ResultCache(limit_bytes=2 * entry_bytes(), ttl_s=60, disk=None, clock=SimulatedClock())
    cache.put(b"a", output())
    cache.put(b"b", output())
    assert cache.get(b"a") is not None
    cache.put(b"c", output())
    assert cache.get(b"b") is None
    assert cache.get(b"a") is not None and cache.get(b"c") is not None
    assert cache.size_bytes == 2 * entry_bytes()


def test_putting_again_does_not_count_twice() -> None:
    cache = ResultCache(limit_bytes=1 << 20, ttl_s=60, disk=None, clock=SimulatedClock())
    for _ in range(3):
        cache.put(b"a", output())
    assert (len(cache), cache.size_bytes) == (1, entry_bytes())


async def test_an_entry_ends_with_its_time() -> None:
    clock = SimulatedClock()
    cache = ResultCache(limit_bytes=1 << 20, ttl_s=60, disk=None, clock=clock)
    cache.put(b"a", output())
    await clock.advance(59)
    assert cache.get(b"a") is not None
    await clock.advance(1)
    assert cache.get(b"a") is None
    assert cache.size_bytes == 0


def test_no_memory_is_no_cache() -> None:
    cache = ResultCache(limit_bytes=0, ttl_s=60, disk=None, clock=SimulatedClock())
    cache.put(b"a", output())
    assert cache.get(b"a") is None


def test_a_kept_result_does_not_change_with_the_callers_array() -> None:
    cache = ResultCache(limit_bytes=1 << 20, ttl_s=60, disk=None, clock=SimulatedClock())
    batch = np.ones((100, 3), np.float32)
    cache.put(b"a", ModelOutput({PROBABILITIES: batch[:1]}, 1.0))
    batch[:] = 0
    cached = cache.get(b"a").outputs[PROBABILITIES]
    assert cached.tolist() == [[1, 1, 1]]
    assert cached.base is None  # nor does it keep the whole batch alive


def test_every_output_counts_towards_the_limit() -> None:
    text = np.array([b"x" * 1000], object)
    cache = ResultCache(limit_bytes=1 << 20, ttl_s=60, disk=None, clock=SimulatedClock())
    cache.put(b"k", ModelOutput({**output().outputs, "text": text}))
    assert cache.size_bytes == entry_bytes() + 1000


def test_private_results_are_cached_but_not_counted() -> None:
    cache = ResultCache(limit_bytes=2 * entry_bytes(), ttl_s=60, disk=None, clock=SimulatedClock())
    cache.put(b"a", output(), private=True)
    cache.put(b"b", output())
    assert cache.get(b"a") is not None
    assert (len(cache), cache.size_bytes) == (1, entry_bytes())
    for key in (b"c", b"d"):  # it counts towards the limit all the same
        cache.put(key, output(), private=True)
    assert cache.get(b"a") is None and cache.get(b"b") is None
    assert (len(cache), cache.size_bytes) == (0, 0)


class TestWithDisk:
    @staticmethod
    def make(path: Path, clock: SimulatedClock | None = None, limit_bytes: int = 1 << 20) -> ResultCache:
        disk = DiskCache(path / "cache", limit_bytes=1 << 24, ttl_s=60)
        return ResultCache(limit_bytes=limit_bytes, ttl_s=60, disk=disk, clock=clock or SimulatedClock())

    def test_results_outlive_the_process(self, tmp_path: Path) -> None:
        first = self.make(tmp_path)
        first.put(b"k" * 32, output(0.75))
        first.close()
        second = self.make(tmp_path)
        assert second.get(b"k" * 32).score == 0.75
        assert len(second) == 1  # and are in memory from then on
        second.close()

    def test_private_results_are_not_on_disk(self, tmp_path: Path) -> None:
        first = self.make(tmp_path)
        first.put(b"k" * 32, output(), private=True)
        assert first.get(b"k" * 32) is not None
        first.close()
        second = self.make(tmp_path)
        assert second.get(b"k" * 32) is None
        second.close()

    async def test_reading_from_disk_does_not_lengthen_a_life(self, tmp_path: Path) -> None:
        disk = DiskCache(tmp_path / "cache", limit_bytes=1 << 24, ttl_s=60)
        disk.put(b"k", output().encode())
        stored = disk.get(b"k")
        assert stored[1] <= 60
        disk.close()

    def test_another_format_is_a_miss(self, tmp_path: Path) -> None:
        cache = self.make(tmp_path)
        disk = DiskCache(tmp_path / "cache", limit_bytes=1 << 24, ttl_s=60)
        disk.put(b"k", b"\x09whatever")
        assert cache.get(b"k") is None
        disk.close()
        cache.close()
