"""How well is a link's time predicted, how soon is a change noticed, and what does it cost?

    python bench/timing.py

Calls over simulated links (20, 50 and 200 ms, 1 to 20 Mbit/s, some with stalls) with payloads of about one size, of
three, or of many. The shipped estimate, `TimesBySize`, is held against two others made of the same quantiles: one
estimate for each power of two of the size, and quantiles of the ratio to the fitted plane.

Then calls that do not wait for each other, 60 a second and 150 in bursts: by a link that carries 100, each after the
other or all at once, by a gateway that answers 100, and where there is room for all. Here the shipped estimate is held
against one that does not know what is ahead, and one that counts what is ahead as the payload's own.

Covered is the share of calls that the predicted 95 % quantile was enough for; pinball is the quantile's own loss, in
milliseconds: the smaller, the better. Prints every figure, and writes them to bench/results/timing.json. Half a
minute on one core.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from crowds import Apart, InTurn, Medium, Shared
from figures import Figure, report

from firstline_core.routing.quantiles import DecayedQuantiles
from firstline_core.routing.timing import TimesBySize, ahead_of

_SHARE = 0.95
_CALLS = 3_000
_GAP_S = 0.2
_ASKED_BYTES = 30_000
_SEED = 20261121
Link = tuple[float, float, float]  # round trip in seconds, Mbit/s, share of calls that stall
_LINKS: dict[str, Link] = {
    "20 ms, 20 Mbit/s": (0.02, 20, 0.0),
    "50 ms, 5 Mbit/s, 1% stalls": (0.05, 5, 0.01),
    "200 ms, 1 Mbit/s, 3% stalls": (0.2, 1, 0.03),
}
_SIZES: dict[str, Callable[[random.Random], float]] = {
    "one size": lambda rng: rng.lognormvariate(math.log(30e3), 0.3),
    "three sizes": lambda rng: rng.choice((3e3, 30e3, 300e3)) * rng.lognormvariate(0, 0.2),
    "many sizes": lambda rng: rng.lognormvariate(math.log(30e3), 1.3),
}


class Estimate(Protocol):
    def add(self, size_bytes: int, seconds: float, now_s: float, *, ahead_bytes: int = 0) -> None: ...
    def quantile(self, size_bytes: int, share: float, ahead_bytes: int = 0) -> float | None: ...


class Buckets:
    """One estimate for each power of two; a size without one borrows from its neighbours, the safer way."""

    def __init__(self) -> None:
        self._found: dict[int, DecayedQuantiles] = {}

    def add(self, size_bytes: int, seconds: float, now_s: float, *, ahead_bytes: int = 0) -> None:
        self._found.setdefault(size_bytes.bit_length(), DecayedQuantiles()).add(seconds, now_s)

    def quantile(self, size_bytes: int, share: float, ahead_bytes: int = 0) -> float | None:
        bucket = size_bytes.bit_length()
        if bucket in self._found:
            return self._found[bucket].quantile(share)
        known = [(other, found.quantile(share) or 0.0) for other, found in self._found.items()]
        bounds = [seconds * max(1.0, 2.0 ** (bucket - other)) for other, seconds in known]
        return min(bounds, default=None)


class Ratios(TimesBySize):
    """The same plane, and quantiles of how far calls were from it."""

    def _scale(self, at: tuple[float, float]) -> float:
        return self._expected_s(at)

    def _move_to(self, usual: tuple[float, float]) -> None:
        self._usual = usual


class Alone:
    """Each call as if it had the link for itself: what is ahead is not known."""

    def __init__(self) -> None:
        self._times = TimesBySize()

    def add(self, size_bytes: int, seconds: float, now_s: float, *, ahead_bytes: int = 0) -> None:
        self._times.add(size_bytes, seconds, now_s)

    def quantile(self, size_bytes: int, share: float, ahead_bytes: int = 0) -> float | None:
        return self._times.quantile(size_bytes, share)


class Together(Alone):
    """One slope: what is ahead counts as the payload's own."""

    def add(self, size_bytes: int, seconds: float, now_s: float, *, ahead_bytes: int = 0) -> None:
        self._times.add(size_bytes + ahead_bytes, seconds, now_s)

    def quantile(self, size_bytes: int, share: float, ahead_bytes: int = 0) -> float | None:
        return self._times.quantile(size_bytes + ahead_bytes, share)


