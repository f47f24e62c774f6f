"""The state of one device in a rollout, from its reports. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from firstline_core.fleet.twin import DesiredVersion, Update, withdrawn_after
from firstline_core.fleet.update import UNSUCCESSFUL, UpdateState
from firstline_gateway.rollouts.definition import Assignment, DeviceState, Rollout

_S = DeviceState


class Seen(Struct, frozen=True):
    """A device as the fleet knows it, with regard to one bundle.

    Attributes:
        age_s: how long ago it was heard of; infinite where never.
        online: whether its latest process has not ended, as far as is known.
        heard: whether what it says is an answer to what it was told last.
        version: of the bundle, that runs; 0 where it does not say.
        update: the bundle's latest, as it says.
        desired: the fleet's word about the bundle.
    """

    name: str
    tags: Mapping[str, str]
    age_s: float
    online: bool
    heard: bool
    version: int
    update: Update | None
    desired: DesiredVersion | None


def is_there(device: Seen | None, silent_s: float) -> bool:
    """Whether it would hear an offer now."""
    return device is not None and device.online and device.age_s <= silent_s


def offered(assignment: Assignment, device: Seen, rollout: Rollout, now_s: float) -> Assignment:
    """Returns the assignment after the offer to its device."""
    held = device.desired
    mine = held is not None and held.rollout == rollout.id
    return replace(
        assignment,
        state=_S.OFFERED if is_there(device, rollout.definition.silent_s) else _S.AWAY,
        offered_s=now_s,
        # What was to be undone is none to go back to, and what this rollout wanted itself is none either.
        before=assignment.before if mine else (None if held is None or held.undone else held),
        before_version=assignment.before_version or device.version,
        withdrawn=assignment.withdrawn if mine else withdrawn_after(held, rollout.definition.manifest_sha256),
        reason="",
    )


def target(rollout: Rollout) -> DesiredVersion:
    """Returns the version that a rollout brings."""
    definition = rollout.definition
    return DesiredVersion(
        definition.bundle,
        definition.version,
        definition.manifest_sha256,
        rollout.id,
        window=rollout.current.window,
        attempt=rollout.attempt,
    )


def offer(assignment: Assignment, rollout: Rollout) -> DesiredVersion:
    """Returns the desired version for a device that is to run it."""
    return replace(target(rollout), withdrawn=assignment.withdrawn)


def way_back(assignment: Assignment, rollout: Rollout) -> DesiredVersion:
    """Returns the desired version for a device that is to go back."""
    offered = offer(assignment, rollout)
    if assignment.before is None:
        return replace(offered, window=None, undone=True)
    back = assignment.before
    return replace(back, withdrawn=withdrawn_after(replace(offered, undone=True), back.sha256))


def moved(assignment: Assignment, device: Seen | None, rollout: Rollout) -> Assignment:
    """The assignment after what its device says, or does not say."""
    if assignment.state in (_S.CONTROL, _S.WAITING, _S.WITHDRAWN, _S.RETURNED):
        return assignment
    going_back = assignment.state in (_S.RETURNING, _S.STRANDED)
    if device is None:  # sent away for good
        return replace(assignment, state=_S.RETURNED if going_back else _S.WITHDRAWN)
    said = _returned(assignment, device, rollout) if going_back else _said(device, rollout)
    if said is not None:
        state, reason = said
        return assignment if state is assignment.state else replace(assignment, state=state, reason=reason)
    if going_back:
        return assignment
    there = device.age_s <= rollout.definition.silent_s
    if assignment.state in (_S.OFFERED, _S.UNDER_WAY) and not there:
        return replace(assignment, state=_S.SILENT)
    if assignment.state in (_S.AWAY, _S.SILENT) and is_there(device, rollout.definition.silent_s):
        return replace(assignment, state=_S.OFFERED)
    return assignment


def _said(device: Seen, rollout: Rollout) -> tuple[DeviceState, str] | None:
    """Returns the reported state of this rollout; None if there is no new report."""
    definition, update = rollout.definition, device.update
    if not device.heard:
        return None
    if update is not None and update.rollout == rollout.id and update.version == definition.version:
        if update.state is UpdateState.COMMITTED:
            return _S.DONE, ""
        if update.state in UNSUCCESSFUL:
            return _S.FAILED, update.reason or update.state.value
        if update.state in (UpdateState.CANCELLED, UpdateState.EXPIRED):
            return _S.WITHDRAWN, update.reason or update.state.value
        return (_S.UNDER_WAY, "") if device.age_s <= definition.silent_s else (_S.SILENT, "")
    if device.version == definition.version:
        return _S.DONE, ""
    return None


def _returned(assignment: Assignment, device: Seen, rollout: Rollout) -> tuple[DeviceState, str] | None:
    if not device.heard:
        return None
    update, before = device.update, assignment.before
    if device.version == rollout.definition.version:
        told = before is not None and update is not None and (update.rollout, update.version) == _told(before)
        if told and update is not None and update.state in UNSUCCESSFUL:
            return _S.STRANDED, update.reason or update.state.value
        return None
    under_way = update is not None and update.state in (UpdateState.DOWNLOADING, UpdateState.TRIAL)
    return None if under_way else (_S.RETURNED, assignment.reason)


def _told(word: DesiredVersion) -> tuple[str, int]:
    return word.rollout, word.version
