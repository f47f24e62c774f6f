"""Streaming estimates of a link's latency, by the payload's size and the bytes already in flight.

Old data is forgotten.

A transfer takes about a + b * bytes + c * bytes ahead. Unanswered payloads that were sent before use the same link and
gateway, which may be the bottleneck. The plane (a, b, c) is fitted to recent observations by least squares of the
relative errors. Each observation is converted to the time of a payload of the usual size with the usual bytes ahead,
and the quantiles are computed over these times. So all sizes share one distribution, and the plane only compares sizes:
when a link slows down, the quantiles follow at once and not twice. When too much is sent, the prediction also follows
at once, before late answers arrive. A high quantile decreases slowly, over a hundred observations. So a dozen fast ones
in a row, which chance does not explain, discard all older observations.

Alternatives that were measured and are worse: one estimate per power of two, quantiles of the ratio to the plane, and
estimates that ignore the bytes ahead or count them as the payload's own. Pure: times are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from firstline_core.routing.quantiles import DecayedQuantiles

_UNIT_BYTES = 32 * 1024  # of sizes in this module, so that all numbers have a similar magnitude
# Sizes that differ by less than a tenth of their mean say little about the slope: a ridge term then pulls it to 0.
_RIDGE = 0.01
_APART = 6.0  # with this much more spread than the ridge term, it reduces the slope by at most a seventh
_COLLINEAR = 1e-9
LEAST_WEIGHT = 0.5
"""Evidence worth fewer fresh observations than this counts as none."""
_LINE_HALF_LIFE_COUNT = 64.0
_CLIP = 3.0  # times the expected duration: a stall must not tilt the plane
_LEAST_S = 1e-5
_AFTER_RETURN = 4.0
_KEEP = 2.0 ** (-1 / _LINE_HALF_LIFE_COUNT)
# This many in a row, each faster than this share of the median, mean that the link has changed.
_RUN = 12
_QUICK = 0.8
# Sums of weight * (1, x, z, x * x, x * z, z * z, y, x * y, z * y): x is the size and z what is ahead, in `_UNIT_BYTES`,
# and y the seconds.
_NOTHING = (0.0,) * 9


class TimesBySize:
    """Durations by payload size and bytes ahead, in constant memory."""

    def __init__(self) -> None:
        self._times = DecayedQuantiles()
        self._run: list[tuple[float, float]] = []  # consecutive fast observations, with their times
        self._quick_s, self._since = 0.0, 0  # the limit for fast ones, this many observations ago
        self._moments = _NOTHING
        self._base_s, self._slopes_s = 1.0, (0.0, 0.0)
        self._count, self._mean = 0, (0.0, 0.0)  # recent means of sizes and of bytes ahead
        self._usual = (0.0, 0.0)  # the same with the weights of the fit; the quantiles are scaled to these
        self._usual_s = 1.0  # expected there

    def add(
        self, size_bytes: int, seconds: float, now_s: float, *, ahead_bytes: int = 0, censored: bool = False
    ) -> None:
        """Adds an observation.

        Args:
            size_bytes: of the payload.
            seconds: duration.
            now_s: on a monotonic clock.
            ahead_bytes: of other payloads that were in flight when it was sent.
            censored: no answer came within `seconds`.
        """
        at = (size_bytes / _UNIT_BYTES, ahead_bytes / _UNIT_BYTES)
        expected_s = self._expected_s(at) if self._moments[0] else max(_LEAST_S, seconds)
        if not censored or seconds >= expected_s:
            self._fit(at, min(seconds, _CLIP * expected_s), expected_s)
        usual_s = seconds / self._scale(at)
        self._times.add(usual_s, now_s, censored=censored)
        self._notice(usual_s, now_s, quick=not censored and usual_s < self._quick_s)

    def quantile(self, size_bytes: int, share: float, ahead_bytes: int = 0) -> float | None:
        """Returns the quantile of the duration of such payloads (seconds); None without observations."""
        usual_s = self._times.quantile(share)
        if usual_s is None:
            return None
        return usual_s * self._scale((size_bytes / _UNIT_BYTES, ahead_bytes / _UNIT_BYTES))

    def weight(self, now_s: float) -> float:
        """Returns the equivalent number of fresh observations."""
        return self._times.weight(now_s)

    def doubt(self, worth: float) -> None:
        """See `DecayedQuantiles.doubt`."""
        self._times.doubt(worth)

    @property
    def line(self) -> tuple[float, float] | None:
        """Returns the seconds of an empty payload and the seconds per byte; None while sizes differ too little."""
        n, sx, _, sxx = self._moments[:4]
        if n * sxx - sx * sx < _APART * _RIDGE * sx * sx or self._slopes_s[0] <= 0:
            return None
        return self._base_s, self._slopes_s[0] / _UNIT_BYTES

    @property
    def typical_bytes(self) -> tuple[int, int]:
        """Returns the recent mean of the size and of the bytes ahead; zeros without observations."""
        return round(self._mean[0] * _UNIT_BYTES), round(self._mean[1] * _UNIT_BYTES)

    def _notice(self, usual_s: float, now_s: float, *, quick: bool) -> None:
        """Restarts from the consecutive fast observations once there are enough."""
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
        # Centred at the means, where the base needs no fit.
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
        """Moves the reference point to the usual amounts: close to it, an error of the slopes has little effect."""
        factor = self._scale(usual)
        self._times.rescale(factor)
        self._quick_s *= factor
        self._run.clear()
        self._usual, self._usual_s = usual, self._expected_s(usual)


def _slopes(xx: float, xz: float, zz: float, xy: float, zy: float, *, most: float) -> tuple[float, float]:
    """Returns the non-negative least-squares slopes: no payload gets faster by being larger or later.

    The second slope is at most `most`, the usual time divided by all bytes in flight: bytes ahead cost no more than
    other bytes on the same path. Otherwise a link that was slow, with more bytes in flight, and is fast again would
    look congested.
    """
    x, z = _positive(xx, xz, zz, xy, zy)
    return (max(0.0, (xy - xz * most) / xx) if xx > 0 else 0.0, most) if z > most else (x, z)


def _positive(xx: float, xz: float, zz: float, xy: float, zy: float) -> tuple[float, float]:
    determinant = xx * zz - xz * xz
    if determinant > _COLLINEAR * xx * zz:
        x, z = (xy * zz - zy * xz) / determinant, (zy * xx - xy * xz) / determinant
        if x >= 0 and z >= 0:
            return x, z
    # One of them is 0, so the other is fitted alone.
    x, z = max(0.0, xy / xx) if xx > 0 else 0.0, max(0.0, zy / zz) if zz > 0 else 0.0
    return (x, 0.0) if x * xy >= z * zy else (0.0, z)


@dataclass(frozen=True, slots=True)
class TimingReport:
    """A report on a link's latency (ms), for payloads of `typical_bytes` with the recent bytes ahead.

    Args:
        typical_bytes: recent mean size.
        typical_ahead_bytes: recent mean of the bytes ahead.
        observations: equivalent number of fresh observations.
        total_p50_ms: median from sending to the answer.
        network_p50_ms: median without the gateway's service time.
        service_p50_ms: median of the service time that the gateway reports, including its queue.
        round_trip_ms: network time of an empty payload; None while sizes differ too little.
        bytes_per_s: throughput of larger payloads; None while sizes differ too little.
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
    """Returns the bytes of other payloads that are ahead of one.

    Args:
        size_bytes: of this payload.
        others_bytes: of the payloads in flight.
        in_turn: whether payloads are sent one after the other. If they share the link instead, each counts with at most
            the size of the new one, because a large payload delays a small one less.
    """
    return sum(others_bytes) if in_turn else sum(min(size_bytes, other) for other in others_bytes)


