"""Token buckets: bursts, refilling, and keys that do not disturb each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_gateway.identity.gatekeeper import TokenBuckets


def test_a_burst_and_then_the_rate() -> None:
    found = TokenBuckets()
    assert [found.take("a", 0.0, per_s=2, burst=3) for _ in range(3)] == [0, 0, 0]
    assert found.take("a", 0.0, per_s=2, burst=3) == pytest.approx(0.5)
    assert found.take("b", 0.0, per_s=2, burst=3) == 0
    assert found.take("a", 0.5, per_s=2, burst=3) == 0
    assert found.take("a", 0.75, per_s=2, burst=3) == pytest.approx(0.25)


def test_a_returned_token_can_be_taken_again() -> None:
    found = TokenBuckets()
    found.take("a", 0.0, per_s=1, burst=1)
    found.give_back("a")
    found.give_back("nobody")
    assert found.take("a", 0.0, per_s=1, burst=1) == 0


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_gateway.identity.gatekeeper._BUCKETS", 2)
    found = TokenBuckets()
    for key in "abc":
        found.take(key, 0.0, per_s=1, burst=1)
    assert found.take("c", 0.0, per_s=1, burst=1) > 0
    assert found.take("a", 0.0, per_s=1, burst=1) == 0


@given(steps=st.lists(st.floats(0, 3), max_size=40), per_s=st.floats(0.1, 10), burst=st.floats(1, 10))
def test_never_more_than_burst_and_rate_allow(steps: list[float], per_s: float, burst: float) -> None:
    found, now_s, taken = TokenBuckets(), 0.0, 0
    for step in steps:
        now_s += step
        wait_s = found.take("a", now_s, per_s=per_s, burst=burst)
        taken += not wait_s
        assert taken <= burst + now_s * per_s + 1e-6
        if wait_s:
            now_s += wait_s + 1e-9
            assert found.take("a", now_s, per_s=per_s, burst=burst) <= 1e-6
            taken += 1
