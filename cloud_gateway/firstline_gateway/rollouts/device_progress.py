"""The state of one device in a rollout, from its desired and reported documents. Pure.

A rollout brings a version of a bundle or of a configuration. A device runs several bundles and one configuration, so a
desired configuration replaces any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import asdict, replace

from firstline_core.fleet import twin
from firstline_core.fleet.update import UNSUCCESSFUL, UpdateKind, UpdateState
from firstline_core.types import Sha256
from firstline_gateway.rollouts.rollout import Assignment, DeviceState, Rollout

_S = DeviceState


class DeviceView(Struct, frozen=True):
    """A device as a rollout of one bundle or configuration sees it.

    Attributes:
        age_s: seconds since it was last seen; infinite if never.
        online: whether its latest process has not ended, as far as known.
        up_to_date: whether its report answers the latest desired state.
        version: that it runs; 0 if it does not report one.
        update: the latest that it reports.
        desired: its desired version.
        audited: whether it is to audit the judged bundles without a certificate too.
        audits_off: the setting that switches its audits off, see `Reported`.
        model: the version of the rollout's bundle that it runs; None for a configuration, or if it reports none.
        board: its hardware; "" if it reports none.
    """

    name: str
    tags: Mapping[str, str] = {}
    age_s: float = math.inf
    online: bool = False
    up_to_date: bool = False
    version: int = 0
    update: twin.Update | None = None
    desired: twin.DesiredVersion | None = None
    audited: bool = False
    audits_off: str = ""
    model: twin.RunningModel | None = None
    board: str = ""


def desired_of(document: twin.Desired, what: UpdateKind, name: str) -> twin.DesiredVersion | None:
    """Returns the desired version of a bundle with this name, or of the device's configuration, whatever its name."""
    if what is UpdateKind.CONFIGURATION:
        return document.configuration
    return next((each for each in document.models if each.name == name), None)


def desires_version_of(rollout: Rollout, document: twin.Desired) -> bool:
    """Returns whether a rollout set a device's desired version."""
    found = desired_of(document, rollout.definition.what, rollout.definition.bundle)
    return found is not None and found.rollout == rollout.id


def with_desired(document: twin.Desired, what: UpdateKind, version: twin.DesiredVersion) -> twin.Desired:
    """Returns a device's document with another desired version."""
    if what is UpdateKind.CONFIGURATION:
        return replace(document, configuration=twin.DesiredConfiguration(**asdict(version)))
    others = tuple(each for each in document.models if each.name != version.name)
    models = (*others, twin.DesiredModel(**asdict(version)))
    return replace(document, models=tuple(sorted(models, key=lambda each: each.name)))


def with_audits(document: twin.Desired, bundle: str, *, wanted: bool) -> twin.Desired:
    """Returns a device's document that starts or ends the audits of a bundle; "" for all bundles."""
    others = {each for each in document.audits if each != bundle}
    return replace(document, audits=tuple(sorted(others | {bundle} if wanted else others)))


def model_of(reported: twin.Reported | None, what: UpdateKind, name: str) -> twin.RunningModel | None:
    """Returns the version of a bundle that a device reports to run; None if it reports none, or for a configuration."""
    models = reported.models if reported is not None and what is UpdateKind.MODEL else ()
    return next((each for each in models if each.name == name), None)


def version_of(reported: twin.Reported | None, what: UpdateKind, name: str) -> int:
    """Returns the version that a device reports to run; 0 if it reports none, or another name."""
    if reported is not None and what is UpdateKind.CONFIGURATION:
        return reported.configuration if reported.configuration_name == name else 0
    model = model_of(reported, what, name)
    return model.version if model is not None else 0


def update_of(reported: twin.Reported | None, what: UpdateKind, name: str) -> twin.Update | None:
    """Returns the latest update that a device reports."""
    updates = reported.updates if reported is not None else ()
    return next((each for each in updates if each.name == name and each.what == what), None)


def is_reachable(device: DeviceView | None, silent_s: float) -> bool:
    """Returns whether a device would receive an offer now."""
    return device is not None and device.online and device.age_s <= silent_s


def after_offer(assignment: Assignment, device: DeviceView, rollout: Rollout, now_s: float) -> Assignment:
    """Returns the assignment after the offer to its device."""
    old = device.desired
    retried = old is not None and old.rollout == rollout.id
    before = assignment.before
    if not retried:  # a version that was rolled back, or that the device could not use, is not one to go back to
        before = None if old is None or old.undone or _fault_with(old, device) else old
    return replace(
        assignment,
        state=_S.OFFERED if is_reachable(device, rollout.definition.silent_s) else _S.AWAY,
        offered_s=now_s,
        before=before,
        before_version=assignment.before_version or device.version,
        withdrawn=assignment.withdrawn if retried else twin.withdrawn_after(old, rollout.definition.manifest_sha256),
        reason="",
    )


