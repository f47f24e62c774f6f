"""The cache on disk: private, bounded, and lost without harm."""

import contextlib
import os
import pickle
import random
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import diskcache
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.clock import SimulatedClock
from firstline_core.storage.seals import Seal
from firstline_edge.cache import disk_cache
from firstline_edge.cache.disk_cache import DiskCache, KeyFilter
from firstline_edge.cache.results import ResultCache
from firstline_edge.requests.context import ModelOutput

KEY = b"k" * 32


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(directory: Path, limit_bytes: int = 1 << 24) -> DiskCache:
    """A cache whose disk never seems slow: on a busy machine the real one is left alone at any moment."""
    return DiskCache(directory, limit_bytes=limit_bytes, ttl_s=60, clock=SimulatedClock())


@pytest.fixture
def cache(directory: Path) -> Iterator[DiskCache]:
    cache = opened(directory)
    yield cache
    cache.close()


def value_of(cache: DiskCache, key: bytes) -> bytes | None:
    found = cache.get(key)
    return found[0] if found is not None else None


def written(cache: DiskCache) -> None:
    """Waits until the disk has accepted, or refused, the group that is being written."""
    while (writing := cache._writing) is not None:
        wait([writing])
        _ = cache.problem


def store(cache: DiskCache, key: bytes, value: Any) -> None:
    """Puts an entry, and waits until the disk has accepted or refused the group that it completes."""
    cache.put(key, value)
    written(cache)


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [number.to_bytes(32) for number in numbers]


def put_all(cache: DiskCache, numbers: Iterable[int], value: bytes = b"v") -> None:
    """Puts entries whose keys are these numbers; 64 of them share a commit."""
    for key in numbered(numbers):
        cache.put(key, value)


def leave_behind(directory: Path) -> None:
    """An earlier process has stored one entry."""
    cache = opened(directory)
    cache.put(KEY, b"good")
    cache.close()


@contextlib.contextmanager
def refusing(directory: Path) -> Iterator[None]:
    """A disk without room for another page."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((directory / "cache.db-wal").stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def sweep(cache: DiskCache) -> None:
    """Removes all that has expired."""
    cache.expire()
    written(cache)


def plant(directory: Path, sql: str, values: tuple[Any, ...]) -> None:
    connection = sqlite3.connect(directory / "cache.db")
    with connection:
        connection.execute(sql, values)
    connection.close()


@pytest.mark.parametrize("planted", ["text", 1, 1.5, b"bytes that no seal closed"])
def test_foreign_entries_are_removed(directory: Path, cache: DiskCache, planted: object) -> None:
    store(cache, KEY, b"good")
    plant(directory, "UPDATE Cache SET value = ?", (planted,))
    assert cache.get(KEY) is None
    sweep(cache)
    assert rows_on_disk(directory) == 0
    cache.put(KEY, b"good again")
    assert value_of(cache, KEY) == b"good again"


@pytest.mark.parametrize("planted", ["text", None, b"bytes"])
def test_an_entry_without_a_time_is_a_miss(directory: Path, cache: DiskCache, planted: object) -> None:
    store(cache, KEY, b"good")
    plant(directory, "UPDATE Cache SET expire_time = ?", (planted,))
    assert cache.get(KEY) is None


class Encodable:
    """Notes in which threads it is encoded."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def encode(self) -> bytes:
        self.threads.add(threading.current_thread().name.partition("_")[0])
        return b"encoded"


def test_values_are_encoded_in_the_writing_thread(directory: Path, cache: DiskCache) -> None:
    value = Encodable()
    store(cache, KEY, value)
    assert value.threads == {"cache-writer"}
    assert value_of(cache, KEY) == b"encoded"
    assert rows_on_disk(directory) == 1


def test_a_value_that_waits_is_encoded_when_read(cache: DiskCache) -> None:
    store(cache, KEY, b"alone")
    cache.put(b"w" * 32, Encodable())
    assert value_of(cache, b"w" * 32) == b"encoded"


