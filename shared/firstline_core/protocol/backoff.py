"""How long to wait before the next try: exponential backoff with full jitter.

https://aws.amazon.com/builders-library, "Timeouts, retries, and backoff with jitter": clients that failed together do
not come back together.
"""

from __future__ import annotations

import random

_DOUBLINGS = 32  # more than any cap allows, and no float overflows


def full_jitter_s(rng: random.Random, failures: int, *, base_s: float, max_s: float) -> float:
    """Seconds, drawn from 0 to `base_s` doubled with each failure before, or to `max_s`."""
    return rng.uniform(0, min(max_s, base_s * 2 ** min(failures, _DOUBLINGS)))
