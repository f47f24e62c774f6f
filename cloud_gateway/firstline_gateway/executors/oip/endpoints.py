"""The servers behind, what is known of each, and which one to ask. No I/O."""

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
        answers: whether it takes requests.
        problem: why it does not, as a sentence; "" where it does.
        in_flight: batches that it has now.
        outcomes: of batches that it had: see `EngineReport`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers = False
        self.problem = f"{url} was not asked yet."
        self.in_flight = 0
        self.outcomes: Counter[str] = Counter()
        self._lacks: dict[ModelKey, str] = {}

    def lost(self, problem: str) -> None:
        """Nobody is there, or wants no requests: until a probe says otherwise."""
        self.answers, self.problem = False, problem

    def found(self) -> None:
        """It takes requests."""
        self.answers, self.problem = True, ""

    def lacks(self, key: ModelKey, problem: str) -> bool:
        """It has not that model: an error of whoever put the models there, not an outage. Whether that is news."""
        news = self._lacks.get(key) != problem
        self._lacks[key] = problem
        return news

    def has(self, key: ModelKey) -> None:
        """It has that model."""
        self._lacks.pop(key, None)

    def lack(self, key: ModelKey) -> str:
        """Why it cannot answer for a model, as a sentence; "" where it can."""
        return self._lacks.get(key, "")


class Endpoints:
    """All of them.

    Args:
        urls: one for each.
        in_flight: batches that each is to have at the same moment.
        clock: for ejections.
        rng: for the choice.
    """

    def __init__(self, urls: Iterable[str], in_flight: int, clock: Clock, rng: random.Random) -> None:
        self.all = tuple(Endpoint(url) for url in urls)
        self.outliers: OutlierDetector[Endpoint] = OutlierDetector(self.all)
        self._in_flight = in_flight
        self._clock = clock
        self._rng = rng

    @property
    def slots(self) -> int:
        """Batches that can be under way at the same moment, at least 1."""
        now_s = self._clock.monotonic_s()
        return self._in_flight * max(1, sum(self._usable(endpoint, now_s) for endpoint in self.all))

    def usable(self, endpoint: Endpoint) -> bool:
        """Whether it is asked at all at the moment."""
        return self._usable(endpoint, self._clock.monotonic_s())

    def choose(self, key: ModelKey, passed_over: Collection[Endpoint] = (), *, free: bool = False) -> Endpoint | None:
        """The one to ask for a model: of two drawn at random, the one with less to do.

        Two choices are nearly as even as the least of all, and gateways that see the same do not all run to the same
        one (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).

        Args:
            key: the model.
            passed_over: what was asked already.
            free: take none that has as much to do as it is to have.
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
        """Why a model cannot run at the moment, as a sentence; "" where it can."""
        now_s = self._clock.monotonic_s()
        if any(self._usable(each, now_s) and not each.lack(key) for each in self.all):
            return ""
        return " ".join(each.problem or each.lack(key) or f"{each.url} failed too often of late." for each in self.all)

    def lost(self, endpoint: Endpoint, problem: str) -> None:
        """A request found nobody there. The last one is given up by its probes alone."""
        now_s = self._clock.monotonic_s()
        if any(each is not endpoint and self._usable(each, now_s) for each in self.all):
            endpoint.lost(problem)

    def _usable(self, endpoint: Endpoint, now_s: float) -> bool:
        return endpoint.answers and not self.outliers.ejected(endpoint, now_s)


def _in_flight(endpoint: Endpoint) -> int:
    return endpoint.in_flight
