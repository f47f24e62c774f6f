"""When requests come: at random, and in bursts. And days, of which the hours differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Poisson arrivals, with bursts that come at random as well.

    Args:
        rate_s: requests a second between bursts.
        burst_rate_s: in a burst.
        burst_s: length of a burst.
        between_s: mean time between two bursts.
        day_swing: how much busier midday is than the mean, and midnight is quieter; 0 for none, below 1.
    """

    rate_s: float = 5.0
    burst_rate_s: float = 40.0
    burst_s: float = 2.0
    between_s: float = 20.0
    day_swing: float = 0.0

    def arrivals(self, random: np.random.Generator, length_s: float) -> Floats:
        """Seconds from 0 to `length_s`, ascending."""
        most = max(self.rate_s, self.burst_rate_s) * (1 + self.day_swing)
        times: Floats = np.sort(random.uniform(0, length_s, random.poisson(most * length_s)))
        bursts = np.sort(random.uniform(0, length_s, random.poisson(length_s / self.between_s)))
        since = times - np.append(-math.inf, bursts)[np.searchsorted(bursts, times, side="right")]
        rate = np.where(since < self.burst_s, self.burst_rate_s, self.rate_s)
        rate = rate * (1 - self.day_swing * np.cos(2 * math.pi * times / (24 * _HOUR_S)))
        return times[random.random(len(times)) * most < rate]
