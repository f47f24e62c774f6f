"""Exponential backoff with full jitter.

https://aws.amazon.com/builders-library, "Timeouts, retries, and backoff with jitter": clients that failed at the same
time must not retry at the same time.
"""

from __future__ import annotations

import random

_DOUBLINGS = 32  # more than any cap allows, without overflow of a float


def full_jitter_s(rng: random.Random, failures: int, *, base_s: float, max_s: float) -> float:
    """Returns a random delay (seconds) from 0 to `base_s` times 2 to the power of `failures`, at most `max_s`."""
    return rng.uniform(0, min(max_s, base_s * 2 ** min(failures, _DOUBLINGS)))
