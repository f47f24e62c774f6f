"""Query scenarios after MLPerf's, each for a given number of seconds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from firstline_core.profile.profile import HALF_LOAD

Query = Callable[[], None]

_MOST = 20_000
_STEADY_QUERIES = 5
_STEADY = 0.1


def single_stream(query: Query, seconds: float, *, least: int = 5, between: Query = lambda: None) -> None:
    """Runs queries back to back for some seconds, at least `least` of them; calls `between` after each."""
    until_s = time.perf_counter() + seconds
    done = 0
    while done < least or (done < _MOST and time.perf_counter() < until_s):
        query()
        between()
        done += 1


class Loaded(NamedTuple):
    """Queries under load, in their order.

    Attributes:
        seconds: of each, from its due time if the server was free, else from the end of the previous one.
        waited: whether it had to wait.
        kinds: its kind, such as one of several models.
        span_s: time in which all arrived.
    """

    seconds: list[float]
    waited: list[bool]
    kinds: list[int]
    span_s: float

    def of(self, *, waited: bool) -> list[float]:
        """Returns the seconds of queries of the first kind.

        Args:
            waited: those that had to wait, or those that found the server free. The former take longer than back to
                back, because one query does not undo a rest.
        """
        rows = zip(self.seconds, self.waited, self.kinds, strict=True)
        return [seconds for seconds, has_waited, kind in rows if kind == 0 and has_waited == waited]


def loaded(
    queries: Sequence[Query],
    query_s: float,
    seconds: float,
    *,
    load: float = HALF_LOAD,
    shares: Sequence[float] | None = None,
    least: int = 5,
) -> Loaded:
    """Runs queries as a Poisson process.

    Args:
        queries: one kind or several.
        query_s: mean time of a query back to back, over the kinds.
        seconds: time to measure.
        load: arrival rate, as a share of the rate back to back.
        shares: of each kind; None for equal shares.
        least: smallest number of queries that find the server free.
    """
    rate_per_s = load / query_s
    found = Loaded([], [], [], 0.0)
    began_s = ended_s = time.perf_counter()
    due_s, until_s, rested = ended_s + random.expovariate(rate_per_s), ended_s + seconds, 0
    while not found.kinds or ended_s < until_s or rested < least:
        if ended_s >= until_s:  # drop the backlog, so that a rest comes first
            due_s = ended_s + random.expovariate(rate_per_s)
        (kind,) = random.choices(range(len(queries)), shares)  # noqa: S311 (no secret)
        if (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        queries[kind]()
        before_s, ended_s = ended_s, time.perf_counter()
        found.kinds.append(kind)
        found.waited.append(due_s < before_s)
        found.seconds.append(ended_s - max(due_s, before_s))
        rested += not found.waited[-1]
        due_s += random.expovariate(rate_per_s)
    return found._replace(span_s=ended_s - began_s)


def steady_from(seconds: Sequence[float], steady_s: float) -> int:
    """Returns the number of queries before the steady ones, of which the median of five is within a tenth."""
    for at in range(max(len(seconds) - _STEADY_QUERIES + 1, 0)):
        if abs(median(seconds[at : at + _STEADY_QUERIES]) - steady_s) <= _STEADY * steady_s:
            return at
    return len(seconds)
