"""Which rollouts stand in the way where something is no longer to be signed for; read in a caller's transaction.

A rollout under way brings a version, and may have to take devices back to those that they ran before. Who joins later
is told what the rollout in force brought. A device that then finds the version signed for no more takes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection

from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.definition import Rollout
from firstline_gateway.rollouts.joining import in_force
from firstline_gateway.rollouts.mirror import Mirror
from firstline_gateway.rollouts.subject import Subject


class Version(NamedTuple):
    """Of a bundle, or of a configuration."""

    what: Subject
    name: str
    version: int

    def __str__(self) -> str:
        return f"{'' if self.what is Subject.MODEL else f'{self.what} '}{self.name} version {self.version}"


def needed(connection: Connection, removed: Collection[Version]) -> str | None:
    """Why one of these has to stay, and what to do about it; None where none has to."""
    if not removed:
        return None
    for rollout in records.live(connection):
        found = _brought(rollout, removed) or _left_behind(connection, rollout, removed)
        if found is not None:
            return (
                f"The rollout {rollout.id} is {rollout.state.replace('_', ' ')}, and its devices run or may go back to "
                f"{found}, which the new targets no longer list; wait for its end, or abort it, and repeat."
            )
    for rollout in in_force(records.completed(connection)):
        found = _brought(rollout, removed)
        if found is not None:
            return (
                f"Devices that join are told {found} by the completed rollout {rollout.id}, and the new targets no "
                "longer list it; complete a rollout of another version, or roll this one back, and repeat."
            )
    return None


def _brought(rollout: Rollout, removed: Collection[Version]) -> Version | None:
    mine = rollout.definition
    brought = Version(mine.what, mine.bundle, mine.version)
    return brought if brought in removed else None


def _left_behind(connection: Connection, rollout: Rollout, removed: Collection[Version]) -> Version | None:
    """What a device ran before it was told, or is to run until it is."""
    mine = rollout.definition
    if not any((each.what, each.name) == (mine.what, mine.bundle) for each in removed):
        return None
    found = {
        version
        for each in records.assignments(connection, rollout.id).values()
        for version in (each.before_version, each.before.version if each.before is not None else 0)
    }
    for device in Mirror(mine).devices(connection, 0.0).values():
        found |= {device.version, device.desired.version if device.desired is not None else 0}
    ran = sorted(Version(mine.what, mine.bundle, version) for version in found)
    return next((each for each in ran if each in removed), None)
