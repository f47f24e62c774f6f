"""Quantiles of a stream with exponentially decaying weights, in log-spaced bins.

Pure; bounded memory.

The bins are DDSketch's (Masson, Rim and Lee, VLDB 2019): bin i holds (gamma^(i-1), gamma^i], so that any value in it is
known to a relative error. Weights follow forward decay (Cormode, Shkapenyuk, Srivastava and Xu, ICDE 2009): instead of
reducing old weights, each new observation weighs more, which costs nothing and changes no quantile.

An observation may be censored ("at least this long"), as after a timeout. The quantiles are then those of the
product-limit estimate (Kaplan and Meier, 1958): the weight of a censored observation is distributed over longer ones.
"""

from __future__ import annotations

import math

RELATIVE_ERROR = 0.05
_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)
# From 0.1 ms to several minutes; values outside are counted in the first or last bin.
_LOWEST, _HIGHEST = math.ceil(math.log(1e-4) / _LOG_GAMMA), math.ceil(math.log(300.0) / _LOG_GAMMA)

HALF_LIFE_COUNT = 32.0
"""Half-life of an observation, in further observations: an estimate is based on about the last 46."""
HALF_LIFE_S = 60.0
"""Half-life of an observation in seconds, because networks change without traffic too."""
# Maximum exponent of a fresh weight before all weights are scaled back and the oldest dropped.
_MAX_EXPONENT = 8.0
# Weights below this share of a fresh one are dropped.
_NEGLIGIBLE = 1e-3


class DecayedQuantiles:
    """A distribution of durations (seconds) in which recent ones count most.

    Args:
        half_life_count: in observations.
        half_life_s: in seconds.
    """

    def __init__(self, half_life_count: float = HALF_LIFE_COUNT, half_life_s: float = HALF_LIFE_S) -> None:
        self._step = 1 / half_life_count
        self._half_life_s = half_life_s
        self._bins: dict[int, list[float]] = {}  # index -> weights of complete and of censored observations
        self._ended = self._censored = 0.0  # sums of those
        self._exponent = 0.0  # the newest observation weighs 2 ** this
        self._at_s = 0.0  # its time
        self._known: dict[float, float] = {}  # quantiles, until the next observation

    def add(self, seconds: float, now_s: float, *, censored: bool = False) -> None:
        """Adds an observation.

        Args:
            seconds: duration; for a censored observation, the time waited.
            now_s: on a monotonic clock.
            censored: whether the end was not observed.

        Raises:
            ValueError: negative or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"A duration of {seconds} s is not valid.")
        self._exponent += self._step + self._age(now_s)
        self._at_s = max(self._at_s, now_s)
        if self._exponent > _MAX_EXPONENT:
            self._scale_back()
        weight: float = 2.0**self._exponent
        self._put(_bin_of(seconds), *((0.0, weight) if censored else (weight, 0.0)))

    def weight(self, now_s: float) -> float:
        """Returns the equivalent number of fresh observations."""
        fade: float = 2.0 ** -(self._exponent + self._age(now_s))
        return (self._ended + self._censored) * fade

    def quantile(self, share: float) -> float | None:
        """Returns the quantile, within the relative error; None without observations.

        If too many observations are censored to know it, it is above the longest wait.

        Args:
            share: above 0 and below 1.
        """
        if not self._bins:
            return None
        if share not in self._known:
            self._known[share] = self._quantile(1 - share)
        return self._known[share]

    def doubt(self, worth: float) -> None:
        """Reduces the total weight to at most a number of fresh observations, because conditions may have changed."""
        excess = self.weight(self._at_s) / worth
        if excess > 1:
            self._exponent += math.log2(excess)

    def rescale(self, factor: float) -> None:
        """Multiplies all durations, to the nearest bin."""
        shift = round(math.log(factor) / _LOG_GAMMA)
        bins, self._bins, self._ended, self._censored = self._bins, {}, 0.0, 0.0
        for index, (ended, censored) in bins.items():
            self._put(min(_HIGHEST, max(_LOWEST, index + shift)), ended, censored)

    def _age(self, now_s: float) -> float:
        """Returns the half-lives since the newest observation."""
        return max(0.0, now_s - self._at_s) / self._half_life_s if self._bins else 0.0

    def _put(self, index: int, ended: float, censored: float) -> None:
        weights = self._bins.get(index)
        if weights is None:
            weights = self._bins[index] = [0.0, 0.0]
        weights[0] += ended
        weights[1] += censored
        self._ended += ended
        self._censored += censored
        self._known.clear()

    def _scale_back(self) -> None:
        fade = 2.0**-self._exponent
        bins, self._bins, self._ended, self._censored, self._exponent = self._bins, {}, 0.0, 0.0, 0.0
        for index, (ended, censored) in bins.items():
            if (ended + censored) * fade > _NEGLIGIBLE:
                self._put(index, ended * fade, censored * fade)

    def _quantile(self, beyond: float) -> float:
        """Returns the value above which this share lies, by the product-limit estimate."""
        at_risk = self._ended + self._censored
        surviving = 1.0
        indices = sorted(self._bins)
        for index in indices:
            ended, censored = self._bins[index]
            surviving *= 1 - ended / at_risk
            if surviving <= beyond:
                return _middle_of(index)
            at_risk -= ended + censored
        return _middle_of(indices[-1]) * _GAMMA


def _bin_of(seconds: float) -> int:
    if seconds <= 0:
        return _LOWEST
    return min(_HIGHEST, max(_LOWEST, math.ceil(math.log(seconds) / _LOG_GAMMA)))


def _middle_of(index: int) -> float:
    """Returns a value within the relative error of everything in the bin."""
    return 2 * _GAMMA**index / (_GAMMA + 1)
