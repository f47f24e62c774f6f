"""Which promises may be asked for now: the oldest first, those of models that failed last.

What fails waits by itself: the item, so that those behind it go on, and its model, so that a gateway which has no
room for a model is not asked by each of its items in turn. A link that comes back ends all those waits; what failed
still goes after what did not, for it may be what made the link look broken.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.types import Reason
from firstline_edge.cloud.retry_budget import RetryBudget
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.outbox import Outbox

K = TypeVar("K", bound=Hashable)

Model = tuple[str, str]
"""Name and version."""


class Backoffs(Generic[K]):
    """One wait for each key that failed; each further failure doubles the nominal one.

    Args:
        clock: its monotonic time.
        rng: for the jitter.
        base_s: nominal wait after the first failure.
        max_s: cap of the nominal wait, and of what a far side may ask for.
    """

    def __init__(self, clock: Clock, rng: random.Random, *, base_s: float, max_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._base_s = base_s
        self._max_s = max_s
        self._failures: dict[K, int] = {}
        self._not_before_s: dict[K, float] = {}

    def __contains__(self, key: object) -> bool:
        """Whether it ever was to wait, and has not succeeded since."""
        return key in self._not_before_s

    def failed(self, key: K, at_least_s: float = 0.0) -> None:
        """Makes it wait: as long as was asked for, within the cap, and the drawn time on top."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        drawn_s = full_jitter_s(self._rng, failures, base_s=self._base_s, max_s=self._max_s)
        self.hold(key, min(at_least_s, self._max_s) + drawn_s)

    def hold(self, key: K, wait_s: float) -> None:
        """Makes it wait without a failure."""
        self._not_before_s[key] = self._clock.monotonic_s() + wait_s

    def succeeded(self, key: K) -> None:
        """Forgets it."""
        self._failures.pop(key, None)
        self._not_before_s.pop(key, None)

    def release(self) -> None:
        """Ends every wait; what failed has failed all the same."""
        self._not_before_s = dict.fromkeys(self._not_before_s, self._clock.monotonic_s())

    def failing(self) -> set[K]:
        """The keys whose latest try failed, waiting or not."""
        return set(self._failures)

    def clear(self) -> None:
        """Forgets all."""
        self._failures.clear()
        self._not_before_s.clear()

    def waiting(self) -> dict[K, float]:
        """The keys that must not be tried now, with the seconds left to each."""
        now_s = self._clock.monotonic_s()
        return {key: then_s - now_s for key, then_s in self._not_before_s.items() if then_s > now_s}


class RetryQueue:
    """Remembers what failed.

    Args:
        outbox: whose promises.
        retries: the budget for asking again.
        clock: for waits.
        rng: for jitter.
        at_once: promises that go together.
        late_s: see `DeliverySettings`.
        backoff_s: see there.
        backoff_max_s: see there.
    """

    def __init__(
        self,
        outbox: Outbox,
        retries: RetryBudget,
        clock: Clock,
        rng: random.Random,
        *,
        at_once: int,
        late_s: float,
        backoff_s: float,
        backoff_max_s: float,
    ) -> None:
        self._outbox = outbox
        self._retries = retries
        self._rng = rng
        self._at_once = at_once
        self._late_s = late_s
        self._items: Backoffs[str] = Backoffs(clock, rng, base_s=backoff_s, max_s=backoff_max_s)
        self._models: Backoffs[Model] = Backoffs(clock, rng, base_s=backoff_s, max_s=backoff_max_s)

    async def next(self, besides: Collection[str]) -> tuple[list[OutboxItem], float]:
        """A few to send, of those that need not wait: first what never failed, last what failed by itself.

        While nothing may be asked again, nothing is read that would have to be: there may be thousands.

        Args:
            besides: ids to pass over.

        Returns:
            Those, and the seconds after which others may be asked for (infinite where nothing waits).
        """
        items_waiting, models_waiting = self._items.waiting(), self._models.waiting()
        retry_wait_s = self._retries.wait_s
        waits_s = filter(None, (*items_waiting.values(), *models_waiting.values(), retry_wait_s))
        others_in_s = min(waits_s, default=float("inf"))
        passed_by = {*items_waiting, *besides}
        items_failing, models_failing = self._items.failing(), self._models.failing()
        spared = items_failing | passed_by
        choices: list[tuple[Collection[str], Collection[Model]]] = []
        if items_failing or models_failing:
            choices = [(spared, models_failing), (spared, models_waiting)]
        if retry_wait_s <= 0 or not choices:
            choices.append((passed_by, models_waiting))
        for besides_items, besides_models in choices:
            found = await self._outbox.pending(
                self._at_once,
                besides=besides_items,
                besides_models=besides_models,
                besides_asked=retry_wait_s > 0,
            )
            if found:
                return found, others_in_s
        return [], others_in_s

    def may_ask(self, item: OutboxItem) -> bool:
        """Whether it may go now; takes from the budget where it was asked in vain before.

        If the budget does not allow it, no such item is looked up for now.
        """
        if self._is_early(item):
            return False
        again = item.asked or item.request.request_id in self._items.failing()
        return not again or self._retries.may_retry()

    def is_failing(self, model: Model) -> bool:
        """Whether the latest promises of this model all failed."""
        return model in self._models.failing()

    def failed(self, request_id: str, error: FirstlineError) -> None:
        """A promise could not be kept yet."""
        self._items.failed(request_id, error.retry_after_s or 0.0)

    def ended(self, request_id: str) -> None:
        """There is no such promise any more."""
        self._items.succeeded(request_id)

    def note(self, model: Model, errors: Iterable[FirstlineError | None]) -> None:
        """Promises of one model were asked for together: it waits where none of them got through."""
        found = list(errors)
        waits_s = [error.retry_after_s or 0.0 for error in found if error is not None]
        if len(waits_s) == len(found):
            self._models.failed(model, max(waits_s))
        else:
            self._models.succeeded(model)

    def release(self) -> None:
        """Ends all waits: a link is back."""
        self._items.release()
        self._models.release()

    def _is_early(self, item: OutboxItem) -> bool:
        """Whether the gateway is still to be left alone with the request that this promise stands for."""
        request_id, answer = item.request.request_id, item.provisional.answer
        late = answer is not None and answer.reason is Reason.DEADLINE and item.asked
        if not late or request_id in self._items:
            return False
        wait_s = self._rng.uniform(0, self._late_s) - self._outbox.age_s(item)
        if wait_s <= 0:
            return False
        self._items.hold(request_id, wait_s)
        return True
