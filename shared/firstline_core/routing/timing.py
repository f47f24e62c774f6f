"""How long a link takes, by what is sent and what is on its way already: streaming estimates that forget.

A transfer takes a + b * bytes + c * bytes ahead, give or take: what was sent before and is not answered yet has to go
through the same link and the same gateway, and where either is the bottleneck, that is what takes the time. The plane
(a, b, c) is fitted to recent observations by least squares of the relative errors; each observation is then put down as
the time that a payload of the usual size would have taken with the usual bytes ahead, and the quantiles are theirs. So
all sizes share what is known, and the plane only says how they compare: when a link slows down, the quantiles follow at
once and not twice. When too much is sent, the prediction follows at once too: it does not have to wait for answers that
are late already. A high quantile comes down slowly again, over a hundred observations: so a dozen quick ones in a row,
which no chance explains, end the memory of what was before.

Measured against one estimate for each power of two, against quantiles of the ratio to the plane, and against estimates
that do not know what is ahead, or count it as the payload's own: bench/timing.py. Pure: times are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from firstline_core.routing.quantiles import DecayedQuantiles

_UNIT_BYTES = 32 * 1024  # of sizes in here, so that numbers are of one order
# Amounts that differ by less than a tenth of their mean say little about their slope: it is then drawn to 0 (ridge).
_RIDGE = 0.01
_APART = 6.0  # with so much more spread than the ridge's, it takes at most a seventh of the slope
_COLLINEAR = 1e-9
LEAST_WEIGHT = 0.5
"""Evidence that is worth less than this many fresh observations is none: what it spoke of is tried anew."""
_LINE_HALF_LIFE_COUNT = 64.0
_CLIP = 3.0  # times what was expected: a stall must not tilt the plane
_LEAST_S = 1e-5
_AFTER_RETURN = 4.0
_KEEP = 2.0 ** (-1 / _LINE_HALF_LIFE_COUNT)
# So many in a row, each quicker than this share of the median, are no chance: things have changed.
_RUN = 12
_QUICK = 0.8
# Sums of weight * (1, x, z, x * x, x * z, z * z, y, x * y, z * y): x is the size and z what is ahead, in `_UNIT_BYTES`,
# and y the seconds.
_NOTHING = (0.0,) * 9


class TimesBySize:
    """Durations of one kind, by payload size and by what was ahead. A few hundred numbers, however long it runs."""

    __slots__ = (
        "_base_s",
        "_count",
        "_mean",
        "_moments",
        "_quick_s",
        "_run",
        "_since",
        "_slopes_s",
        "_times",
        "_usual",
        "_usual_s",
    )

    def __init__(self) -> None:
        self._times = DecayedQuantiles()
        self._run: list[tuple[float, float]] = []  # quick ones in a row, with their times
        self._quick_s, self._since = 0.0, 0  # what was quick, so many observations ago
        self._moments = _NOTHING
        self._base_s, self._slopes_s = 1.0, (0.0, 0.0)
        self._count, self._mean = 0, (0.0, 0.0)  # of sizes and of what is ahead, of late
        self._usual = (0.0, 0.0)  # the same by the weights of the fit, to which the quantiles are scaled
        self._usual_s = 1.0  # expected there

    def add(
        self, size_bytes: int, seconds: float, now_s: float, *, ahead_bytes: int = 0, censored: bool = False
    ) -> None:
        """Adds an observation.

        Args:
            size_bytes: of the payload.
            seconds: how long it took.
            now_s: on a monotonic clock.
            ahead_bytes: of other payloads, which were on their way when it was sent.
            censored: it was waited for so long in vain.
        """
        at = (size_bytes / _UNIT_BYTES, ahead_bytes / _UNIT_BYTES)
        expected_s = self._expected_s(at) if self._moments[0] else max(_LEAST_S, seconds)
        if not censored or seconds >= expected_s:
            self._fit(at, min(seconds, _CLIP * expected_s), expected_s)
        usual_s = seconds / self._scale(at)
        self._times.add(usual_s, now_s, censored=censored)
        self._notice(usual_s, now_s, quick=not censored and usual_s < self._quick_s)

    def quantile(self, size_bytes: int, share: float, ahead_bytes: int = 0) -> float | None:
        """Seconds that this share of such payloads does not exceed; None where nothing was seen."""
        usual_s = self._times.quantile(share)
        if usual_s is None:
            return None
        return usual_s * self._scale((size_bytes / _UNIT_BYTES, ahead_bytes / _UNIT_BYTES))

    def weight(self, now_s: float) -> float:
        """How many fresh observations all that is remembered is worth."""
        return self._times.weight(now_s)

    def doubt(self, worth: float) -> None:
        """See `DecayedQuantiles.doubt`."""
        self._times.doubt(worth)

    @property
    def line(self) -> tuple[float, float] | None:
        """Seconds that any payload takes, and those of each byte; None while sizes differ too little to tell."""
        n, sx, _, sxx = self._moments[:4]
        if n * sxx - sx * sx < _APART * _RIDGE * sx * sx or self._slopes_s[0] <= 0:
            return None
        return self._base_s, self._slopes_s[0] / _UNIT_BYTES

    @property
    def typical_bytes(self) -> tuple[int, int]:
        """The mean size of late, and the mean of what was ahead; zeros where nothing was seen."""
        return round(self._mean[0] * _UNIT_BYTES), round(self._mean[1] * _UNIT_BYTES)

    def _notice(self, usual_s: float, now_s: float, *, quick: bool) -> None:
        """Begins anew with the run of quick ones, once it is long enough."""
        self._since += 1
        if quick:
            self._run.append((usual_s, now_s))
            if len(self._run) == _RUN:
                self._times = DecayedQuantiles()
                for seconds, then_s in self._run:
                    self._times.add(seconds, then_s)
        if not quick or len(self._run) == _RUN:
            self._run.clear()
            if self._since >= _RUN:
                self._quick_s, self._since = _QUICK * (self._times.quantile(0.5) or 0.0), 0

    def _expected_s(self, at: tuple[float, float]) -> float:
        return max(_LEAST_S, self._base_s + self._slopes_s[0] * at[0] + self._slopes_s[1] * at[1])

    def _scale(self, at: tuple[float, float]) -> float:
        return self._expected_s(at) / self._usual_s

    def _fit(self, at: tuple[float, float], y: float, expected_s: float) -> None:
        (x, z), weight = at, 1 / expected_s**2
        n, sx, sz, sxx, sxz, szz, sy, sxy, szy = self._moments
        n, sx, sz, sy = _KEEP * n + weight, _KEEP * sx + weight * x, _KEEP * sz + weight * z, _KEEP * sy + weight * y
        sxx, sxz, szz = _KEEP * sxx + weight * x * x, _KEEP * sxz + weight * x * z, _KEEP * szz + weight * z * z
        sxy, szy = _KEEP * sxy + weight * x * y, _KEEP * szy + weight * z * y
        self._moments = (n, sx, sz, sxx, sxz, szz, sy, sxy, szy)
        # About the means, where the base is nothing to ask for.
        xx, zz = sxx - sx * sx / n + _RIDGE * sx * sx / n, szz - sz * sz / n + _RIDGE * sz * sz / n
        most = sy / (sx + sz) if sx > 0 else math.inf
        slopes = _slopes(xx, sxz - sx * sz / n, zz, sxy - sx * sy / n, szy - sz * sy / n, most=most)
        base = (sy - slopes[0] * sx - slopes[1] * sz) / n
        if base < 0:
            slopes, base = _slopes(sxx, sxz, szz, sxy, szy, most=most), 0.0
        self._base_s, self._slopes_s = base, slopes
        self._usual_s = self._expected_s(self._usual)
        self._count += 1
        step = max(1 / self._count, 1 - _KEEP)
        self._mean = (self._mean[0] + step * (x - self._mean[0]), self._mean[1] + step * (z - self._mean[1]))
        usual = (sx / n, sz / n)
        if not (self._usual[0] / 2 <= usual[0] <= self._usual[0] * 2 and 0.5 <= self._scale(usual) <= 2):
            self._move_to(usual)

    def _move_to(self, usual: tuple[float, float]) -> None:
        """Other amounts are usual now: close to them, an error of the slopes makes no difference."""
        factor = self._scale(usual)
        self._times.rescale(factor)
        self._quick_s *= factor
        self._run.clear()
        self._usual, self._usual_s = usual, self._expected_s(usual)


def _slopes(xx: float, xz: float, zz: float, xy: float, zy: float, *, most: float) -> tuple[float, float]:
    """The two slopes of least squares of which neither is below 0: nothing gets quicker by being larger or later.

    And the second is no more than `most`, the usual time by all bytes in flight, own ones included: what is ahead costs
    no more than what went the same way. Otherwise a link that was slow, so that more was in flight, and is quick again
    would be held for a crowded one.
    """
    x, z = _positive(xx, xz, zz, xy, zy)
    return (max(0.0, (xy - xz * most) / xx) if xx > 0 else 0.0, most) if z > most else (x, z)


def _positive(xx: float, xz: float, zz: float, xy: float, zy: float) -> tuple[float, float]:
    determinant = xx * zz - xz * xz
    if determinant > _COLLINEAR * xx * zz:
        x, z = (xy * zz - zy * xz) / determinant, (zy * xx - xy * xz) / determinant
        if x >= 0 and z >= 0:
            return x, z
    # One of them is 0: the other alone explains what it can.
    x, z = max(0.0, xy / xx) if xx > 0 else 0.0, max(0.0, zy / zz) if zz > 0 else 0.0
    return (x, 0.0) if x * xy >= z * zy else (0.0, z)


@dataclass(frozen=True, slots=True)
class TimingReport:
    """How long a link takes, for people, in milliseconds: payloads of `typical_bytes` with as much ahead as of late.

    Args:
        typical_bytes: mean size of late.
        typical_ahead_bytes: mean of what was ahead of them.
        observations: how many fresh ones the evidence is worth.
        total_p50_ms: from sending to the answer.
        network_p50_ms: of that, what the gateway did not account for: the way there and back.
        service_p50_ms: what the gateway says that it took, its queue included.
        round_trip_ms: of the network's, what a payload of no size would take; None while sizes differ too little.
        bytes_per_s: how fast the rest went; None likewise.
    """

    typical_bytes: int
    typical_ahead_bytes: int
    observations: float
    total_p50_ms: float
    total_p95_ms: float
    network_p50_ms: float | None
    network_p95_ms: float | None
    service_p50_ms: float | None
    service_p95_ms: float | None
    round_trip_ms: float | None = None
    bytes_per_s: float | None = None


def ahead_of(size_bytes: int, others_bytes: Iterable[int], *, in_turn: bool) -> int:
    """How many bytes of other payloads are ahead of one.

    Args:
        size_bytes: of that one.
        others_bytes: of those that are on their way.
        in_turn: they go each after the other. Where they share the link, a large one does not hold up a small one for
            as long as it takes itself: of each at most as many bytes count as the new one has.
    """
    return sum(others_bytes) if in_turn else sum(min(size_bytes, other) for other in others_bytes)


@dataclass(eq=False, slots=True)
class Flight:
    """One call that is on its way.

    Attributes:
        size_bytes: of its payload.
        ahead_bytes: of others, when it was sent.
        lost: the link was down since, so that it is ahead of nobody, and its time tells of the outage.
    """

    size_bytes: int
    ahead_bytes: int
    lost: bool = False


class LinkTiming:
    """What is known of one link's times.

    Args:
        in_turn: see `ahead_of`.
    """

    def __init__(self, *, in_turn: bool = False) -> None:
        self._in_turn = in_turn
        self._total, self._network, self._service = TimesBySize(), TimesBySize(), TimesBySize()
        self._probes = DecayedQuantiles()
        self._flights: set[Flight] = set()

    def sent(self, size_bytes: int) -> Flight:
        """A call begins: its payload is in flight until it has `ended`."""
        flight = Flight(size_bytes, self.ahead_bytes(size_bytes))
        self._flights.add(flight)
        return flight

    def ended(self, flight: Flight) -> None:
        """A call has ended, however it did."""
        self._flights.discard(flight)

    @contextmanager
    def carrying(self, size_bytes: int) -> Iterator[Flight]:
        """Both, around a call."""
        flight = self.sent(size_bytes)
        try:
            yield flight
        finally:
            self.ended(flight)

    def ahead_bytes(self, size_bytes: int) -> int:
        """Of what is in flight, so much would be ahead of a payload that is sent now."""
        return ahead_of(size_bytes, (flight.size_bytes for flight in self._flights), in_turn=self._in_turn)

    def answered(
        self, size_bytes: int, seconds: float, now_s: float, service_s: float | None = None, ahead_bytes: int = 0
    ) -> None:
        """A call was answered.

        Args:
            size_bytes: of the payload that was sent.
            seconds: from sending to the answer.
            now_s: on a monotonic clock.
            service_s: of that, what the gateway says that it took; None where it does not say.
            ahead_bytes: of it, when it was sent.
        """
        self._total.add(size_bytes, seconds, now_s, ahead_bytes=ahead_bytes)
        if service_s is not None:
            service_s = min(max(0.0, service_s), seconds)
            self._service.add(size_bytes, service_s, now_s, ahead_bytes=ahead_bytes)
            self._network.add(size_bytes, seconds - service_s, now_s, ahead_bytes=ahead_bytes)

    def waited(self, size_bytes: int, seconds: float, now_s: float, ahead_bytes: int = 0) -> None:
        """A call was given up after so long, unanswered."""
        self._total.add(size_bytes, seconds, now_s, ahead_bytes=ahead_bytes, censored=True)

    def probed(self, seconds: float, now_s: float) -> None:
        """A probe came back: nothing that was sent can be answered sooner."""
        self._probes.add(seconds, now_s)

    def returned(self) -> None:
        """The link was down, and works again. It need not be the one that it was, and what it carried may be lost."""
        self._total.doubt(_AFTER_RETURN)
        for flight in self._flights:
            flight.lost = True
        self._flights.clear()

    def predicted_s(self, size_bytes: int, share: float, now_s: float) -> float | None:
        """Seconds within which this share of such payloads is answered; None where nothing is known, or not any more.

        Sent now, behind what is in flight. Until a payload was answered, a probe's time stands in.
        """
        if self._total.weight(now_s) >= LEAST_WEIGHT:
            return self._total.quantile(size_bytes, share, self.ahead_bytes(size_bytes))
        return self._probes.quantile(share) if self._probes.weight(now_s) >= LEAST_WEIGHT else None

    def report(self, now_s: float) -> TimingReport | None:
        """None where nothing is known, or not any more."""
        observations = self._total.weight(now_s)
        if observations < LEAST_WEIGHT:
            return None
        size_bytes, ahead_bytes = self._total.typical_bytes

        def ms(times: TimesBySize, share: float) -> float | None:
            seconds = times.quantile(size_bytes, share, ahead_bytes)
            return None if seconds is None else round(seconds * 1000, 3)

        base_s, byte_s = self._network.line or (None, None)
        return TimingReport(
            size_bytes,
            ahead_bytes,
            round(observations, 1),
            ms(self._total, 0.5) or 0.0,
            ms(self._total, 0.95) or 0.0,
            ms(self._network, 0.5),
            ms(self._network, 0.95),
            ms(self._service, 0.5),
            ms(self._service, 0.95),
            None if base_s is None else round(base_s * 1000, 3),
            None if byte_s is None else round(1 / byte_s),
        )