@dataclass(eq=False, slots=True)
class Flight:
    """One call in flight.

    Attributes:
        size_bytes: of its payload.
        ahead_bytes: of other payloads when it was sent.
        lost: the link went down since, so that the call delays no other and its time measures the outage.
    """

    size_bytes: int
    ahead_bytes: int
    lost: bool = False


class LinkTiming:
    """The latency estimates of one link.

    Args:
        in_turn: see `ahead_of`.
    """

    def __init__(self, *, in_turn: bool = False) -> None:
        self._in_turn = in_turn
        self._total, self._network, self._service = TimesBySize(), TimesBySize(), TimesBySize()
        self._probes = DecayedQuantiles()
        self._flights: set[Flight] = set()

    def sent(self, size_bytes: int) -> Flight:
        """Starts a call: its payload is in flight until `ended`."""
        flight = Flight(size_bytes, self.ahead_bytes(size_bytes))
        self._flights.add(flight)
        return flight

    def ended(self, flight: Flight) -> None:
        """Ends a call, with or without success."""
        self._flights.discard(flight)

    @contextmanager
    def carrying(self, size_bytes: int) -> Iterator[Flight]:
        """Context manager of `sent` and `ended`."""
        flight = self.sent(size_bytes)
        try:
            yield flight
        finally:
            self.ended(flight)

    def ahead_bytes(self, size_bytes: int) -> int:
        """Returns the bytes in flight that would be ahead of a payload sent now."""
        return ahead_of(size_bytes, (flight.size_bytes for flight in self._flights), in_turn=self._in_turn)

    def answered(
        self, size_bytes: int, seconds: float, now_s: float, service_s: float | None = None, ahead_bytes: int = 0
    ) -> None:
        """Adds an answered call.

        Args:
            size_bytes: of the payload that was sent.
            seconds: from sending to the answer.
            now_s: on a monotonic clock.
            service_s: service time that the gateway reports; None if it reports none.
            ahead_bytes: when it was sent.
        """
        self._total.add(size_bytes, seconds, now_s, ahead_bytes=ahead_bytes)
        if service_s is not None:
            service_s = min(max(0.0, service_s), seconds)
            self._service.add(size_bytes, service_s, now_s, ahead_bytes=ahead_bytes)
            self._network.add(size_bytes, seconds - service_s, now_s, ahead_bytes=ahead_bytes)

    def waited(self, size_bytes: int, seconds: float, now_s: float, ahead_bytes: int = 0) -> None:
        """Adds a call that was abandoned without an answer."""
        self._total.add(size_bytes, seconds, now_s, ahead_bytes=ahead_bytes, censored=True)

    def probed(self, seconds: float, now_s: float) -> None:
        """Adds the round trip of a probe, the lower bound of any call."""
        self._probes.add(seconds, now_s)

    def returned(self) -> None:
        """Resets after an outage: the link may be a different one, and calls in flight may be lost."""
        self._total.doubt(_AFTER_RETURN)
        for flight in self._flights:
            flight.lost = True
        self._flights.clear()

    def predicted_s(self, size_bytes: int, share: float, now_s: float) -> float | None:
        """Returns the quantile of the time to an answer (seconds); None without current observations.

        For a payload sent now, behind those in flight. Before the first answer, the time of a probe is used.
        """
        if self._total.weight(now_s) >= LEAST_WEIGHT:
            return self._total.quantile(size_bytes, share, self.ahead_bytes(size_bytes))
        return self._probes.quantile(share) if self._probes.weight(now_s) >= LEAST_WEIGHT else None

    def report(self, now_s: float) -> TimingReport | None:
        """Returns the report; None without current observations."""
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
