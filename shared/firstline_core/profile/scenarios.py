"""Scenarios after MLPerf's, over something that answers queries, each in the seconds that it is given."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from firstline_core.profile.distribution import distribution
from firstline_core.profile.profile import HALF_LOAD, Server

Query = Callable[[], None]

_MOST = 20_000
_LOADS = (0.9, 0.75, 0.6, 0.45, 0.3, 0.15)
"""Of the Server scenario, as shares of what back to back queries make busy: the highest that keeps the bound."""
_BOUND = 5.0
"""The Server scenario's bound for p99, in medians of a query: MLPerf states one for each model, which is not known."""
_STEADY_QUERIES = 5
_STEADY = 0.1


def single_stream(query: Query, seconds: float, *, least: int = 5, between: Query = lambda: None) -> None:
    """One query after the other, as long as there is time, and some in any case; `between` is called beside them."""
    until_s = time.perf_counter() + seconds
    done = 0
    while done < least or (done < _MOST and time.perf_counter() < until_s):
        query()
        between()
        done += 1


class Loaded(NamedTuple):
    """Queries under load, in their order.

    Attributes:
        seconds: of each; from when it was due where it found the server free, else from the end of the one before.
        waited: which had to wait.
        kinds: which of those that were asked for; of several models, say.
        span_s: in which all came.
    """

    seconds: list[float]
    waited: list[bool]
    kinds: list[int]
    span_s: float

    def of(self, *, waited: bool, turned: bool | None = None) -> list[float]:
        """Seconds of queries of the first kind.

        Args:
            waited: those that had to wait, which take longer than back to back, for one query does not warm what a
                rest cooled; or those that found the server free.
            turned: those right after a query of another kind, or after one of their own; None does not ask.
        """
        return [
            took
            for took, had_to, kind, before in zip(
                self.seconds, self.waited, self.kinds, [0, *self.kinds[:-1]], strict=True
            )
            if kind == 0 and had_to == waited and turned in (None, before != 0)
        ]


def loaded(
    queries: Sequence[Query],
    query_s: float,
    seconds: float,
    *,
    load: float = HALF_LOAD,
    shares: Sequence[float] | None = None,
    least: int = 5,
) -> Loaded:
    """Queries as a Poisson process.

    Args:
        queries: one kind or several.
        query_s: that one takes back to back, mean over queries as they come.
        seconds: to measure for.
        load: how many come, as a share of what keeps a server busy that answers back to back.
        shares: of each kind; None for as many queries of each.
        least: queries that find the server free, in any case.
    """
    rate_per_s = load / query_s
    took_s: list[float] = []
    waited: list[bool] = []
    kinds: list[int] = []
    began_s = ended_s = time.perf_counter()
    due_s, until_s, rested = ended_s + random.expovariate(rate_per_s), ended_s + seconds, 0
    while ended_s < until_s or rested < least:
        if ended_s >= until_s:  # whatever has gathered by now: a rest comes first
            due_s = ended_s + random.expovariate(rate_per_s)
        (kind,) = random.choices(range(len(queries)), shares)  # noqa: S311 (no secret)
        _wait_until(due_s)
        queries[kind]()
        before_s, ended_s = ended_s, time.perf_counter()
        kinds.append(kind)
        waited.append(due_s < before_s)
        took_s.append(ended_s - max(due_s, before_s))
        rested += not waited[-1]
        due_s += random.expovariate(rate_per_s)
    return Loaded(took_s, waited, kinds, ended_s - began_s)


def server(query: Query, query_s: float, seconds: float) -> Server:
    """Queries as a Poisson process, at ever lower rates until the bound is kept.

    Args:
        query: of one sample.
        query_s: that it takes, the median.
        seconds: for all rates together, about.
    """
    bound_s = _BOUND * query_s
    latency, kept_per_s = None, 0.0
    for load in _LOADS:
        rate_per_s = load / query_s
        latency = distribution(_poisson(query, rate_per_s, seconds / len(_LOADS)))
        if latency.p99_ms <= bound_s * 1000:
            kept_per_s = rate_per_s
            break
    assert latency is not None  # noqa: S101 (there are loads)
    return Server(float(f"{kept_per_s:.5g}"), float(f"{bound_s * 1000:.5g}"), latency)


def steady_from(seconds: Sequence[float], steady_s: float) -> int:
    """How many queries there are before they are steady: the median of five is within a tenth from there."""
    for at in range(max(len(seconds) - _STEADY_QUERIES + 1, 0)):
        if abs(median(seconds[at : at + _STEADY_QUERIES]) - steady_s) <= _STEADY * steady_s:
            return at
    return len(seconds)


def _poisson(query: Query, rate_per_s: float, seconds: float) -> list[float]:
    due_s = time.perf_counter() + random.expovariate(rate_per_s)
    until_s = time.perf_counter() + seconds
    found: list[float] = []
    while not found or due_s < until_s:
        _wait_until(due_s)
        query()
        found.append(time.perf_counter() - due_s)
        due_s += random.expovariate(rate_per_s)
    return found


def _wait_until(due_s: float) -> None:
    left_s = due_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)
