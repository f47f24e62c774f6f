"""How long a link takes, by the size of what is sent: streaming estimates that forget. Pure: times are handed in.

A transfer takes a + b * bytes, give or take. The line (a, b) is fitted to recent observations by least squares of the
relative errors; each observation is then put down as the time that a payload of the usual size would have taken, and
the quantiles are theirs. So all sizes share what is known, and the line only says how sizes compare: when a link slows
down, the quantiles follow at once and not twice. A high quantile comes down slowly again, over a hundred observations:
so a dozen quick ones in a row, which no chance explains, end the memory of what was before.

Measured against one estimate for each power of two, and against quantiles of the ratio to the line: bench/timing.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.routing.quantiles import DecayedQuantiles

_UNIT_BYTES = 32 * 1024  # of sizes in here, so that numbers are of one order
# Sizes that differ by less than a tenth of their mean say little about the slope: it is then drawn to 0 (ridge).
_RIDGE = 0.01
_APART = 6.0  # with so much more spread than the ridge's, it takes at most a seventh of the slope
LEAST_WEIGHT = 0.5
"""Evidence that is worth less than this many fresh observations is none: what it spoke of is tried anew."""
_LINE_HALF_LIFE_COUNT = 64.0
_CLIP = 3.0  # times what was expected: a stall must not tilt the line
_LEAST_S = 1e-5
_AFTER_RETURN = 4.0
_KEEP = 2.0 ** (-1 / _LINE_HALF_LIFE_COUNT)
# So many in a row, each quicker than this share of the median, are no chance: things have changed.
_RUN = 12
_QUICK = 0.8


class TimesBySize:
    """Durations of one kind, by payload size. A few hundred numbers, however long it runs."""

    __slots__ = ("_base_s", "_moments", "_quick_s", "_run", "_since", "_slope_s", "_times", "_usual")

    def __init__(self) -> None:
        self._times = DecayedQuantiles()
        self._run: list[tuple[float, float]] = []  # quick ones in a row, with their times
        self._quick_s, self._since = 0.0, 0  # what was quick, so many observations ago
        # Sums of weight * (1, x, x * x, y, x * y), with x in `_UNIT_BYTES` and y in seconds.
        self._moments = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._base_s, self._slope_s = 1.0, 0.0
        self._usual = 0.0  # the size to which the quantiles are scaled

    def add(self, size_bytes: int, seconds: float, now_s: float, *, censored: bool = False) -> None:
        """Adds an observation; censored where it was waited for so long in vain."""
        x = size_bytes / _UNIT_BYTES
        expected_s = self._expected_s(x) if self._moments[0] else max(_LEAST_S, seconds)
        if not censored or seconds >= expected_s:
            self._fit(x, min(seconds, _CLIP * expected_s), expected_s)
        usual_s = seconds / self._scale(x)
        self._times.add(usual_s, now_s, censored=censored)
        self._notice(usual_s, now_s, quick=not censored and usual_s < self._quick_s)

    def quantile(self, size_bytes: int, share: float) -> float | None:
        """Seconds that this share of payloads of this size does not exceed; None where nothing was seen."""
        usual_s = self._times.quantile(share)
        return None if usual_s is None else usual_s * self._scale(size_bytes / _UNIT_BYTES)

    def weight(self, now_s: float) -> float:
        """How many fresh observations all that is remembered is worth."""
        return self._times.weight(now_s)

    def doubt(self, worth: float) -> None:
        """See `DecayedQuantiles.doubt`."""
        self._times.doubt(worth)

    @property
    def line(self) -> tuple[float, float] | None:
        """Seconds that any payload takes, and those of each byte; None while sizes differ too little to tell."""
        n, sx, sxx = self._moments[:3]
        if n * sxx - sx * sx < _APART * _RIDGE * sx * sx or self._slope_s <= 0:
            return None
        return self._base_s, self._slope_s / _UNIT_BYTES

    @property
    def typical_bytes(self) -> int:
        """The mean size of late, 0 where nothing was seen."""
        weight, x = self._moments[:2]
        return round(x / weight * _UNIT_BYTES) if weight else 0

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

    def _expected_s(self, x: float) -> float:
        return max(_LEAST_S, self._base_s + self._slope_s * x)

    def _scale(self, x: float) -> float:
        return self._expected_s(x) / self._expected_s(self._usual)

    def _fit(self, x: float, y: float, expected_s: float) -> None:
        weight = 1 / expected_s**2
        n, sx, sxx, sy, sxy = self._moments
        n, sx, sxx = _KEEP * n + weight, _KEEP * sx + weight * x, _KEEP * sxx + weight * x * x
        sy, sxy = _KEEP * sy + weight * y, _KEEP * sxy + weight * x * y
        self._moments = (n, sx, sxx, sy, sxy)
        spread = n * sxx - sx * sx + _RIDGE * sx * sx
        slope = (n * sxy - sx * sy) / spread if spread > 0 else 0.0
        base = (sy - slope * sx) / n
        if slope < 0:  # larger ones were quicker, by chance
            slope, base = 0.0, sy / n
        elif base < 0:
            slope, base = sxy / sxx, 0.0
        self._base_s, self._slope_s = base, slope
        if not self._usual / 2 <= sx / n <= self._usual * 2:
            self._move_to(sx / n)

    def _move_to(self, usual: float) -> None:
        """Other sizes are usual now: close to them, an error of the slope makes no difference."""
        factor = self._expected_s(usual) / self._expected_s(self._usual)
        self._times.rescale(factor)
        self._quick_s *= factor
        self._run.clear()
        self._usual = usual


@dataclass(frozen=True, slots=True)
class TimingReport:
    """How long a link takes, for people, in milliseconds; for payloads of `typical_bytes`.

    Args:
        typical_bytes: mean size of late.
        observations: how many fresh ones the evidence is worth.
        total_p50_ms: from sending to the answer.
        network_p50_ms: of that, what the gateway did not account for: the way there and back.
        service_p50_ms: what the gateway says that it took, its queue included.
        round_trip_ms: of the network's, what a payload of no size would take; None while sizes differ too little.
        bytes_per_s: how fast the rest went; None likewise.
    """

    typical_bytes: int
    observations: float
    total_p50_ms: float
    total_p95_ms: float
    network_p50_ms: float | None
    network_p95_ms: float | None
    service_p50_ms: float | None
    service_p95_ms: float | None
    round_trip_ms: float | None = None
    bytes_per_s: float | None = None


class LinkTiming:
    """What is known of one link's times."""

    def __init__(self) -> None:
        self._total, self._network, self._service = TimesBySize(), TimesBySize(), TimesBySize()
        self._probes = DecayedQuantiles()

    def answered(self, size_bytes: int, seconds: float, now_s: float, service_s: float | None = None) -> None:
        """A call was answered.

        Args:
            size_bytes: of the payload that was sent.
            seconds: from sending to the answer.
            now_s: on a monotonic clock.
            service_s: of that, what the gateway says that it took; None where it does not say.
        """
        self._total.add(size_bytes, seconds, now_s)
        if service_s is not None:
            service_s = min(max(0.0, service_s), seconds)
            self._service.add(size_bytes, service_s, now_s)
            self._network.add(size_bytes, seconds - service_s, now_s)

    def waited(self, size_bytes: int, seconds: float, now_s: float) -> None:
        """A call was given up after so long, unanswered."""
        self._total.add(size_bytes, seconds, now_s, censored=True)

    def probed(self, seconds: float, now_s: float) -> None:
        """A probe came back: nothing that was sent can be answered sooner."""
        self._probes.add(seconds, now_s)

    def returned(self) -> None:
        """The link was down, and works again. It need not be the one that it was."""
        self._total.doubt(_AFTER_RETURN)

    def predicted_s(self, size_bytes: int, share: float, now_s: float) -> float | None:
        """Seconds within which this share of such payloads is answered; None where nothing is known, or not any more.

        Until a payload was answered, a probe's time stands in.
        """
        if self._total.weight(now_s) >= LEAST_WEIGHT:
            return self._total.quantile(size_bytes, share)
        return self._probes.quantile(share) if self._probes.weight(now_s) >= LEAST_WEIGHT else None

    def report(self, now_s: float) -> TimingReport | None:
        """None where nothing is known, or not any more."""
        observations = self._total.weight(now_s)
        if observations < LEAST_WEIGHT:
            return None
        size_bytes = self._total.typical_bytes

        def ms(times: TimesBySize, share: float) -> float | None:
            seconds = times.quantile(size_bytes, share)
            return None if seconds is None else round(seconds * 1000, 3)

        base_s, byte_s = self._network.line or (None, None)
        return TimingReport(
            size_bytes,
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
