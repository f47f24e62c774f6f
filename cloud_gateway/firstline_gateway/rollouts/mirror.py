"""A cache of a rollout's fleet, so that a step reads and decodes only changed rows.

A step is due every few seconds, and of ten thousand devices hardly any says something new meanwhile. Of all devices a
few short columns are read; documents only of those whose columns say that there is another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, select

from firstline_core.fleet.twin import Desired, DesiredVersion, Reported, Update
from firstline_gateway.fleet.tables import DEVICES
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.definition import Assignment, Definition
from firstline_gateway.rollouts.device_progress import Seen
from firstline_gateway.rollouts.subject import desired_of, update_of, version_of
from firstline_gateway.store.statements import batched

_C = DEVICES.c


class _Said(NamedTuple):
    """Returns the fields of a device's documents that concern one rollout.

    Attributes:
        edition: another one where a document is another one; when it was let in tells a device from one of the same
            name that was sent away.
    """

    edition: tuple[object, ...]
    heard: bool
    version: int
    update: Update | None
    desired: DesiredVersion | None


class Mirror:
    """For one rollout; on one thread.

    Args:
        definition: of the rollout.
    """

    def __init__(self, definition: Definition) -> None:
        self._what, self._bundle = definition.what, definition.bundle
        self._said: dict[str, _Said] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._assigned: dict[str, tuple[str, Assignment]] = {}

    def devices(self, connection: Connection, wall_s: float) -> dict[str, Seen]:
        """The devices that belong to the fleet, as they are now."""
        columns = _C.name, _C.tags, _C.last_seen_s, _C.online, _C.accepted_s, _C.session, _C.sequence, _C.revision
        rows: Sequence[Any] = connection.execute(select(*columns).where(_C.accepted_s.is_not(None))).all()
        held = self._said
        changed = {row.name: row for row in rows if row.name not in held or held[row.name].edition != _edition(row)}
        fresh = {name: said for some in batched(changed) for name, said in self._read(connection, some, changed)}
        self._said = {row.name: fresh.get(row.name) or held[row.name] for row in rows}
        self._tags = {text: self._tags.get(text) or _tags(text) for text in {row.tags for row in rows}}
        return {row.name: self._seen(row, wall_s) for row in rows}

    def assignments(self, connection: Connection, rollout_id: str) -> dict[str, Assignment]:
        """The rollout's devices so far, by name."""
        held, found = self._assigned, dict[str, tuple[str, Assignment]]()
        for name, text in records.assignment_texts(connection, rollout_id):
            before = held.get(name)
            found[name] = before if before is not None and before[0] == text else (text, records.assignment(text))
        self._assigned = found
        return {name: assignment for name, (_, assignment) in found.items()}

    def _read(
        self, connection: Connection, names: Sequence[str], rows: Mapping[str, Row[Any]]
    ) -> Iterable[tuple[str, _Said]]:
        query = select(_C.name, _C.reported, _C.desired).where(_C.name.in_(names))
        for row in connection.execute(query):
            reported = msgspec.json.decode(row.reported, type=Reported) if row.reported is not None else None
            desired = msgspec.json.decode(row.desired, type=Desired)
            yield (
                row.name,
                _Said(
                    edition=_edition(rows[row.name]),
                    heard=reported is not None and reported.revision >= rows[row.name].revision,
                    version=version_of(reported, self._what, self._bundle),
                    update=update_of(reported, self._what, self._bundle),
                    desired=desired_of(desired, self._what, self._bundle),
                ),
            )

    def _seen(self, row: Row[Any], wall_s: float) -> Seen:
        said = self._said[row.name]
        return Seen(
            name=row.name,
            tags=self._tags[row.tags],
            age_s=max(0.0, wall_s - row.last_seen_s) if row.last_seen_s is not None else math.inf,
            online=row.online,
            heard=said.heard,
            version=said.version,
            update=said.update,
            desired=said.desired,
        )


def _edition(row: Row[Any]) -> tuple[object, ...]:
    return row.accepted_s, row.session, row.sequence, row.revision


def _tags(text: str) -> dict[str, str]:
    return msgspec.json.decode(text, type=dict[str, str])
