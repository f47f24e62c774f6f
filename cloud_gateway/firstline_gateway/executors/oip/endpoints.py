"""The servers behind the gateway, the state of each, and the choice of one. No I/O."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable

from firstline_core.clock import Clock
from firstline_core.types import ModelKey
from firstline_gateway.executors.oip.outliers import OutlierDetector


class Endpoint:
    """One server.

    Attributes:
        url: as configured, without a slash at its end.
        answers: whether it accepts requests.
        problem: why it does not, as a sentence; "" if it does.
        in_flight: number of its current batches.
        outcomes: of its earlier batches; see `EngineReport`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers = False
        self.problem = f"{url} was not asked yet."
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
