"""Which rollouts still need a signed version that is about to be removed; reads in the caller's transaction.

A running rollout brings a version, and devices may have to go back to those that they ran before. A device that joins
later is offered the version of the rollout in force. A device refuses unsigned versions.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from firstline_gateway.registry.bundle_use import SignedVersion
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.fleet_view import FleetCache
from firstline_gateway.rollouts.late_joiners import in_force
from firstline_gateway.rollouts.rollout import LIVE, Rollout, RolloutState


def reason_to_keep(connection: Connection, removed: Collection[SignedVersion]) -> str | None:
    """Returns why one of these versions has to stay; see `BundleUse`."""
    if not removed:
        return None
    for rollout in records.in_states(connection, *LIVE):
        found = _target(rollout, removed) or _previous(connection, rollout, removed)
        if found is not None:
            return (
                f"The rollout {rollout.id} is {rollout.state.replace('_', ' ')}, and its devices run or may go "
                f"back to {found}, which the new targets no longer list; wait for its end, or abort it, and repeat."
            )
    for rollout in in_force(records.in_states(connection, RolloutState.COMPLETED)):
        found = _target(rollout, removed)
        if found is not None:
            return (
                f"Devices that join get {found} from the completed rollout {rollout.id}, and the new targets no "
                "longer list it; complete a rollout of another version, or roll this one back, and repeat."
            )
    return None


def _target(rollout: Rollout, removed: Collection[SignedVersion]) -> SignedVersion | None:
    """Returns the version that the rollout brings, if it is one of these."""
    definition = rollout.definition
    target = SignedVersion(definition.what, definition.bundle, definition.version)
    return target if target in removed else None


def _previous(connection: Connection, rollout: Rollout, removed: Collection[SignedVersion]) -> SignedVersion | None:
    """Returns a version that a device ran before the offer, or is to run until it gets one, if it is one of these."""
    definition = rollout.definition
    if not any((each.what, each.name) == (definition.what, definition.bundle) for each in removed):
        return None
    found = {
        version
        for each in records.assignments(connection, rollout.id).values()
        for version in (each.before_version, each.before.version if each.before is not None else 0)
    }
    for device in FleetCache(definition).devices(connection, 0.0).values():
        found |= {device.version, device.desired.version if device.desired is not None else 0}
    ran = sorted(SignedVersion(definition.what, definition.bundle, version) for version in found)
    return next((each for each in ran if each in removed), None)
