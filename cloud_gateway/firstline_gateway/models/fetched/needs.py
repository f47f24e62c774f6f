"""Which versions of bundles the fleet needs full models of, as the store says. Read-only."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, select

from firstline_core.types import ModelKey
from firstline_gateway.fleet.tables import DEVICES
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.subject import Subject


class _Named(Struct):
    name: str
    version: int
    undone: bool = False


class _Document(Struct):
    """The one part of what devices report, and of what is desired of them, that is looked at here."""

    models: tuple[_Named, ...] = ()


def needed(connection: Connection, since_s: float) -> set[ModelKey]:
    """What devices run or are to run, and what rollouts that go on bring.

    Args:
        connection: sees one moment.
        since_s: wall time; a device that was not heard of since needs nothing before it comes back.
    """
    query = select(DEVICES.c.reported, DEVICES.c.desired).where(DEVICES.c.last_seen_s >= since_s)
    found: set[ModelKey] = set()
    for row in connection.execute(query):
        found |= _named(text for text in (row.reported, row.desired) if text is not None)
    for rollout_id in records.active(connection):
        rollout = records.find(connection, rollout_id)
        if rollout is not None and rollout.definition.what is Subject.MODEL:
            found.add(ModelKey(rollout.definition.bundle, rollout.definition.version))
    return found


def _named(documents: Iterable[str]) -> set[ModelKey]:
    models = (model for text in documents for model in msgspec.json.decode(text, type=_Document).models)
    return {ModelKey(model.name, model.version) for model in models if not model.undone}
