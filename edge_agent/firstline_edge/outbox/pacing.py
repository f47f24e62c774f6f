"""Which promises are delivered now, and how fast. No I/O.

The order (`RetryQueue`): the oldest promise first, those of failing models last. After a failure two things wait: the
promise, so that those behind it are sent, and its model, so that a gateway without capacity for a model does not get
every promise of that model in turn. A link that is back ends all these waits. Failed promises are still sent after the
others, because one of them may have made the link look broken.

The rate (`DeliveryRate`): as fast as possible without delaying live requests. Promises are not urgent, and after an
outage they wait on every device. A fleet that delivers as fast as the gateway answers takes capacity from live
requests, and gets more refusals than answers. So delivery starts slowly whenever a link is back, and adapts to the
delay that it causes, as LEDBAT does (RFC 6817, a background transport): faster while answers arrive with little delay,
slower when they queue, at half the rate after a refusal. The first timely answer ends a slowdown: from the minimum rate
alone, a dozen promises would take a minute. The gap before each delivery is random, so that devices do not synchronize.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.types import ModelVersion, Reason
from firstline_edge.cloud.breaker import RetryBudget
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.outbox import Outbox

AT_ONCE = 4
"""Promises that are sent together; live requests need the link too."""
BACKOFF_S, BACKOFF_MAX_S = 1.0, 60.0
"""Nominal wait after a failure, doubled with each further failure in a row; longest wait, also if a gateway asks."""
_LATE_S = 5.0
"""Longest wait of a promise that was made because the gateway was late: the gateway may still work on the request, and
must not get twice the load at once."""
_SLACK_S = 0.1  # shorter gaps are saved up, and then several deliveries go together
_FORGET = 1.01  # growth of the shortest seen time with each answer: the path may have changed


K = TypeVar("K", bound=Hashable)


class Backoffs(Generic[K]):
    """Exponential backoff with full jitter for many keys; each further failure doubles the nominal wait.

    Args:
        clock: its monotonic time.
        rng: for the jitter.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._failures: dict[K, int] = {}
        self._not_before_s: dict[K, float] = {}

    def __contains__(self, key: object) -> bool:
        """Whether the key had to wait, and has not succeeded since."""
        return key in self._not_before_s

    def failed(self, key: K, at_least_s: float = 0.0) -> None:
        """Makes a key wait: the requested time, up to the maximum, plus a random time."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        drawn_s = full_jitter_s(self._rng, failures, base_s=BACKOFF_S, max_s=BACKOFF_MAX_S)
        self.hold(key, min(at_least_s, BACKOFF_MAX_S) + drawn_s)

    def hold(self, key: K, wait_s: float) -> None:
        """Makes a key wait without counting a failure."""
        self._not_before_s[key] = self._clock.monotonic_s() + wait_s

    def succeeded(self, key: K) -> None:
        """Forgets a key."""
        self._failures.pop(key, None)
        self._not_before_s.pop(key, None)

    def release(self) -> None:
        """Ends every wait; failures still count."""
        self._not_before_s = dict.fromkeys(self._not_before_s, self._clock.monotonic_s())

    def failing(self) -> set[K]:
        """The keys whose latest attempt failed, waiting or not."""
        return set(self._failures)

    def waiting(self) -> dict[K, float]:
        """The keys that must not be tried now, with the seconds left of each wait."""
        now_s = self._clock.monotonic_s()
        return {key: then_s - now_s for key, then_s in self._not_before_s.items() if then_s > now_s}


class RetryQueue:
    """Selects promises to send, and remembers failures.

    Args:
        outbox: whose promises.
        retries: the retry budget.
        clock: for waits.
        rng: for jitter.
    """

    def __init__(self, outbox: Outbox, retries: RetryBudget, clock: Clock, rng: random.Random) -> None:
        self._outbox = outbox
        self._retries = retries
        self._rng = rng
        self._items: Backoffs[str] = Backoffs(clock, rng)
        self._models: Backoffs[ModelVersion] = Backoffs(clock, rng)

    async def next(self, skip_ids: Collection[str]) -> tuple[list[OutboxItem], float]:
        """Returns promises that may be sent now: those without a failure first, those that failed last.

        While the retry budget is empty, no promise is read that would need it: there may be thousands.

        Args:
            skip_ids: ids to skip.

        Returns:
            The promises, and the seconds until others may be sent (infinite if none waits).
        """
        items_waiting, models_waiting = self._items.waiting(), self._models.waiting()
        items_failing, models_failing = self._items.failing(), self._models.failing()
        retry_wait_s = self._retries.wait_s
        waits_s = filter(None, (*items_waiting.values(), *models_waiting.values(), retry_wait_s))
        others_in_s = min(waits_s, default=float("inf"))
        skipped = {*items_waiting, *skip_ids}
        choices: list[tuple[Collection[str], Collection[ModelVersion]]] = []
        if items_failing or models_failing:
            untried = items_failing | skipped
            choices = [(untried, models_failing), (untried, models_waiting)]
        if retry_wait_s <= 0 or not choices:
            choices.append((skipped, models_waiting))
        for ids, models in choices:
            items = await self._outbox.pending(
                AT_ONCE, skip_ids=ids, skip_models=models, skip_reached_gateway=retry_wait_s > 0
            )
            if items:
                return items, others_in_s
        return [], others_in_s

    def may_send(self, item: OutboxItem) -> bool:
        """Whether a promise may be sent now; a retry takes from the retry budget.

        If the budget is empty, promises that would need it are not looked up for now.
        """
        request_id = item.request_id
        if request_id in self._items.waiting() or self._is_early(item):  # it may have failed since it was read
            return False
        again = item.may_have_reached_gateway or request_id in self._items.failing()
        return not again or self._retries.may_retry()

    def is_failing(self, model: ModelVersion) -> bool:
        """Whether the latest promises of a model all failed."""
        return model in self._models.failing()

    def failed(self, request_id: str, error: FirstlineError) -> None:
        """Notes that a promise could not be delivered yet."""
        self._items.failed(request_id, error.retry_after_s or 0.0)

    def ended(self, request_id: str) -> None:
        """Forgets a promise that has ended."""
        self._items.succeeded(request_id)

    def note(self, model: ModelVersion, errors: Iterable[FirstlineError | None]) -> None:
        """Notes the outcome of promises of one model that were sent together: the model waits if all of them failed."""
        outcomes = list(errors)
        waits_s = [error.retry_after_s or 0.0 for error in outcomes if error is not None]
        if len(waits_s) == len(outcomes):
            self._models.failed(model, max(waits_s))
        else:
            self._models.succeeded(model)

    def release(self) -> None:
        """Ends all waits: a link is back."""
        self._items.release()
        self._models.release()

    def _is_early(self, item: OutboxItem) -> bool:
        """Whether the gateway may still be working on the request of this promise."""
        request_id, answer = item.request_id, item.provisional.answer
        late = answer is not None and answer.reason is Reason.DEADLINE and item.may_have_reached_gateway
        if not late or request_id in self._items:
            return False
        wait_s = self._rng.uniform(0, _LATE_S) - self._outbox.age_s(item)
        if wait_s <= 0:
            return False
        self._items.hold(request_id, wait_s)
        return True


@dataclass(frozen=True, slots=True)
class RateSettings:
    """Parameters of the delivery rate.

    Args:
        begin_per_s: initial rate, in deliveries per second; a fleet that has just returned sends at this rate together.
        least_per_s: minimum rate, however many deliveries are refused.
        burst: deliveries that may go at once at the start; few enough to cause no thundering herd.
        target_s: accepted delay of an answer beyond the shortest seen time; at least that shortest time is accepted.
        gain: relative increase of the rate for an answer without delay; less for a later answer.
        slowest: least factor for a late answer.
    """

    begin_per_s: float = 0.25
    least_per_s: float = 0.1
    burst: int = 4
    target_s: float = 0.1
    gain: float = 0.3
    slowest: float = 0.7


class DeliveryRate:
    """The delivery rate of one device.

    Args:
        clock: its monotonic time.
        rng: for the gaps.
        settings: parameters of the rate.

    Attributes:
        per_s: the present rate, in deliveries per second.
    """

    def __init__(self, clock: Clock, rng: random.Random, settings: RateSettings = RateSettings()) -> None:
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self.per_s = settings.begin_per_s
        self._free = settings.burst
        self._next_s = 0.0
        self._shortest_s = float("inf")

    @property
    def wait_s(self) -> float:
        """Seconds until the next delivery may start."""
        early_s = self._next_s - self._clock.monotonic_s()
        return 0.0 if self._free or early_s < _SLACK_S else early_s

    def begin(self) -> None:
        """Starts slowly again: a link is back."""
        self.per_s, self._free, self._next_s = self._settings.begin_per_s, self._settings.burst, 0.0

    def sent(self) -> None:
        """Counts a delivery that starts now."""
        if self._free:
            self._free -= 1
        gap_s = self._rng.uniform(0.5, 1.5) / self.per_s
        self._next_s = max(self._next_s, self._clock.monotonic_s()) + gap_s

    def answered(self, took_s: float) -> None:
        """Adapts the rate to a delivery that was answered."""
        self._shortest_s = min(self._shortest_s * _FORGET, took_s)
        target_s = max(self._settings.target_s, self._shortest_s)
        off_target = 1 - (took_s - self._shortest_s) / target_s
        if off_target > 0 and self.per_s < self._settings.begin_per_s:
            self._end_slowdown()
        else:
            self._change(max(self._settings.slowest, 1 + self._settings.gain * off_target))

    def refused(self) -> None:
        """Halves the rate: of the deliveries that went together, at least one was refused."""
        self._change(0.5)

    def _change(self, factor: float) -> None:
        self.per_s = min(1e6, max(self._settings.least_per_s, self.per_s * factor))

    def _end_slowdown(self) -> None:
        """Starts again at the initial rate, and shortens the present gap accordingly."""
        now_s, before_per_s = self._clock.monotonic_s(), self.per_s
        self.per_s = self._settings.begin_per_s
        self._next_s = now_s + max(0.0, self._next_s - now_s) * before_per_s / self.per_s
