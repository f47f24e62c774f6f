"""Query scenarios after MLPerf's, each for a given number of seconds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from firstline_core.profile.profile import HALF_LOAD

Query = Callable[[], None]

_LEAST, _MOST = 5, 20_000


def single_stream(query: Query, seconds: float, *, between: Query = lambda: None) -> None:
    """Runs queries back to back for some seconds, at least five of them; calls `between` after each."""
    until_s = time.perf_counter() + seconds
    done = 0
    while done < _LEAST or (done < _MOST and time.perf_counter() < until_s):
        query()
        between()
        done += 1


class LoadedRun(NamedTuple):
    """Seconds of queries under load.

    Attributes:
        rested: of queries that found the server free, from their due time.
        queued: of queries that had to wait, from the end of the previous one. They take longer than back to back,
            because one query does not undo a rest.
    """

    rested: list[float]
    queued: list[float]


def loaded(query: Query, query_s: float, seconds: float) -> LoadedRun:
    """Runs queries as a Poisson process at half of the rate back to back; at least five of them find the server free.

    Args:
        query: runs one.
        query_s: mean time of a query back to back.
        seconds: time to measure.
    """
    rate_per_s = HALF_LOAD / query_s
    found = LoadedRun([], [])
    ended_s = time.perf_counter()
    due_s, until_s = ended_s + random.expovariate(rate_per_s), ended_s + seconds
    while ended_s < until_s or len(found.rested) < _LEAST:
        if ended_s >= until_s:  # drop the backlog, so that a rest comes first
            due_s = ended_s + random.expovariate(rate_per_s)
        if (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        query()
        before_s, ended_s = ended_s, time.perf_counter()
        if due_s < before_s:
            found.queued.append(ended_s - before_s)
        else:
            found.rested.append(ended_s - due_s)
        due_s += random.expovariate(rate_per_s)
    return found
