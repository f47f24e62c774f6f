"""The filter of keys: it forgets none, and holds few others."""

from hypothesis import given
from hypothesis import strategies as st

from firstline_edge.cache.key_filter import KeyFilter


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
