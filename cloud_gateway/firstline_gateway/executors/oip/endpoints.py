"""The servers behind the gateway, the state of each, and the choice of one. No I/O."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Generic, TypeVar

from firstline_core.clock import Clock
from firstline_core.types import ModelKey

Server = TypeVar("Server", bound=Hashable)


class Endpoint:
    """One server.

    Attributes:
        url: as configured, without a slash at its end.
        answers: whether it accepts requests.
        problem: why it does not, as a sentence; "" if it does.
        in_flight: number of its current batches.
        outcomes: of its earlier batches; see `ExecutionReport`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers = False
        self.problem = f"{url} was not probed yet."
        self.in_flight = 0
        self.outcomes: Counter[str] = Counter()
        self._lacks: dict[ModelKey, str] = {}

    def lost(self, problem: str) -> None:
        """Marks the server as unavailable until a probe succeeds."""
        self.answers, self.problem = False, problem

    def found(self) -> None:
        """Marks the server as available."""
        self.answers, self.problem = True, ""

    def lacks(self, key: ModelKey, problem: str) -> bool:
        """Records that the server lacks a model, an error of the operator; returns whether that is new."""
        news = self._lacks.get(key) != problem
        self._lacks[key] = problem
        return news

    def has(self, key: ModelKey) -> None:
        """Records that the server has a model."""
        self._lacks.pop(key, None)

    def lack(self, key: ModelKey) -> str:
        """Returns why it cannot answer for a model, as a sentence; "" if it can."""
        return self._lacks.get(key, "")


class Endpoints:
    """All servers.

    Args:
        urls: one for each server.
        in_flight: the most batches at a server at the same time.
        clock: for ejections.
        rng: draws the candidates.
    """

    def __init__(self, urls: Iterable[str], in_flight: int, clock: Clock, rng: random.Random) -> None:
        self.all = tuple(Endpoint(url) for url in urls)
        self.outliers: OutlierDetector[Endpoint] = OutlierDetector(self.all)
        self._in_flight = in_flight
        self._clock = clock
        self._rng = rng

    @property
    def slots(self) -> int:
        """Number of batches that can run at the same time, at least 1."""
        now_s = self._clock.monotonic_s()
        return self._in_flight * max(1, sum(self._usable(endpoint, now_s) for endpoint in self.all))

    def usable(self, endpoint: Endpoint) -> bool:
        """Returns whether a server may be used at the moment."""
        return self._usable(endpoint, self._clock.monotonic_s())

    def choose(self, key: ModelKey, passed_over: Collection[Endpoint] = (), *, free: bool = False) -> Endpoint | None:
        """Chooses a server for a model: of two drawn at random, the one with fewer batches.

        Two choices balance nearly as well as the minimum of all, and several gateways do not all choose the same server
        (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).

        Args:
            key: the model.
            passed_over: servers that were tried already.
            free: choose only a server with fewer batches than it may have.
        """
        now_s = self._clock.monotonic_s()
        worth = [
            endpoint
            for endpoint in self.all
            if endpoint not in passed_over and self._usable(endpoint, now_s) and not endpoint.lack(key)
        ]
        idle = [endpoint for endpoint in worth if endpoint.in_flight < self._in_flight]
        drawn_from = idle if idle or free else worth
        drawn = self._rng.sample(drawn_from, min(2, len(drawn_from)))
        return min(drawn, key=_in_flight, default=None)

    def trouble(self, key: ModelKey) -> str:
        """Returns why a model cannot run at the moment, as a sentence; "" if it can."""
        now_s = self._clock.monotonic_s()
        if any(self._usable(each, now_s) and not each.lack(key) for each in self.all):
            return ""
        return " ".join(each.problem or each.lack(key) or f"{each.url} failed too often recently." for each in self.all)

    def lost(self, endpoint: Endpoint, problem: str) -> None:
        """Marks a server that did not answer a request as unavailable, unless it is the last usable one."""
        now_s = self._clock.monotonic_s()
        if any(each is not endpoint and self._usable(each, now_s) for each in self.all):
            endpoint.lost(problem)

    def _usable(self, endpoint: Endpoint, now_s: float) -> bool:
        return endpoint.answers and not self.outliers.ejected(endpoint, now_s)


