"""How fast promises are delivered: as fast as possible without delaying live requests. No I/O.

Promises are not urgent, and after an outage they wait on every device. A fleet that delivers as fast as the gateway
answers takes capacity from live requests, and gets more refusals than answers. So delivery starts slowly whenever a
link is back, and adapts to the delay that it causes, as LEDBAT does (RFC 6817, a background transport): faster while
answers arrive with little delay, slower when they queue, at half the rate after a refusal. The gap before each delivery
is random, so that devices do not synchronize.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from firstline_core.clock import Clock

_SLACK_S = 0.1  # shorter gaps are saved up, and then several deliveries go together
_FORGET = 1.01  # growth of the shortest seen time with each answer: the path may have changed


@dataclass(frozen=True, slots=True)
class RateSettings:
    """Parameters of the delivery rate.

    Args:
        begin_per_s: initial rate, in deliveries per second.
        least_per_s: minimum rate, however many deliveries are refused.
        burst: deliveries that may go at once at the start: so few cause no thundering herd.
        target_s: accepted delay of an answer beyond the shortest seen time; at least that shortest time is accepted.
        gain: relative increase of the rate for an answer without delay; less for a later answer.
        slowest: least factor for a late answer.
    """

    begin_per_s: float = 0.3
    least_per_s: float = 0.1
    burst: int = 4
    target_s: float = 0.1
    gain: float = 0.3
    slowest: float = 0.7


class DeliveryRate:
    """The delivery rate of one device.

    Args:
        clock: its monotonic time.
        rng: for the gaps.
        settings: parameters of the rate.
    """

    def __init__(self, clock: Clock, rng: random.Random, settings: RateSettings = RateSettings()) -> None:
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._per_s = settings.begin_per_s
        self._free = settings.burst
        self._next_s = 0.0
        self._shortest_s = float("inf")

    @property
    def per_s(self) -> float:
        """The present rate, in deliveries per second."""
        return self._per_s

    @property
    def wait_s(self) -> float:
        """Seconds until the next delivery may start."""
        early_s = self._next_s - self._clock.monotonic_s()
        return 0.0 if self._free or early_s < _SLACK_S else early_s

    def begin(self) -> None:
        """Starts slowly again: a link is back."""
        self._per_s, self._free, self._next_s = self._settings.begin_per_s, self._settings.burst, 0.0

    def sent(self) -> None:
        """Counts a delivery that starts now."""
        if self._free:
            self._free -= 1
        gap_s = self._rng.uniform(0.5, 1.5) / self._per_s
        self._next_s = max(self._next_s, self._clock.monotonic_s()) + gap_s

    def answered(self, took_s: float) -> None:
        """Adapts the rate to a delivery that was answered."""
        self._shortest_s = min(self._shortest_s * _FORGET, took_s)
        target_s = max(self._settings.target_s, self._shortest_s)
        off_target = 1 - (took_s - self._shortest_s) / target_s
        self._change(max(self._settings.slowest, 1 + self._settings.gain * off_target))

    def refused(self) -> None:
        """Halves the rate: of the deliveries that went together, at least one was refused."""
        self._change(0.5)

    def _change(self, factor: float) -> None:
        self._per_s = min(1e6, max(self._settings.least_per_s, self._per_s * factor))
