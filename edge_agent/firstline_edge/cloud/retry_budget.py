"""The retry budget: it limits the additional load on a gateway in trouble.

It follows Finagle (`com.twitter.finagle.service.RetryBudget`): each call adds a share of a retry, a few retries are
free each second so that a quiet device can retry at all, and unused retries accumulate up to a limit. gRPC's retry
throttling (proposal A6) serves the same purpose. All links share one budget, because they lead to one gateway.

Two kinds of retries use it: the next link of a request whose first link failed, and redeliveries of the outbox. Probes
    do not use it, because there is one at a time; nor do first deliveries of the outbox.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_core.routing.token_bucket import TokenBucket


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """The limits of retries.

    Args:
        share: retries for each call.
        per_second: additional free retries.
        burst: the most retries that accumulate.
    """

    share: float = 0.2
    per_second: float = 1.0
    burst: float = 10.0


class RetryBudget:
    """Counts calls and allows retries.

    Args:
        clock: for the free retries.
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
        """Counts a first try."""
        self._bucket.earn(self._share)

    def may_retry(self) -> bool:
        """Returns whether a retry is allowed, and counts it."""
        allowed = self._bucket.take(self._clock.monotonic_s())
        self.retries += allowed
        self.denied += not allowed
        return allowed

    @property
    def wait_s(self) -> float:
        """Seconds after which a retry is certainly allowed."""
        return self._bucket.wait_s(self._clock.monotonic_s())
