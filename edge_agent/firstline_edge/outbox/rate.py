"""How fast promises are delivered: as fast as nobody else notices. No I/O.

What waits in an outbox is not urgent, and after an outage it waits on every device. A fleet that delivers as fast as
the gateway answers takes what live requests need, and is refused more often than answered. So delivery begins slowly
whenever a link comes back, and goes by the delay that it causes itself, as LEDBAT does (RFC 6817, a transport for what
may wait): faster while answers come hardly later than they can come at all, slower when they queue, half as fast when
some are refused. The gap before each is drawn, so that devices do not fall into step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from firstline_core.clock import Clock

_SLACK_S = 0.1  # gaps shorter than that are saved up: many may go together
_FORGET = 1.01  # by which the shortest time seen grows with each answer: the way may have changed


@dataclass(frozen=True, slots=True)
class RateSettings:
    """How careful to be.

    Args:
        begin_per_s: deliveries a second at first.
        least_per_s: however often one is refused.
        burst: that may go at once at the beginning: few promises are no stampede.
        target_s: by how much answers may come later than they can, at least; by half of all, where that is more.
        gain: by which share each answer raises the rate, if it came as soon as it can; the later, the less.
        slowest: the least factor for an answer that came late.
    """

    begin_per_s: float = 0.3
    least_per_s: float = 0.1
    burst: int = 4
    target_s: float = 0.1
    gain: float = 0.3
    slowest: float = 0.7


class DeliveryRate:
    """The rate of one device.

    Args:
        clock: its monotonic time.
        rng: for the gaps.
        settings: how careful to be.
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
        """Deliveries a second at the moment."""
        return self._per_s

    @property
    def wait_s(self) -> float:
        """Seconds until one more may go."""
        early_s = self._next_s - self._clock.monotonic_s()
        return 0.0 if self._free or early_s < _SLACK_S else early_s

    def begin(self) -> None:
        """A link came back."""
        self._per_s, self._free, self._next_s = self._settings.begin_per_s, self._settings.burst, 0.0

    def sent(self) -> None:
        """One goes now."""
        if self._free:
            self._free -= 1
        gap_s = self._rng.uniform(0.5, 1.5) / self._per_s
        self._next_s = max(self._next_s, self._clock.monotonic_s()) + gap_s

    def answered(self, took_s: float) -> None:
        """One got through."""
        self._shortest_s = min(self._shortest_s * _FORGET, took_s)
        target_s = max(self._settings.target_s, self._shortest_s)
        off_target = 1 - (took_s - self._shortest_s) / target_s
        self._change(max(self._settings.slowest, 1 + self._settings.gain * off_target))

    def refused(self) -> None:
        """Of those that went together, one at least did not."""
        self._change(0.5)

    def _change(self, factor: float) -> None:
        self._per_s = min(1e6, max(self._settings.least_per_s, self._per_s * factor))
