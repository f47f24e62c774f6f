"""The filter before the cache's file."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from firstline_edge.cache.database import Database
from firstline_edge.cache.key_filter import KeyFilter


def as_it_is(value: bytes, _: bytes) -> bytes:
    return value


@given(st.sets(st.binary(min_size=1)))
def test_what_was_added_passes(keys: set[bytes]) -> None:
    known = KeyFilter()
    known.complete = True
    known.add(keys)
    assert all(known.passes(key) for key in keys)


def test_few_others_pass_once_it_is_complete() -> None:
    known = KeyFilter()
    known.add(number.to_bytes(32) for number in range(20_000))
    others = [number.to_bytes(32) for number in range(20_000, 40_000)]
    assert all(map(known.passes, others))
    known.complete = True
    assert sum(map(known.passes, others)) < 0.02 * len(others)


def test_a_database_finds_what_it_held_before_while_it_learns_and_after(tmp_path: Path) -> None:
    keys = [number.to_bytes(32) for number in range(25)]
    before = Database(tmp_path, 1 << 20, as_it_is)
    for key in keys:
        before.writer.put(key, b"value", 1e12, 0.0)
    before.close()
    opened = Database(tmp_path, 1 << 20, as_it_is)
    more = True
    while more:
        assert all(opened.filter.passes(key) and opened.get(key) == (b"value", 1e12) for key in keys)
        assert opened.get(b"another") is None
        more = opened.learn_some(10)
    assert opened.filter.complete
    assert all(opened.filter.passes(key) and opened.get(key) == (b"value", 1e12) for key in keys)
    opened.close()
