"""Predicts response times of a mixed load by simulation, first come, first served. Pure.

The p99 of a mix does not follow from the p50 and p99 of its parts, so queries are simulated one by one, with the slow
moments that were measured. The same seed draws the same arrivals and enters the slow moments at the same place for
every alternative (common random numbers: Law, Simulation Modeling and Analysis, section 11.2), so that two predictions
differ by what was changed more than by chance.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.profile.profile import HALF_LOAD, LIGHT_LOAD, Distribution, Point

Times = NDArray[np.float64]

QUERIES = 20_000
"""Number of simulated queries; 200 of them lie beyond p99."""
_WARM_UP = 0.1
_LEAST_LOAD = 0.001
_STEP = 0.9
_PRECISION = 0.01
_MAX_RATIO = 100.0
"""A profile in which another load makes a query slower or faster by more is not believed."""
_FASTEST = 0.6
"""Least time at full load over that at half load; at half or less, queues would grow without end before full load."""
_BUSIEST = 0.9
"""Largest share of the time that a light load is taken to keep a server busy, for the same reason."""


class Stream(NamedTuple):
    """Queries of one kind, as a Poisson process.

    Attributes:
        point: times of a query.
        rate_per_s: arrival rate.
    """

    point: Point
    rate_per_s: float


class Prediction(NamedTuple):
    """Response times, from the arrival of a query to its answer.

    Attributes:
        utilisation: load as a share of what servers that never rest can do; from 1 on the queue grows without bound,
            and the times are those of the simulated span.
    """

    p50_ms: float
    p99_ms: float
    mean_ms: float
    utilisation: float


def predict(streams: Sequence[Stream], *, servers: int = 1, queries: int = QUERIES, seed: int = 0) -> Prediction:
    """Predicts the response times of several streams together.

    Args:
        streams: at least one.
        servers: number of queries that run at once; points should be measured with the threads that each has.
        queries: number of simulated queries.
        seed: of arrivals and service times.
    """
    rates = np.array([stream.rate_per_s for stream in streams])
    total_per_s = float(rates.sum())
    if not streams or (rates <= 0).any():
        raise ValueError("a load has at least one stream, and each a rate above 0")
    random = np.random.default_rng(seed)
    arrivals_ms = 1000 * np.cumsum(random.exponential(1 / total_per_s, queries))
    kinds = np.searchsorted(np.cumsum(rates / total_per_s)[:-1], random.random(queries), side="right")
    found = replay([stream.point for stream in streams], arrivals_ms, kinds, servers=servers, seed=seed)
    kept = found[int(_WARM_UP * queries) :]
    p50_ms, p99_ms = np.quantile(kept, (0.5, 0.99))
    return Prediction(float(p50_ms), float(p99_ms), float(kept.mean()), utilisation(streams, servers=servers))


def utilisation(streams: Sequence[Stream], *, servers: int = 1) -> float:
    """Returns the utilisation, see `Prediction`; it is of queries at full load, because a growing queue allows no rest.

    Args:
        streams: at least one.
        servers: number of queries that run at once.
    """
    rates = [stream.rate_per_s for stream in streams]
    return _utilisation([stream.point for stream in streams], rates, servers)


def _utilisation(points: Sequence[Point], rates_per_s: Sequence[float], servers: int) -> float:
    services = _services(points, rates_per_s, load=1.0)
    busy_ms_per_s = sum(
        rate_per_s * one.queued.mean_ms * one.factors.queued
        for rate_per_s, one in zip(rates_per_s, services, strict=True)
    )
    return busy_ms_per_s / 1000 / servers


def highest(streams: Sequence[Stream], within_ms: float, *, servers: int = 1) -> float:
    """Returns the largest factor of the streams' rates that keeps p99 within a bound, to 1 %; 0 if there is none.

    Lower rates may break the bound, because rare queries find the machine asleep. A range of valid rates whose highest
    is less than a ninth above its lowest may be missed.

    Args:
        streams: at least one, with a query that takes some time.
        within_ms: the bound.
        servers: number of queries that run at once.
    """

    def keeps(factor: float) -> bool:
        found = predict([one._replace(rate_per_s=factor * one.rate_per_s) for one in streams], servers=servers)
        return found.utilisation < 1 and found.p99_ms <= within_ms

    full = 1 / utilisation(streams, servers=servers)
    low = high = full
    while not keeps(low):
        if low < _LEAST_LOAD * full:
            return 0.0
        low, high = _STEP * low, low
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def replay(points: Sequence[Point], arrivals_ms: Times, kinds: NDArray[np.intp], *, servers: int, seed: int) -> Times:
    """Returns the response time of each query of given arrivals, in milliseconds.

    Args:
        points: times of each kind of query: `rested` if a server was free; if it had to wait, `queued` (`query` if that
            is unknown). Both are scaled by `mixed_load` among several kinds, and by `load_factors`.
        arrivals_ms: (n,) ascending.
        kinds: (n,) indices of `points`.
        servers: number of queries that run at once.
        seed: of the service times.
    """
    if not len(arrivals_ms):
        return np.empty(0)
    measured = [point.slow_moments for point in points if point.slow_moments is not None]
    random = np.random.default_rng([seed, 1])
    if measured:  # all queries follow those of the finest resolution, because slow moments are the machine's
        shares = max(measured, key=lambda moments: moments.queries_per_ms).shares(arrivals_ms, random)
    else:
        shares = random.random(len(arrivals_ms))
    waited, free = np.empty_like(arrivals_ms), np.empty_like(arrivals_ms)
    counts = np.bincount(kinds, minlength=len(points)).tolist()
    span_s = max(float(arrivals_ms[-1] - arrivals_ms[0]) / 1000, 1e-9)
    load = _utilisation(points, counts, servers) / span_s if len(kinds) > 1 else 0.0
    for kind, one in enumerate(_services(points, counts, load)):
        of_kind = kinds == kind
        free[of_kind] = one.rested.at(shares[of_kind]) * one.factors.rested
        waited[of_kind] = one.queued.at(shares[of_kind]) * one.factors.queued
    return response_times(arrivals_ms, waited, free, servers)


class Factors(NamedTuple):
    """Times of a query over those that were measured at half load without other models.

    Attributes:
        rested: if the query finds a server free.
        queued: if it has to wait.
    """

    rested: float
    queued: float


class _Service(NamedTuple):
    """Service times of one kind of query in a mix: those at half load, and their factors."""

    rested: Distribution
    queued: Distribution
    factors: Factors


def _services(points: Sequence[Point], rates: Sequence[float], load: float) -> list[_Service]:
    """The service times of each point under a load, in the mix that the rates define."""
    busy = [rate * point.query.mean_ms for rate, point in zip(rates, points, strict=True)]
    found = []
    for own, point in enumerate(points):
        at_load, in_mix = load_factors(load, point), _mix_factors(points, own, busy)
        factors = Factors(at_load.rested * in_mix.rested, at_load.queued * in_mix.queued)
        found.append(_Service(point.rested, _queued(point), factors))
    return found


def _queued(point: Point) -> Distribution:
    return point.queued or point.query


def _mix_factors(points: Sequence[Point], own: int, busy: Sequence[float]) -> Factors:
    """The factors of a point among other models, in proportion to how far the mix resembles the measured one."""
    point = points[own]
    mixed = point.mixed_load
    if mixed is None:
        return Factors(1.0, 1.0)
    places = [at for at, one in enumerate(points) if at != own and one.key.variant == mixed.variant]
    if not places or not busy[places[0]]:
        return Factors(1.0, 1.0)
    (other, *_) = places
    others_ms = (1 - mixed.own_share) * points[other].query.mean_ms
    both_ms = mixed.own_share * point.query.mean_ms + others_ms
    measured = others_ms / both_ms if others_ms > 0 else 1.0  # share of the busy time that was the other model's
    similarity = min(1.0, busy[other] / sum(busy) / measured)
    ratios = (_ratio(mixed.rested_ms, point.rested.usual_ms), _ratio(mixed.queued_ms, _queued(point).usual_ms))
    return Factors(*(1 + similarity * (ratio - 1) for ratio in ratios))


def response_times(arrivals: Times, waited: Times, free: Times, servers: int) -> Times:
    """Returns the response time of each query, first come, first served.

    Args:
        arrivals: (n,) ascending.
        waited: (n,) service time if the query had to wait.
        free: (n,) service time if a server was free.
        servers: number of servers.
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