def _fault_with(desired: twin.DesiredVersion, device: DeviceView) -> str:
    """Returns why a device could not use a version, as it reports; "" if it reports no such failure."""
    update = device.update
    if update is None or update.state not in UNSUCCESSFUL:
        return ""
    is_same = (update.rollout, update.version) == (desired.rollout, desired.version)
    return (update.reason or update.state.value) if is_same else ""


def target(rollout: Rollout) -> twin.DesiredVersion:
    """Returns the version that a rollout brings."""
    definition = rollout.definition
    return twin.DesiredVersion(
        definition.bundle,
        definition.version,
        definition.manifest_sha256,
        rollout.id,
        window=rollout.current.window,
        attempt=rollout.attempt,
    )


def offer(assignment: Assignment, rollout: Rollout) -> twin.DesiredVersion:
    """Returns the desired version for a device that takes the model."""
    return replace(target(rollout), withdrawn=assignment.withdrawn)


def rollback(assignment: Assignment, rollout: Rollout) -> twin.DesiredVersion:
    """Returns the desired version for a device that goes back."""
    offered = offer(assignment, rollout)
    if assignment.before is None:
        return replace(offered, window=None, undone=True)
    before = assignment.before
    return replace(before, withdrawn=twin.withdrawn_after(replace(offered, undone=True), before.sha256))


def after_withdrawal(newer: Assignment, older: Assignment, rollout: Rollout, wanted: Sha256) -> Assignment:
    """Returns an assignment of a newer rollout after an older one withdrew its version from the device.

    Args:
        newer: of the rollout that has replaced the older one on the device.
        older: of the same device in the older rollout.
        rollout: the older one.
        wanted: sha256 of the version that the newer rollout brings.
    """
    if newer.before is None or newer.before.rollout != rollout.id:
        return newer
    undone = replace(newer.before, undone=True, withdrawn=(*older.withdrawn, *newer.before.withdrawn))
    withdrawn = twin.withdrawn_after(undone, wanted)
    return replace(newer, before=older.before, before_version=older.before_version, withdrawn=withdrawn)


def after_report(assignment: Assignment, device: DeviceView | None, rollout: Rollout) -> Assignment:
    """Returns the assignment after the latest report of its device, or without one."""
    removed = device is None  # decommissioned or revoked
    if assignment.state in (_S.CONTROL, _S.WITHDRAWN, _S.RETURNED) or (assignment.state is _S.WAITING and not removed):
        return assignment
    returning = assignment.state in (_S.RETURNING, _S.STRANDED)
    if device is None:
        return replace(assignment, state=_S.RETURNED if returning else _S.WITHDRAWN)
    reported = _rollback_state(assignment, device, rollout) if returning else _update_state(device, rollout)
    if reported is not None:
        state, reason = reported
        return assignment if state is assignment.state else replace(assignment, state=state, reason=reason)
    silent_s = rollout.definition.silent_s
    if assignment.state in (_S.OFFERED, _S.UNDER_WAY) and device.age_s > silent_s:
        return replace(assignment, state=_S.SILENT)
    if assignment.state in (_S.AWAY, _S.SILENT) and is_reachable(device, silent_s):
        return replace(assignment, state=_S.OFFERED)
    return assignment


def _update_state(device: DeviceView, rollout: Rollout) -> tuple[DeviceState, str] | None:
    """Returns the state of this rollout that a device reports; None if there is no new report."""
    definition, update = rollout.definition, device.update
    if not device.up_to_date:
        return None
    if update is not None and update.rollout == rollout.id and update.version == definition.version:
        if update.state is UpdateState.COMMITTED:
            return _S.DONE, ""
        if update.state in UNSUCCESSFUL:
            return _S.FAILED, update.reason or update.state.value
        if update.state in (UpdateState.CANCELLED, UpdateState.EXPIRED):
            return _S.WITHDRAWN, update.reason or update.state.value
        return (_S.UNDER_WAY, "") if device.age_s <= definition.silent_s else (_S.SILENT, "")
    return (_S.DONE, "") if device.version == definition.version else None


def _rollback_state(assignment: Assignment, device: DeviceView, rollout: Rollout) -> tuple[DeviceState, str] | None:
    """Returns the state of the rollback that a device reports; None if there is no new report."""
    if not device.up_to_date:
        return None
    update, before = device.update, assignment.before
    if device.version == rollout.definition.version:
        fault = _fault_with(before, device) if before is not None else ""
        return (_S.STRANDED, fault) if fault else None
    under_way = update is not None and update.state in (UpdateState.DOWNLOADING, UpdateState.TRIAL)
    return None if under_way else (_S.RETURNED, assignment.reason)
