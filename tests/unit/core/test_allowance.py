import math

from firstline_core.routing.allowance import Allowance


def test_it_starts_full_and_ends_empty() -> None:
    allowance = Allowance(3)
    assert [allowance.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.wait_s(0.0) == math.inf


def test_shares_are_earned_up_to_the_burst() -> None:
    allowance = Allowance(1)
    assert allowance.take(0.0)
    for _ in range(5):
        assert not allowance.take(0.0)
        allowance.earn(0.2)
    for _ in range(50):
        allowance.earn(0.2)
    assert [allowance.take(0.0) for _ in range(2)] == [True, False]


def test_tokens_come_by_the_second() -> None:
    allowance = Allowance(2, per_second=0.5)
    assert allowance.take(10.0) and allowance.take(10.0)
    assert allowance.wait_s(10.0) == 2.0
    assert not allowance.take(11.0)
    assert allowance.take(12.0)
    assert not allowance.take(5.0)  # no clock of ours goes backwards, and if one did, nothing came of it