_ESTIMATES: dict[str, Callable[[], Estimate]] = {
    "shipped": TimesBySize,
    "powers of two": Buckets,
    "ratios": Ratios,
}
_CROWDED: dict[str, Callable[[], Estimate]] = {
    "shipped": TimesBySize,
    "what is ahead not known": Alone,
    "what is ahead as its own": Together,
}
_PER_S, _IN_BURSTS_PER_S, _BURST_S, _EVERY_S = 60.0, 150.0, 6.0, 20.0
_CARRIED_PER_S = 100.0
_WARM_UP_CALLS = 300
_RUNS = 8
_CROWDED_SIZES = {name: _SIZES[name] for name in ("one size", "many sizes")}


def call_s(rng: random.Random, link: Link, size_bytes: int) -> float:
    round_trip_s, mbit, stalls = link
    transfer_s = size_bytes * 8e-6 / (mbit * rng.lognormvariate(0, 0.2))
    stall_s = rng.choice((0.2, 0.4, 1.0)) if rng.random() < stalls else 0.0
    return round_trip_s * rng.lognormvariate(0, 0.2) + transfer_s + 0.02 * rng.lognormvariate(0, 0.3) + stall_s


_MEDIA: dict[str, Callable[[random.Random, float], Medium]] = {
    "a link in turn": lambda _, mean_bytes: InTurn(lambda size: size / (mean_bytes * _CARRIED_PER_S), in_turn=True),
    "a link that is shared": lambda _, mean_bytes: Shared(mean_bytes * _CARRIED_PER_S),
    "a busy gateway": lambda rng, _: InTurn(lambda _: rng.lognormvariate(0, 0.2) / _CARRIED_PER_S, in_turn=False),
    "room for all": lambda rng, _: Apart(lambda size: size * 8e-6 / (5.0 * rng.lognormvariate(0, 0.2))),
}


def crowded(
    medium: Callable[[random.Random, float], Medium],
    sizes: Callable[[random.Random], float],
    make: Callable[[], Estimate],
) -> tuple[float, float]:
    """Share covered, and pinball loss in milliseconds, of calls that do not wait for each other: means over runs."""
    told = [_crowded_once(medium, sizes, make(), _SEED + run) for run in range(_RUNS)]
    return statistics.fmean(covered for covered, _ in told), statistics.fmean(loss_ms for _, loss_ms in told)


class _Call(NamedTuple):
    at_s: float
    size_bytes: int
    ahead_bytes: int
    predicted_s: float | None


def _crowded_once(
    medium: Callable[[random.Random, float], Medium],
    sizes: Callable[[random.Random], float],
    found: Estimate,
    seed: int,
) -> tuple[float, float]:
    mean_bytes = statistics.fmean(sizes(random.Random(other)) for other in range(2_000))
    rng, over = random.Random(seed), medium(random.Random(seed), mean_bytes)
    calls, returning, at_s = dict[int, _Call](), list[tuple[float, int]](), 0.0
    covered, loss_s = [], []

    def to(until_s: float) -> None:
        for ended_s, number in over.ended(until_s):
            heapq.heappush(returning, (ended_s + 0.06 * rng.lognormvariate(0, 0.15), number))
        while returning and returning[0][0] <= until_s:
            done_s, number = heapq.heappop(returning)
            call = calls.pop(number)
            seconds = done_s - call.at_s
            found.add(call.size_bytes, seconds, done_s, ahead_bytes=call.ahead_bytes)
            if call.predicted_s is not None and number >= _WARM_UP_CALLS:
                covered.append(seconds <= call.predicted_s)
                loss_s.append(pinball(seconds, call.predicted_s))

    for number in range(2 * _CALLS):
        at_s += rng.expovariate(_IN_BURSTS_PER_S if at_s % _EVERY_S > _EVERY_S - _BURST_S else _PER_S)
        size_bytes = int(sizes(rng))
        to(at_s)
        ahead_bytes = ahead_of(size_bytes, (call.size_bytes for call in calls.values()), in_turn=over.in_turn)
        calls[number] = _Call(at_s, size_bytes, ahead_bytes, found.quantile(size_bytes, _SHARE, ahead_bytes))
        over.send(at_s, size_bytes, number)
    to(math.inf)
    return statistics.fmean(covered), statistics.fmean(loss_s) * 1000


def pinball(seconds: float, predicted_s: float) -> float:
    return max(_SHARE * (seconds - predicted_s), (1 - _SHARE) * (predicted_s - seconds))