class Planted:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("where", ["value", "file", "key"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_planted_pickle_is_not_executed(directory: Path, tmp_path: Path, where: str, compressed: bool) -> None:
    """diskcache's own `Disk` and `JSONDisk` would execute it: CVE-2025-69872."""
    proof = tmp_path / "executed"
    pickled = pickle.dumps(Planted(proof))
    pickled = zlib.compress(pickled) if compressed else pickled
    leave_behind(directory)
    if where == "value":
        plant(directory, "UPDATE Cache SET mode = 4, value = ?", (pickled,))
    elif where == "file":
        (directory / "planted.val").write_bytes(pickled)
        plant(directory, "UPDATE Cache SET mode = 4, value = NULL, filename = ?", ("planted.val",))
    else:
        plant(directory, "UPDATE Cache SET raw = 0, key = ?", (pickled,))
    cache = opened(directory)
    assert cache.get(KEY) is None
    sweep(cache)
    cache.put(KEY, b"good again")
    assert value_of(cache, KEY) == b"good again"
    cache.close()
    assert not proof.exists()
    if not compressed:
        pickle.loads(pickled)
        assert proof.exists(), "it would have been executed"


def test_a_planted_file_name_removes_no_file(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    leave_behind(directory)
    plant(directory, "UPDATE Cache SET filename = ?, expire_time = 1", ("../other",))
    cache = opened(directory)
    sweep(cache)
    cache.close()
    assert rows_on_disk(directory) == 0
    assert other.exists()


def test_only_this_user_may_read_the_cache(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    opened(directory).close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", [b"this is no database" * 1000, b"", None])
def test_a_damaged_database_is_moved_aside(directory: Path, damage: bytes | None) -> None:
    leave_behind(directory)
    database = directory / "cache.db"
    if damage is None:  # a good header, then rubbish
        damage = database.read_bytes()[:4096] + b"\xff" * 65536
    for file in directory.iterdir():
        file.unlink()
    database.write_bytes(damage)
    cache = opened(directory)
    assert cache.get(KEY) is None
    cache.put(KEY, b"new")
    assert value_of(cache, KEY) == b"new"
    cache.close()
    if damage:
        assert (directory.with_name("cache.damaged") / "cache.db").read_bytes()[:24] == damage[:24]


def test_damage_under_way_does_not_stop_answers(directory: Path) -> None:
    leave_behind(directory)
    cache = opened(directory)
    with (directory / "cache.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 200_000)
    assert cache.get(KEY) is None
    cache.put(KEY, b"new")
    cache.get(KEY)
    cache.close()


def test_the_database_stays_within_its_limit(directory: Path) -> None:
    limit_bytes = 1 << 20
    cache = opened(directory, limit_bytes)
    for number in range(600):
        cache.put(number.to_bytes(32, "big"), os.urandom(4000))
    cache.close()
    assert (directory / "cache.db").stat().st_size <= limit_bytes * 1.1


def flip(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_damage_is_a_miss_or_an_empty_cache(directory: Path) -> None:
    rng = random.Random(3)
    stored = {bytes([number]) * 32: rng.randbytes(400) for number in range(40)}
    cache = DiskCache(directory, limit_bytes=1 << 24, ttl_s=1e6, clock=SimulatedClock())
    for key, value in stored.items():
        cache.put(key, value)
    cache.close()
    whole = (directory / "cache.db").read_bytes()
    missed = 0
    for _ in range(40):
        (directory / "cache.db").write_bytes(flip(whole, rng.randrange(8 * len(whole))))
        cache = DiskCache(directory, limit_bytes=1 << 24, ttl_s=1e6, clock=SimulatedClock())
        for key, value in stored.items():
            found = cache.get(key)
            missed += found is None
            assert found is None or found[0] == value
        cache.put(KEY, b"fresh")
        assert value_of(cache, KEY) == b"fresh"
        cache.close()
        for file in (*directory.iterdir(), directory.with_name("cache.damaged")):
            if file.name != "cache.db":
                shutil.rmtree(file, ignore_errors=True)
                file.unlink(missing_ok=True)
    assert missed < 40 * 40 / 2


def test_a_clock_that_is_set_back_prolongs_no_life(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    cache = opened(directory)
    cache.put(KEY, b"v")
    for wall_s, left_s in ((now_s + 30, 30), (now_s - 3600, None), (5.0, None), (now_s + 20, 40), (now_s + 70, None)):
        monkeypatch.setattr(time, "time", lambda wall_s=wall_s: wall_s)
        found = cache.get(KEY)
        assert (found is None) if left_s is None else (found is not None and found[1] == pytest.approx(left_s, abs=2))
    monkeypatch.undo()
    cache.close()


def test_expired_entries_leave_the_disk(directory: Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(150):
        cache.put(b"%d" % number, b"v")
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 30)
    store(cache, KEY, b"later")
    monkeypatch.setattr(time, "time", lambda: now_s + 61)
    sweep(cache)
    assert rows_on_disk(directory) == 1
    assert cache.get(KEY) is not None
    monkeypatch.undo()


def test_results_are_encrypted_with_a_key_and_another_one_misses(directory: Path) -> None:
    first = DiskCache(directory, limit_bytes=1 << 24, ttl_s=60, seal=Seal([b"k" * 32]))
    first.put(KEY, b"what the model said")
    first.close()
    assert b"what the model said" not in b"".join(file.read_bytes() for file in directory.iterdir())
    other = DiskCache(directory, limit_bytes=1 << 24, ttl_s=60, seal=Seal([b"o" * 32]))
    assert other.get(KEY) is None
    other.put(KEY, b"again")
    assert value_of(other, KEY) == b"again"
    other.close()


def rows_on_disk(directory: Path) -> int:
    """Returns the committed entries, as another process would find them."""
    return len(keys_on_disk(directory))


def keys_on_disk(directory: Path) -> set[bytes]:
    connection = sqlite3.connect(directory / "cache.db")
    found = {key for (key,) in connection.execute("SELECT key FROM Cache")}
    connection.close()
    return found


def test_puts_share_a_commit_and_can_be_read_before_it(directory: Path, cache: DiskCache) -> None:
    keys = numbered(range(64))
    for number, key in enumerate(keys):
        store(cache, key, b"v%d" % number)
    assert rows_on_disk(directory) == 1  # the first went alone
    assert all(cache.get(key) is not None for key in keys)
    store(cache, b"n" * 32, b"the 64th of its group")
    assert rows_on_disk(directory) == 65
    cache.put(KEY, b"v")
    cache.close()
    assert rows_on_disk(directory) == 66


def test_a_put_waits_a_minute_for_others_at_most(directory: Path) -> None:
    clock = SimulatedClock()
    cache = DiskCache(directory, limit_bytes=1 << 24, ttl_s=600, clock=clock)
    store(cache, KEY, b"alone")
    cache.put(b"a" * 32, b"waits")
    clock._now_s += 59
    store(cache, b"b" * 32, b"waits")
    assert rows_on_disk(directory) == 1
    clock._now_s += 1
    store(cache, b"c" * 32, b"is the next after a minute")
    assert rows_on_disk(directory) == 4
    cache.close()


def test_after_a_refused_group_the_next_put_goes_alone(directory: Path, cache: DiskCache) -> None:
    store(cache, KEY, b"kept")
    with refusing(directory):
        put_all(cache, range(64), b"refused")
        written(cache)
    assert "The disk refuses the result cache" in cache.problem
    assert [cache.get(key) for key in numbered(range(64))] == [None] * 64
    assert value_of(cache, KEY) == b"kept"
    store(cache, b"n" * 32, b"taken again")
    assert cache.problem == ""
    assert rows_on_disk(directory) == 2


def test_a_slow_disk_is_left_alone_for_a_while(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, takes_s, calls = SimulatedClock(), 0.1, 0
    works = diskcache.Cache.get

    def slowly(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        clock._now_s += takes_s
        return works(*arguments, **options)

    cache = DiskCache(directory, limit_bytes=1 << 24, ttl_s=60, clock=clock)
    store(cache, KEY, b"on disk")
    monkeypatch.setattr(diskcache.Cache, "get", slowly)
    assert cache.get(KEY) is not None
    for number in range(100):
        cache.put(b"later%d" % number, b"waits")
        assert cache.get(KEY) is None
        assert value_of(cache, b"later%d" % number) == b"waits"
    assert calls == 1
    takes_s = 0.0
    clock._now_s += 2.1
    assert cache.get(KEY) is not None
    cache.put(b"last", b"x")
    cache.close()
    assert rows_on_disk(directory) == 102


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Returns the keys that are read from the disk from now on."""
    reads: list[bytes] = []
    works = diskcache.Cache.get

    def counted(self: diskcache.Cache, key: bytes, **options: Any) -> Any:
        reads.append(key)
        return works(self, key, **options)

    monkeypatch.setattr(diskcache.Cache, "get", counted)
    return reads


def test_only_stored_inputs_are_read_from_the_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(directory)
    put_all(cache, range(64))
    cache.close()
    cache = opened(directory)
    cache.put(KEY, b"v")
    written(cache)  # and the keys were read before
    reads = count_reads(monkeypatch)
    assert [cache.get(key) for key in numbered(range(100, 1100))] == [None] * 1000
    assert len(reads) < 10
    assert all(cache.get(key) is not None for key in [KEY, *numbered(range(64))])
    cache.close()


def test_keys_are_read_again_after_many_evictions(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_FILTERED_KEYS", 256)
    cache = opened(directory, limit_bytes=1 << 16)
    for group in range(40):
        put_all(cache, range(64 * group, 64 * group + 64))
        written(cache)
    sweep(cache)
    on_disk = keys_on_disk(directory)
    evicted = set(numbered(range(64 * 40))) - on_disk
    assert len(evicted) > 1000
    reads = count_reads(monkeypatch)
    assert all(cache.get(key) is not None for key in on_disk)
    reads.clear()
    assert not any(cache.get(key) for key in evicted)
    assert len(reads) < len(evicted) / 2
    cache.close()


def test_a_damaged_count_does_not_set_the_filters_size(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_FILTERED_KEYS", 16)
    cache = opened(directory)
    put_all(cache, range(64))
    cache.close()
    plant(directory, "UPDATE Settings SET value = ? WHERE key = 'count'", (0,))
    cache = opened(directory)
    store(cache, KEY, b"v")
    assert cache._stored is not None and cache._stored.room == 128 - 65
    cache.close()


def test_a_cache_is_closed_while_its_keys_are_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(directory)
    put_all(cache, range(64))
    cache.close()
    added, reading, goes_on = list[bytes](), threading.Event(), threading.Event()

    def add(self: KeyFilter, key: bytes) -> None:
        added.append(key)
        reading.set()
        goes_on.wait(10)

    monkeypatch.setattr(KeyFilter, "add", add)
    cache = opened(directory)
    cache.expire()
    reading.wait(10)

    def waits(futures: Any) -> None:
        goes_on.set()
        wait(futures)

    monkeypatch.setattr(disk_cache, "wait", waits)
    cache.close()
    assert len(added) == 1


class Held:
    """Another process holds the database's lock, so that writers wait as on a slow disk."""

    def __init__(self, directory: Path) -> None:
        self._connection = sqlite3.connect(directory / "cache.db", isolation_level=None, check_same_thread=False)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer waits as long as it takes."""
    monkeypatch.setattr(disk_cache, "_WRITE_TIMEOUT_S", 60.0)


def test_a_slow_disk_delays_no_reads_and_writes(directory: Path, cache: DiskCache) -> None:
    store(cache, KEY, b"on disk")
    with Held(directory):
        for number in range(200):  # one group is being written, and all others wait together
            cache.put(number.to_bytes(32), b"v%d" % number)
            assert value_of(cache, KEY) == b"on disk"
        assert [value_of(cache, key) for key in numbered(range(200))] == [b"v%d" % number for number in range(200)]
        cache.expire()
        assert rows_on_disk(directory) == 1
    written(cache)
    assert rows_on_disk(directory) == 201
    assert cache.problem == ""


def test_a_sweep_while_the_disk_is_slow_writes_the_rest_afterwards(directory: Path, cache: DiskCache) -> None:
    store(cache, KEY, b"alone")
    with Held(directory):
        put_all(cache, range(64, 128))
        put_all(cache, range(5))  # fewer than share a commit: they would wait for others
        cache.expire()
        assert rows_on_disk(directory) == 1
    written(cache)
    assert rows_on_disk(directory) == 1 + 64 + 5


def test_the_queue_for_a_slow_disk_is_bounded_and_keeps_the_newest(directory: Path, cache: DiskCache) -> None:
    store(cache, KEY, b"on disk")
    with Held(directory):
        put_all(cache, range(64 + 3000))
        hits = [cache.get(key) is not None for key in numbered(range(64 + 3000))]
    assert hits == [True] * 64 + [False] * (3000 - 1024) + [True] * 1024
    cache.close()
    assert rows_on_disk(directory) == 1 + 64 + 1024


def test_large_results_for_a_slow_disk_are_bounded_in_bytes(directory: Path, cache: DiskCache) -> None:
    """4 MiB are being written, and 16 MiB wait; the limit of their number alone would allow a gigabyte."""
    store(cache, KEY, b"on disk")
    results = ResultCache(limit_bytes=0, ttl_s=60, disk=cache, clock=SimulatedClock())
    with Held(directory):
        for key in numbered([*range(100), *range(95, 100)]):  # some of them twice
            results.put(key, ModelOutput({"mask": np.zeros((1, 1 << 20), np.uint8)}))
        hits = [cache.get(key) is not None for key in numbered(range(100))]
    assert hits == [True] * 4 + [False] * 80 + [True] * 16


def test_the_database_stays_within_its_limit_after_a_slow_disk(directory: Path) -> None:
    limit_bytes = 1 << 20
    cache = opened(directory, limit_bytes)
    with Held(directory):
        for number in range(600):
            cache.put(number.to_bytes(32, "big"), os.urandom(4000))
    cache.close()
    assert (directory / "cache.db").stat().st_size <= limit_bytes * 1.1
    opened_again = opened(directory, limit_bytes)
    assert opened_again.get((599).to_bytes(32, "big")) is not None
    assert opened_again.get((0).to_bytes(32, "big")) is None
    opened_again.close()


def test_it_is_closed_when_all_is_written(directory: Path, cache: DiskCache) -> None:
    with Held(directory):
        put_all(cache, range(100))
        closing = threading.Thread(target=cache.close)
        closing.start()
        assert closing.is_alive() and rows_on_disk(directory) == 0
    closing.join()
    assert rows_on_disk(directory) == 100
    cache.close()
    assert cache.get(KEY) is None


def test_expired_entries_leave_under_load(directory: Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s - 61)
    store(cache, KEY, b"has ended")
    monkeypatch.undo()
    with Held(directory):
        put_all(cache, range(64))
        cache.expire()
    wait([cache._writing])
    assert KEY not in keys_on_disk(directory)


def test_a_dropped_write_leaves_no_older_value(directory: Path) -> None:
    cache, early = opened(directory), b"e" * 32
    store(cache, KEY, b"older")
    with Held(directory):
        cache.put(early, b"older, and on its way")
        put_all(cache, range(63))
        cache.put(KEY, b"newer")
        cache.put(early, b"newer")
        assert [value_of(cache, key) for key in (KEY, early)] == [b"newer"] * 2
        put_all(cache, range(64, 64 + 1023))
        assert [value_of(cache, key) for key in (KEY, early)] == [None, b"newer"]  # of 1,025, the oldest was dropped
    wait([cache._writing])  # it has written the older value of `early`
    _ = cache.problem
    assert [value_of(cache, key) for key in (KEY, early)] == [None, b"newer"]
    written(cache)
    assert [value_of(cache, key) for key in (KEY, early)] == [None, b"newer"]
    assert {KEY, early} & keys_on_disk(directory) == {early}
    cache.put(KEY, b"newest")
    cache.close()
    again = opened(directory)
    assert [value_of(again, key) for key in (KEY, early)] == [b"newest", b"newer"]
    again.close()


def test_dropped_write_is_a_miss_behind_an_older_value(directory: Path, cache: DiskCache) -> None:
    store(cache, b"a" * 32, b"alone")
    with Held(directory):
        cache.put(KEY, b"older")
        put_all(cache, range(63))
        cache.put(KEY, b"newer")
        put_all(cache, range(64, 64 + 1024))
        assert cache.get(KEY) is None
    written(cache)
    assert KEY not in keys_on_disk(directory)


@pytest.mark.parametrize("goes", ["with the next group", "when the cache is closed"])
def test_a_refused_group_leaves_no_older_value_behind(directory: Path, cache: DiskCache, goes: str) -> None:
    store(cache, KEY, b"older")
    with refusing(directory):
        cache.put(KEY, b"newer")
        put_all(cache, range(63))
        written(cache)
        assert cache.problem
        assert cache.get(KEY) is None
        store(cache, KEY, b"newer")  # alone, and refused once more
    if goes == "with the next group":
        store(cache, b"n" * 32, b"v")
        assert KEY not in keys_on_disk(directory)
    cache.close()
    assert KEY not in keys_on_disk(directory)


def test_a_group_failing_at_close_leaves_no_older_value(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_WRITE_TIMEOUT_S", 0.0)
    cache = opened(directory)
    store(cache, KEY, b"older")
    with Held(directory):
        cache.put(KEY, b"newer")
        put_all(cache, range(63))
        wait([cache._writing])
    cache.close()
    assert KEY not in keys_on_disk(directory)


def test_a_value_that_is_too_large_leaves_no_older_one_behind(directory: Path) -> None:
    cache = opened(directory, 1 << 16)
    store(cache, KEY, b"older")
    cache.put(KEY, bytes(1 << 17))
    cache.close()
    assert KEY not in keys_on_disk(directory)


def test_too_many_stale_entries_cost_the_whole_cache(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_WRITE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(disk_cache, "_STALE_LIMIT", 50)
    cache, keys = opened(directory), numbered(range(70))
    other = b"o" * 32
    for key in (*keys, other):
        cache.put(key, b"older")
    sweep(cache)
    with Held(directory):  # each tries alone, and is refused
        for key in keys:
            store(cache, key, b"newer")
            assert len(cache._stale) <= 50
        assert [cache.get(key) for key in (*keys, other)] == [None] * 71
    store(cache, KEY, b"taken again")
    assert keys_on_disk(directory) == {KEY}
    cache.close()


def test_refused_results_that_the_disk_never_had_are_forgotten(directory: Path, cache: DiskCache) -> None:
    store(cache, KEY, b"older")
    with refusing(directory):
        for number in range(300):
            store(cache, number.to_bytes(32), b"refused")
        sweep(cache)
        assert cache.problem  # there was nothing to write, which the disk does not refuse
        store(cache, KEY, b"newer")
    assert KEY in cache._stale
    assert len(cache._stale) < 10  # the filter of stored keys seems to hold few others


def test_damage_that_the_writer_finds_begins_a_fresh_cache(directory: Path, cache: DiskCache) -> None:
    store(cache, KEY, b"good")
    plant(directory, "DROP TABLE Cache", ())
    put_all(cache, range(64), b"has no table")
    written(cache)
    assert (cache.problem, "no such table" in cache.damage) == ("", True)
    cache.put(KEY, b"new")
    cache.close()
    assert rows_on_disk(directory) == 1


WRITES_UNTIL_KILLED = """
import itertools, sys
from pathlib import Path
from firstline_edge.cache.disk_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]), limit_bytes=1 << 20, ttl_s=600)
for number in itertools.count():
    cache.put(number.to_bytes(32), b"v%d" % number)
    if number == 5000:
        print("under way", flush=True)
"""


def test_a_process_killed_while_writing_leaves_a_valid_file(directory: Path) -> None:
    command = [sys.executable, "-c", WRITES_UNTIL_KILLED, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        while not rows_on_disk(directory):  # the thread that writes them may have had no turn yet
            time.sleep(0.001)
        process.kill()
    cache = DiskCache(directory, limit_bytes=1 << 20, ttl_s=600, clock=SimulatedClock())
    assert (cache.problem, cache.damage) == ("", "")
    connection = sqlite3.connect(directory / "cache.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    keys = [key for (key,) in connection.execute("SELECT key FROM Cache")]
    connection.close()
    assert keys
    assert all(value_of(cache, key) == b"v%d" % int.from_bytes(key, "big") for key in keys)
    cache.close()


@given(st.lists(st.binary(max_size=48), min_size=1, max_size=300), st.integers(1, 300))
def test_every_key_that_was_added_is_found(keys: list[bytes], capacity: int) -> None:
    found = KeyFilter(capacity)
    for key in keys:
        found.add(key)
    assert all(key in found for key in keys)
    assert found.room == capacity - len(keys)


def test_a_full_filter_holds_few_other_keys() -> None:
    # 4,096 keys are a power of two, for which the filter is smallest. Python's hashes differ from run to run: 1.4 % of
    # 20,000 are 280, with a standard deviation of 17.
    full = KeyFilter(4096)
    for number in range(4096):
        full.add(number.to_bytes(32))
    assert sum(number.to_bytes(32) in full for number in range(10_000, 30_000)) < 400
