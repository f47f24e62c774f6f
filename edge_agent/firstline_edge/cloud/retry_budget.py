"""The budget for asking again, so that a gateway in trouble gets little more load than one that is well.

It is the one of Finagle (`com.twitter.finagle.service.RetryBudget`): each call earns a share of a retry, a few are free
each second so that a quiet device may retry at all, and what was not used is kept up to a limit. gRPC's retry
throttling (proposal A6) serves the same end. One budget for all links: it is one gateway that they lead to.

What draws on it: the next link of a request whose first link failed, and the outbox's redelivery of what failed before.
What need not: probes, of which there is one at a time, and links whose breaker is open, which are not asked at all; nor
does the outbox for what was promised meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_core.routing.token_bucket import TokenBucket


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How much may be asked again.

    Args:
        share: retries for each call.
        per_second: retries beside those.
        burst: retries kept for later.
    """

    share: float = 0.2
    per_second: float = 1.0
    burst: float = 10.0


class RetryBudget:
    """Counts calls and allows retries.

    Args:
        clock: for what is free each second.
        settings: how much.

    Attributes:
        retries: allowed so far.
        denied: refused so far.
    """

    def __init__(self, clock: Clock, settings: RetrySettings = RetrySettings()) -> None:
        self._clock = clock
        self._share = settings.share
        self._bucket = TokenBucket(settings.burst, settings.per_second)
        self.retries = self.denied = 0

    def called(self) -> None:
        """Something is asked for the first time."""
        self._bucket.earn(self._share)

    def may_retry(self) -> bool:
        """Whether something may be asked again; counts it."""
        allowed = self._bucket.take(self._clock.monotonic_s())
        self.retries += allowed
        self.denied += not allowed
        return allowed

    @property
    def wait_s(self) -> float:
        """Seconds after which a retry is allowed for certain."""
        return self._bucket.wait_s(self._clock.monotonic_s())
