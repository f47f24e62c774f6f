"""The fleet in the store as a step sees it, read incrementally: a step reads and decodes only changed documents.

A step is due every few seconds, and of ten thousand devices only a few report a change in between. A few short columns
are read of all devices, and documents only if those columns show that a document has changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Row, select

from firstline_core.fleet.update import UpdateKind
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.routing import audit
from firstline_core.types import ModelKey
from firstline_gateway.contracts import records as contract_records
from firstline_gateway.fleet import totals
from firstline_gateway.fleet.devices import DEVICES, REVISION
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.identity.enrolment import revoked_devices
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.device_progress import DeviceView, desired_of, model_of, update_of, version_of
from firstline_gateway.rollouts.judgement.figures import Baseline
from firstline_gateway.rollouts.rollout import Definition
from firstline_gateway.store.schema import batched

_C = DEVICES.c
_Edition = tuple[object, ...]
"""Differs if a document of a device differs; the time of acceptance distinguishes a device from a decommissioned one of
the same name."""


class FleetCache:
    """A cache of the devices that one rollout has read; used on one thread.

    Args:
        definition: of the rollout.
    """

    def __init__(self, definition: Definition) -> None:
        self._what, self._bundle = definition.what, definition.bundle
        self._judged_bundle = definition.judged_bundle
        self._devices: dict[str, tuple[_Edition, DeviceView]] = {}

    def devices(self, connection: Connection, wall_s: float) -> dict[str, DeviceView]:
        """Returns the current devices of the fleet, without those that are revoked."""
        columns = _C.name, _C.tags, _C.last_seen_s, _C.online, _C.accepted_s, _C.session, _C.sequence, REVISION
        revoked = revoked_devices(connection)
        accepted = connection.execute(select(*columns).where(_C.accepted_s.is_not(None)))
        rows: dict[str, Any] = {row.name: row for row in accepted if row.name not in revoked}
        cached = {
            name: found for name, found in self._devices.items() if name in rows and found[0] == _edition(rows[name])
        }
        for some in batched(rows.keys() - cached.keys()):
            cached.update(self._read(connection, some, rows))
        self._devices = cached
        return {name: self._device(row, wall_s) for name, row in rows.items()}

    def _read(
        self, connection: Connection, names: Sequence[str], rows: Mapping[str, Row[Any]]
    ) -> Iterable[tuple[str, tuple[_Edition, DeviceView]]]:
        query = select(_C.name, _C.reported, _C.desired).where(_C.name.in_(names))
        for row in connection.execute(query):
            reported, desired = row.reported, row.desired
            device = DeviceView(
                name=row.name,
                up_to_date=reported is not None and reported.revision >= rows[row.name].revision,
                version=version_of(reported, self._what, self._bundle),
                update=update_of(reported, self._what, self._bundle),
                desired=desired_of(desired, self._what, self._bundle),
                audited=self._judged_bundle in desired.audits,
                audits_off=reported.audits_off if reported is not None else "",
                model=model_of(reported, self._what, self._bundle),
                board=_board(reported.hardware if reported is not None else None),
            )
            yield row.name, (_edition(rows[row.name]), device)

    def _device(self, row: Row[Any], wall_s: float) -> DeviceView:
        """Returns a device with the facts that change without a document."""
        age_s = max(0.0, wall_s - row.last_seen_s) if row.last_seen_s is not None else math.inf
        return replace(self._devices[row.name][1], tags=row.tags, age_s=age_s, online=row.online)


@dataclass(eq=False)
class FleetView:
    """The fleet in the store, all of it within one transaction; see `step.StepView`.

    Args:
        connection: within a transaction that sees one moment.
        rollout_id: whose baselines are read; "" for a rollout that is only planned.
        definition: of that rollout.
        cache: of that rollout.
        wall_s: now.
    """

    connection: Connection
    rollout_id: str
    definition: Definition
    cache: FleetCache
    wall_s: float

    @cached_property
    def devices(self) -> dict[str, DeviceView]:
        return self.cache.devices(self.connection, self.wall_s)

    @cached_property
    def alarm(self) -> str:
        return contract_alarm(self.connection, self.definition)

    def totals(self, names: Iterable[str]) -> dict[str, Totals]:
        return {k: v for some in batched(names) for k, v in totals.totals_of(self.connection, some).items()}

    def totals_before(self, names: Iterable[str], at_s: float) -> dict[str, Totals]:
        return {k: v for some in batched(names) for k, v in totals.totals_before(self.connection, some, at_s).items()}

    def baselines(self) -> dict[str, Baseline]:
        return records.baselines(self.connection, self.rollout_id)


def contract_alarm(connection: Connection, definition: Definition) -> str:
    """Returns the contract alarm of the version that a rollout brings, in a sentence; "" without one."""
    if definition.what is not UpdateKind.MODEL:
        return ""
    pool = contract_records.alarmed(connection, ModelKey(definition.bundle, definition.version))
    if pool is None:
        return ""
    return f"The contract of {definition.title} is broken: {pool.finding} (e-value {audit.e_value(pool.state):.3g})."


def _board(hardware: Catalogue | None) -> str:
    return hardware.board or hardware.processor.model if hardware is not None else ""


def _edition(row: Row[Any]) -> _Edition:
    return row.accepted_s, row.session, row.sequence, row.revision
