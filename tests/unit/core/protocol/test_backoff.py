"""Waits between tries: how long at most, and never alike."""

import random

from firstline_core.protocol.backoff import full_jitter_s


def test_delays_are_drawn_below_a_doubling_bound() -> None:
    rng = random.Random(1)
    for failures, most_s in ((0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0), (10_000, 30.0)):
        drawn = [full_jitter_s(rng, failures, base_s=1.0, max_s=30.0) for _ in range(200)]
        assert max(drawn) <= most_s
        assert max(drawn) > 0.9 * most_s
        assert min(drawn) < 0.1 * most_s
