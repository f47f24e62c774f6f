"""Which of several servers to leave alone for a while, by how their answers turned out. Pure: times are handed in.

After Envoy's outlier detection: a server is ejected after some failures in a row, or where it succeeds notably less
often than the others do. It comes back by itself after a time that doubles each time that it is ejected again, and that
shrinks again while it is not. However bad all look, only a share of them is ejected: where everything fails, the fault
is elsewhere, and the others could not carry the load.

    https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Generic, TypeVar

Server = TypeVar("Server", bound=Hashable)


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
    """Counts what became of requests.

    Args:
        servers: all there are.
        settings: see there.
    """

    def __init__(self, servers: Iterable[Server], settings: OutlierSettings = OutlierSettings()) -> None:
        self._settings = settings
        self._records = {server: _Record() for server in servers}
        self._interval_ends_s = -math.inf

    def succeeded(self, server: Server, now_s: float) -> None:
        """It did what servers do; a refusal that is the request's own fault is a success."""
        self._end_interval(now_s)
        record = self._records[server]
        record.row = 0
        record.succeeded += 1

    def failed(self, server: Server, now_s: float) -> None:
        """It did not answer, or said that it failed."""
        self._end_interval(now_s)
        record = self._records[server]
        record.row += 1
        record.failed += 1
        if record.row >= self._settings.failures:
            self._eject(record, now_s)

    def ejected(self, server: Server, now_s: float) -> bool:
        """Whether to leave it alone now."""
        return now_s < self._records[server].until_s

    def left_s(self, server: Server, now_s: float) -> float:
        """Seconds until it may be asked again."""
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