def _in_flight(endpoint: Endpoint) -> int:
    return endpoint.in_flight


@dataclass(frozen=True, slots=True)
class OutlierSettings:
    """When to eject, and for how long. Numbers are Envoy's, but for shorter first ejections and their doubling.

    Args:
        failures: in a row that eject.
        interval_s: over which success rates are compared, and after which a server in use has lived one ejection down.
        least_servers: with enough requests in an interval, below which rates are not compared.
        least_requests: in an interval, below which a server's rate says nothing.
        deviations: below the mean of all rates, where a rate is an outlier (in standard deviations).
        first_s: the first ejection; doubled for each further one.
        longest_s: cap of that.
        most_share: of the servers that may be ejected at the same moment; one may be in any case, the last one never.
    """

    failures: int = 5
    interval_s: float = 10.0
    least_servers: int = 5
    least_requests: int = 100
    deviations: float = 1.9
    first_s: float = 10.0
    longest_s: float = 300.0
    most_share: float = 0.5


@dataclass(slots=True)
class _Record:
    row: int = 0  # failures since the last success
    succeeded: int = 0  # in this interval
    failed: int = 0
    ejections: int = 0  # not yet lived down
    until_s: float = field(default=-math.inf)


class OutlierDetector(Generic[Server]):
    """Ejects servers whose answers fail.

    After Envoy's outlier detection: a server is ejected after some failures in a row, or if it succeeds notably less
    often than the others. It returns after a time that doubles with each further ejection, and that shrinks again while
    the server is in use. Only a share of the servers is ejected at the same time: if everything fails, the fault is
    elsewhere, and the others could not carry the load.

        https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier

    Args:
        servers: all servers.
        settings: see `OutlierSettings`.
    """

    def __init__(self, servers: Iterable[Server], settings: OutlierSettings = OutlierSettings()) -> None:
        self._settings = settings
        self._records = {server: _Record() for server in servers}
        self._interval_ends_s = -math.inf

    def succeeded(self, server: Server, now_s: float) -> None:
        """Counts an answer. A refusal that is the request's own fault is a success."""
        self._end_interval(now_s)
        record = self._records[server]
        record.row = 0
        record.succeeded += 1

    def failed(self, server: Server, now_s: float) -> None:
        """Counts a missing answer or a failure."""
        self._end_interval(now_s)
        record = self._records[server]
        record.row += 1
        record.failed += 1
        if record.row >= self._settings.failures:
            self._eject(record, now_s)

    def ejected(self, server: Server, now_s: float) -> bool:
        """Returns whether the server is ejected now."""
        return now_s < self._records[server].until_s

    def left_s(self, server: Server, now_s: float) -> float:
        """Returns the seconds until an ejection ends."""
        return max(0.0, self._records[server].until_s - now_s)

    def _eject(self, record: _Record, now_s: float) -> None:
        out = sum(now_s < each.until_s for each in self._records.values())
        if now_s < record.until_s or out + 1 >= len(self._records):
            return
        if out and (out + 1) / len(self._records) > self._settings.most_share:
            return
        seconds = min(self._settings.longest_s, self._settings.first_s * 2.0 ** min(record.ejections, 32))
        record.until_s = now_s + seconds
        record.ejections += 1
        record.row = 0

    def _end_interval(self, now_s: float) -> None:
        if now_s < self._interval_ends_s:
            return
        self._eject_by_rate(now_s)
        for record in self._records.values():
            if record.succeeded + record.failed and now_s >= record.until_s + self._settings.interval_s:
                record.ejections = max(0, record.ejections - 1)
            record.succeeded = record.failed = 0
        self._interval_ends_s = now_s + self._settings.interval_s

    def _eject_by_rate(self, now_s: float) -> None:
        least = self._settings.least_requests
        busy = [record for record in self._records.values() if record.succeeded + record.failed >= least]
        if len(busy) < self._settings.least_servers:
            return
        rates = [record.succeeded / (record.succeeded + record.failed) for record in busy]
        lowest = fmean(rates) - self._settings.deviations * pstdev(rates)
        for record, rate in zip(busy, rates, strict=True):
            if rate < lowest:
                self._eject(record, now_s)