def steady(link: Link, sizes: Callable[[random.Random], float], make: Callable[[], Estimate]) -> tuple[float, float]:
    """Share covered, and pinball loss in milliseconds."""
    rng, found = random.Random(_SEED), make()
    covered, loss_s = [], []
    for count in range(_CALLS):
        size_bytes = int(sizes(rng))
        seconds = call_s(rng, link, size_bytes)
        predicted_s = found.quantile(size_bytes, _SHARE)
        if predicted_s is not None:
            covered.append(seconds <= predicted_s)
            loss_s.append(pinball(seconds, predicted_s))
        found.add(size_bytes, seconds, count * _GAP_S)
    return statistics.fmean(covered), statistics.fmean(loss_s) * 1000


def change(before: Link, after: Link, make: Callable[[], Estimate]) -> tuple[float, float]:
    """Calls after a change until the prediction stays within 40 % of the truth; its largest excess over it."""
    rng, found = random.Random(_SEED), make()
    sizes, asked_bytes = _SIZES["many sizes"], _ASKED_BYTES
    truth_s = sorted(call_s(rng, after, asked_bytes) for _ in range(4_000))[int(4_000 * _SHARE)]
    ratios = []
    for count in range(1_000):
        link = before if count < 300 else after
        size_bytes = int(sizes(rng))
        found.add(size_bytes, call_s(rng, link, size_bytes), count * _GAP_S)
        if count >= 300:
            ratios.append((found.quantile(asked_bytes, _SHARE) or math.inf) / truth_s)
    off = [count for count, ratio in enumerate(ratios) if not 1 / 1.4 <= ratio <= 1.4]
    return float(off[-1] + 2 if off else 1), max(ratios)


def cost_us() -> tuple[float, float, float]:
    """Median microseconds of an update, of a lookup after one, and of a lookup again."""
    rng, found = random.Random(_SEED), TimesBySize()
    calls = [(int(rng.lognormvariate(10, 1)), rng.lognormvariate(-3, 0.3)) for _ in range(20_000)]
    spent_ns: tuple[list[int], list[int], list[int]] = ([], [], [])
    for count, (size_bytes, seconds) in enumerate(calls):
        for spent, work in zip(
            spent_ns,
            (
                lambda s=size_bytes, t=seconds, n=count: found.add(s, t, n * _GAP_S),
                lambda: found.quantile(_ASKED_BYTES, _SHARE),
                lambda: found.quantile(_ASKED_BYTES, _SHARE),
            ),
            strict=True,
        ):
            started_ns = time.perf_counter_ns()
            work()
            spent.append(time.perf_counter_ns() - started_ns)
    update, fresh, again = (statistics.median(spent) / 1000 for spent in spent_ns)
    return update, fresh, again


def figures() -> Iterator[Figure]:
    for name, sizes in _SIZES.items():
        for link_name, link in _LINKS.items():
            for estimate, make in _ESTIMATES.items():
                covered, loss_ms = steady(link, sizes, make)
                what = f"{link_name}, {name}, {estimate}"
                aim = "0.92 to 0.98" if estimate == "shipped" else None
                yield Figure(
                    f"{what}: covered", round(covered, 4), "of calls", aim, 0.92 <= covered <= 0.98 if aim else None
                )
                yield Figure(f"{what}: pinball", round(loss_ms, 3), "ms")
    for name, sizes in _CROWDED_SIZES.items():
        for medium_name, medium in _MEDIA.items():
            told = {estimate: crowded(medium, sizes, make) for estimate, make in _CROWDED.items()}
            most = min(loss_ms for estimate, (_, loss_ms) in told.items() if estimate != "shipped")
            for estimate, (covered, loss_ms) in told.items():
                what = f"crowded, {medium_name}, {name}, {estimate}"
                yield Figure(f"{what}: covered", round(covered, 4), "of calls")
                aim = "<= 1.2 times the other two's better" if estimate == "shipped" else None
                yield Figure(f"{what}: pinball", round(loss_ms, 3), "ms", aim, loss_ms <= 1.2 * most if aim else None)
    fast, slow = _LINKS["20 ms, 20 Mbit/s"], (0.2, 2.0, 0.0)
    for name, before, after, limit in (("slower", fast, slow, 5), ("faster", slow, fast, 20)):
        for estimate, make in _ESTIMATES.items():
            calls, excess = change(before, after, make)
            aim = f"<= {limit}" if estimate == "shipped" else None
            what = f"a link ten times {name}, {estimate}"
            yield Figure(f"{what}: learnt after", calls, "calls", aim, calls <= limit if aim else None)
            yield Figure(f"{what}: highest prediction", round(excess, 2), "times the truth")
    for what, microseconds in zip(("update", "lookup after an update", "lookup"), cost_us(), strict=True):
        yield Figure(f"{what}, median", round(microseconds, 2), "us", "< 5", microseconds < 5)


if __name__ == "__main__":
    sys.exit(report("timing", list(figures())))
