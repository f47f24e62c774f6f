"""Predicts response times of a mixed load by simulation, first come, first served. Pure.

The p99 of a mix does not follow from the p50 and p99 of its parts, so queries are simulated one by one. The same seed
draws the same arrivals and quantiles for every alternative (common random numbers: Law, Simulation Modeling and
Analysis, section 11.2), so that two predictions differ by what was changed more than by chance.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.profile.profile import Distribution, Point

Times = NDArray[np.float64]

QUERIES = 20_000
"""Number of simulated queries; 200 of them lie beyond p99."""
_WARM_UP = 0.1
_LEAST_LOAD = 0.001
_STEP = 0.9
_PRECISION = 0.01


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
    """Returns the utilisation, see `Prediction`; it is of queries that wait, because a growing queue allows no rest.

    Args:
        streams: at least one.
        servers: number of queries that run at once.
    """
    return sum(stream.rate_per_s * _queued(stream.point).mean_ms for stream in streams) / 1000 / servers


def highest(streams: Sequence[Stream], within_ms: float, *, servers: int = 1) -> float:
    """Returns the largest factor of the streams' rates that keeps p99 within a bound, to 1 %; 0 if there is none.

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
            is unknown).
        arrivals_ms: (n,) ascending.
        kinds: (n,) indices of `points`.
        servers: number of queries that run at once.
        seed: of the service times.
    """
    shares = np.random.default_rng([seed, 1]).random(len(arrivals_ms))
    waited, free = np.empty_like(arrivals_ms), np.empty_like(arrivals_ms)
    for kind, point in enumerate(points):
        of_kind = kinds == kind
        free[of_kind] = point.rested.at(shares[of_kind])
        waited[of_kind] = _queued(point).at(shares[of_kind])
    return response_times(arrivals_ms, waited, free, servers)


def _queued(point: Point) -> Distribution:
    return point.queued or point.query


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