def load_factors(load: float, point: Point) -> Factors:
    """Returns how much longer a query takes under a load than at half load, which the point's times are of.

    A profile knows three loads: a light one, half load, and back to back. Between them the work that a server does in
    a second is taken to grow linearly with the load; below the lightest one it is taken as constant.

    Args:
        load: as a share of what servers that never rest can do; from 1 on queries are back to back.
        point: without `light_load`, less than half load counts as half load.
    """
    queued = _queued(point)
    full = min(max(_ratio(point.query.usual_ms, queued.usual_ms), _FASTEST), 1.0)
    rested, waited = 1.0, 1.0
    if point.light_load is not None:
        most = _BUSIEST * full / LIGHT_LOAD
        rested = min(_ratio(point.light_load.rested_ms, point.rested.usual_ms), most)
        waited = min(_ratio(point.light_load.queued_ms, queued.usual_ms, unknown=rested), most)
    loads = (LIGHT_LOAD, HALF_LOAD, 1.0)
    return Factors(*(1 / float(np.interp(load, loads, (1 / light, 1.0, 1 / full))) for light in (rested, waited)))


def _ratio(taken_ms: float | None, usual_ms: float, unknown: float = 1.0) -> float:
    """Time over the usual time, bounded; `unknown` if too few queries were measured."""
    if taken_ms is None or usual_ms <= 0:
        return unknown
    return min(max(taken_ms / usual_ms, 1 / _MAX_RATIO), _MAX_RATIO)
