"""A step's changes in the store: all of them with their audit log entries, or none."""

from __future__ import annotations

from sqlalchemy import Connection

from firstline_gateway.audit_log import records as audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.changes import Step
from firstline_gateway.rollouts.definition import Rollout
from firstline_gateway.rollouts.subject import with_desired


def apply(connection: Connection, before: Rollout, made: Step, wall_s: float) -> Rollout | None:
    """Carries out a step.

    Args:
        connection: within a transaction that writes.
        before: the rollout that the step was computed from.
        made: the step.
        wall_s: now.

    Returns:
        The changed rollout; None if it had been changed meanwhile and nothing was done.
    """
    held = records.find(connection, before.id, lock=True)
    if held is None or held.revision != before.revision:
        return None
    records.assign(connection, before.id, made.assigned.values())
    records.measure(connection, before.id, made.before, made.start)
    if made.look is not None:
        records.add_look(connection, before.id, made.look)
    what = before.definition.what
    devices.desire(
        connection, made.told, lambda name, desired: with_desired(desired, what, made.told[name]), wall_s, known=True
    )
    for action, actor, details in made.notes:
        audit_log.add(
            connection, at_s=wall_s, actor=actor, action=action, subject=f"rollout:{before.id}", details=details
        )
    return records.put(connection, made.rollout) if made.rollout != before else held
