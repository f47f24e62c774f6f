"""What a mixed load will take, of the profile's whole distributions: first come, first served, simulated. Pure.

A p99 follows from no p50 and p99 of what is mixed, so that queries are simulated one by one, in the order in which they
were slow when they were measured (`course`). The same seed draws the
same arrivals and the same luck for every alternative (common random numbers: Law, Simulation Modeling and Analysis,
section 11.2): two predictions then differ by what was changed, not by chance.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.profile.distribution import Distribution
from firstline_core.profile.profile import Point

Times = NDArray[np.float64]

QUERIES = 20_000
"""Of which p99 leaves 200 beyond it."""
_WARM_UP = 0.1
_LEAST_LOAD = 0.001
_PRECISION = 0.01


class Stream(NamedTuple):
    """Queries of one kind, as a Poisson process.

    Attributes:
        point: what one takes.
        rate_per_s: how many come.
    """

    point: Point
    rate_per_s: float


class Prediction(NamedTuple):
    """From when a query comes to its answer.

    Attributes:
        utilisation: what comes, as a share of what servers can do that never rest; from 1 on the queue grows without
            end, and the times are of the simulated span.
    """

    p50_ms: float
    p99_ms: float
    mean_ms: float
    utilisation: float


def predict(streams: Sequence[Stream], *, servers: int = 1, queries: int = QUERIES, seed: int = 0) -> Prediction:
    """What the streams together will take.

    Args:
        streams: at least one.
        servers: how many queries run at once; points should have been measured with as many threads as each has.
        queries: to simulate.
        seed: of arrivals and luck.
    """
    rates = np.array([stream.rate_per_s for stream in streams])
    total_per_s = float(rates.sum())
    if not streams or (rates <= 0).any():
        raise ValueError("a load has at least one stream, and each a rate above 0")
    random = np.random.default_rng(seed)
    arrivals_ms = 1000 * np.cumsum(random.exponential(1 / total_per_s, queries))
    kinds = np.searchsorted(np.cumsum(rates / total_per_s)[:-1], random.random(queries), side="right")
    found = replayed([stream.point for stream in streams], arrivals_ms, kinds, servers=servers, seed=seed)
    kept = found[int(_WARM_UP * queries) :]
    p50_ms, p99_ms = np.quantile(kept, (0.5, 0.99))
    return Prediction(float(p50_ms), float(p99_ms), float(kept.mean()), utilisation(streams, servers=servers))


def utilisation(streams: Sequence[Stream], *, servers: int = 1) -> float:
    """See `Prediction`. Where a queue grows every query has to wait, so that it is served as `replayed` has those.

    Args:
        streams: at least one.
        servers: how many queries run at once.
    """
    total_per_s = sum(stream.rate_per_s for stream in streams)
    busy_ms_per_s = 0.0
    for stream in streams:
        own, taken = stream.rate_per_s / total_per_s, _waited(stream.point, len(streams) > 1)
        mean_ms = taken.alone.mean_ms * (own * taken.after_own + (1 - own) * taken.after_other)
        busy_ms_per_s += stream.rate_per_s * mean_ms
    return busy_ms_per_s / 1000 / servers


def highest(streams: Sequence[Stream], within_ms: float, *, servers: int = 1) -> float:
    """By how much the streams' rates may be multiplied before p99 exceeds a bound, to 1 %; 0 where any rate does.

    Args:
        streams: at least one, and a query of one of them takes some time.
        within_ms: the bound.
        servers: how many queries run at once.
    """

    def predicted(factor: float) -> Prediction:
        return predict([one._replace(rate_per_s=factor * one.rate_per_s) for one in streams], servers=servers)

    def keeps(factor: float) -> bool:
        found = predicted(factor)
        return found.utilisation < 1 and found.p99_ms <= within_ms

    full = 1 / utilisation(streams, servers=servers)
    low, high = _LEAST_LOAD * full, full
    if not keeps(low):
        return 0.0
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def replayed(points: Sequence[Point], arrivals_ms: Times, kinds: NDArray[np.intp], *, servers: int, seed: int) -> Times:
    """Milliseconds of each query of given arrivals.

    Args:
        points: what a query of each kind takes: as `rested` where a server was free. Where it had to wait, as `queued`
            (`query` where that is not known). Among several kinds, as much longer or shorter as `beside` says.
        arrivals_ms: (n,) ascending.
        kinds: (n,) places in `points`.
        servers: how many queries run at once.
        seed: of luck.
    """
    shares = _luck(points, arrivals_ms, np.random.default_rng([seed, 1]))
    # Of several servers each has a query before of its own, which is of another kind as often as the one that came.
    turned = np.append(False, kinds[1:] != kinds[:-1])
    waited, free = np.empty_like(arrivals_ms), np.empty_like(arrivals_ms)
    for kind, point in enumerate(points):
        of_kind = kinds == kind
        for times, taken in ((free, _free(point, len(points) > 1)), (waited, _waited(point, len(points) > 1))):
            factors = np.where(turned[of_kind], taken.after_other, taken.after_own)
            times[of_kind] = taken.alone.at(shares[of_kind]) * factors
    return sojourn(arrivals_ms, waited, free, servers)


def _luck(points: Sequence[Point], arrivals_ms: Times, random: np.random.Generator) -> Times:
    """Of each query, 0 to 1. All go along one course: a slow moment of the machine is slow for every model."""
    courses = [point.course for point in points if point.course is not None]
    if not courses:
        return random.random(len(arrivals_ms))
    finest = max(courses, key=lambda course: len(course.ranks))
    return finest.shares(arrivals_ms, random)


class _Taken(NamedTuple):
    """What a query takes, and how much more or less of it among other models' queries: after its own, after theirs."""

    alone: Distribution
    after_own: float = 1.0
    after_other: float = 1.0


def _free(point: Point, among_others: bool) -> _Taken:
    """Of a query that finds a server free."""
    beside = point.beside if among_others else None
    if beside is None:
        return _Taken(point.rested)
    return _among(point.rested, beside.rested_ms, beside.rested_turned_ms)


def _waited(point: Point, among_others: bool) -> _Taken:
    """Of a query that has to wait."""
    alone, beside = point.queued or point.query, point.beside if among_others else None
    if beside is None:
        return _Taken(alone)
    return _among(alone, beside.queued_ms, beside.queued_turned_ms)


def _among(alone: Distribution, own_ms: float | None, other_ms: float | None) -> _Taken:
    usual_ms = alone.usual_ms
    own = own_ms / usual_ms if own_ms is not None and usual_ms > 0 else 1.0
    return _Taken(alone, own, other_ms / usual_ms if other_ms is not None and usual_ms > 0 else own)


def sojourn(arrivals: Times, waited: Times, free: Times, servers: int) -> Times:
    """How long each query is there, first come, first served.

    Args:
        arrivals: (n,) ascending.
        waited: (n,) that it is served for where it had to wait.
        free: (n,) likewise where a server was free when it came.
        servers: that serve one query each.
    """
    free_at = [0.0] * servers
    found = np.empty_like(arrivals)
    for at, (came, if_waited, if_free) in enumerate(
        zip(arrivals.tolist(), waited.tolist(), free.tolist(), strict=True)
    ):
        next_free = free_at[0]
        end = came + if_free if next_free <= came else next_free + if_waited
        heapq.heapreplace(free_at, end)
        found[at] = end - came
    return found
