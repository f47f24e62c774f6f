"""Decides when to send a batch to a second server: when it takes longer than most batches like it. Pure.

Dean and Barroso, "The Tail at Scale" (CACM 2013): a second request that is sent once the first one has taken longer
than the 95th percentile cuts the tail for a few percent more work. The share of all batches that may be sent twice is
bounded: where everything becomes slow at once, hedges would be the load that finishes it off.
"""

from __future__ import annotations

from collections import defaultdict

from firstline_core.routing.quantiles import DecayedQuantiles
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.types import ModelKey

_QUANTILE = 0.95
# Below so many observations the 95th percentile is the longest of a few.
_LEAST_WEIGHT = 20.0
_HALF_LIFE_COUNT = 200.0
# Beyond what the percentile is known to (5 %), so that what always takes the same is not hedged.
_BEYOND = 1.1
# The slower answer's connection is closed; to make another one takes longer than less would bring.
_LEAST_S = 0.002
# Hedges saved up for one hiccup of one server.
_BURST = 5.0


class Hedging:
    """Learns how long batches take, by model and size, and counts what may be sent twice.

    Args:
        share: of all batches.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._budget = TokenBucket(_BURST if share else 0.0)
        self._seconds: defaultdict[tuple[ModelKey, int], DecayedQuantiles] = defaultdict(
            lambda: DecayedQuantiles(_HALF_LIFE_COUNT)
        )

    def asked(self) -> None:
        """A batch is sent for the first time."""
        self._budget.earn(self._share)

    def answered(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        """A server took so long."""
        self._seconds[key, _size_of(rows)].add(seconds, now_s)

    def waited(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        """A server was waited for so long, in vain."""
        self._seconds[key, _size_of(rows)].add(seconds, now_s, censored=True)

    def after_s(self, key: ModelKey, rows: int, now_s: float) -> float | None:
        """Returns how long to wait for the first server; None if unknown, or without hedging."""
        seconds = self._seconds.get((key, _size_of(rows)))
        if not self._share or seconds is None or seconds.weight(now_s) < _LEAST_WEIGHT:
            return None
        usual_s = seconds.quantile(_QUANTILE)
        return None if usual_s is None else max(_LEAST_S, _BEYOND * usual_s)

    def may(self, now_s: float) -> bool:
        """Whether a batch may be sent twice; counts it."""
        return self._budget.take(now_s)


def _size_of(rows: int) -> int:
    """The power of two that `rows` are rounded up to."""
    return max(0, rows - 1).bit_length()
