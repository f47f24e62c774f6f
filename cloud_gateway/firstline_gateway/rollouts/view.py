"""The fleet in the store as a rollout sees it, all of it within one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from sqlalchemy import Connection

from firstline_gateway.fleet import totals
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.device_progress import Seen
from firstline_gateway.rollouts.judgement.periods import Period
from firstline_gateway.rollouts.mirror import Mirror
from firstline_gateway.store.statements import batched


class StoreView:
    """See `changes.View`.

    Args:
        connection: within a transaction that sees one moment.
        rollout_id: whose measures are asked for; "" for a rollout that is only planned.
        mirror: of that rollout.
        wall_s: now.
    """

    def __init__(self, connection: Connection, rollout_id: str, mirror: Mirror, wall_s: float) -> None:
        self._connection = connection
        self._rollout_id = rollout_id
        self._mirror = mirror
        self._wall_s = wall_s

    @cached_property
    def devices(self) -> dict[str, Seen]:
        return self._mirror.devices(self._connection, self._wall_s)

    def totals(self, names: Iterable[str]) -> dict[str, Totals]:
        return self._asked(names, lambda some: totals.totals_of(self._connection, some))

    def totals_before(self, names: Iterable[str], at_s: float) -> dict[str, Totals]:
        return self._asked(names, lambda some: totals.totals_before(self._connection, some, at_s))

    def measured(self) -> dict[str, tuple[Period | None, Totals]]:
        return records.measured(self._connection, self._rollout_id)

    def _asked(self, names: Iterable[str], ask: Callable[[list[str]], Mapping[str, Totals]]) -> dict[str, Totals]:
        found: dict[str, Totals] = {}
        for some in batched(names):
            found.update(ask(some))
        return found
