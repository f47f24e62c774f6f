import math

from firstline_core.routing.token_bucket import TokenBucket


def test_it_starts_full_and_ends_empty() -> None:
    bucket = TokenBucket(3)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait_s(0.0) == math.inf


def test_shares_are_earned_up_to_the_burst() -> None:
    bucket = TokenBucket(1)
    assert bucket.take(0.0)
    for _ in range(5):
        assert not bucket.take(0.0)
        bucket.earn(0.2)
    for _ in range(50):
        bucket.earn(0.2)
    assert [bucket.take(0.0) for _ in range(2)] == [True, False]


def test_a_bucket_refills_with_time() -> None:
    bucket = TokenBucket(2, per_second=0.5)
    assert bucket.take(10.0) and bucket.take(10.0)
    assert bucket.wait_s(10.0) == 2.0
    assert not bucket.take(11.0)
    assert bucket.take(12.0)
    assert not bucket.take(5.0)  # no clock of ours goes backwards, and if one did, nothing came of it
