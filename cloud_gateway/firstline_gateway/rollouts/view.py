"""The fleet in the store as a rollout sees it, all of it within one transaction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from firstline_core.fleet.twin import Desired, Reported
from firstline_gateway.fleet import counting
from firstline_gateway.fleet.counting import Totals
from firstline_gateway.fleet.tables import DEVICES
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.definition import Definition
from firstline_gateway.rollouts.judgement.periods import Period
from firstline_gateway.rollouts.standing import Seen
from firstline_gateway.rollouts.subject import desired_of, update_of, version_of
from firstline_gateway.store.statements import batched

_C = DEVICES.c


class StoreView:
    """See `changes.View`.

    Args:
        connection: within a transaction that sees one moment.
        rollout_id: whose measures are asked for; "" for a rollout that is only planned.
        definition: of the rollout.
        wall_s: now.
    """

    def __init__(self, connection: Connection, rollout_id: str, definition: Definition, wall_s: float) -> None:
        self._connection = connection
        self._rollout_id = rollout_id
        self._definition = definition
        self._wall_s = wall_s

    @cached_property
    def devices(self) -> dict[str, Seen]:
        query = select(*(_C.name, _C.tags, _C.last_seen_s, _C.online, _C.reported, _C.desired, _C.revision)).where(
            _C.accepted_s.is_not(None)
        )
        return {row.name: self._seen(row) for row in self._connection.execute(query)}

    def totals(self, names: Iterable[str]) -> dict[str, Totals]:
        return self._asked(names, lambda some: counting.totals_of(self._connection, some))

    def totals_before(self, names: Iterable[str], at_s: float) -> dict[str, Totals]:
        return self._asked(names, lambda some: counting.totals_before(self._connection, some, at_s))

    def measured(self) -> dict[str, tuple[Period | None, Totals]]:
        return records.measured(self._connection, self._rollout_id)

    def _asked(self, names: Iterable[str], ask: Callable[[list[str]], Mapping[str, Totals]]) -> dict[str, Totals]:
        found: dict[str, Totals] = {}
        for some in batched(names):
            found.update(ask(some))
        return found

    def _seen(self, row: Any) -> Seen:
        reported = msgspec.json.decode(row.reported, type=Reported) if row.reported is not None else None
        desired = msgspec.json.decode(row.desired, type=Desired)
        what, name = self._definition.what, self._definition.bundle
        return Seen(
            name=row.name,
            tags=msgspec.json.decode(row.tags, type=dict[str, str]),
            age_s=max(0.0, self._wall_s - row.last_seen_s) if row.last_seen_s is not None else math.inf,
            online=row.online,
            heard=reported is not None and reported.revision >= row.revision,
            version=version_of(reported, what, name),
            update=update_of(reported, what, name),
            desired=desired_of(desired, what, name),
        )
