"""The REST API's documents of rollouts and of the audit log.

A number that is unknown or unbounded is null.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from firstline_core.fleet.audit_log import Entry

ROLLOUTS_PATH = "/fleet/v1/rollouts"
"""POST creates a rollout (`Idempotency-Key`), GET lists them; each one is below it by id."""
PLAN_PATH = "/fleet/v1/rollouts/plan"
"""POST returns the plan of a rollout without creating it."""
AUDIT_PATH = "/fleet/v1/audit"
AUDIT_EXPORT_PATH = "/fleet/v1/audit/exports"
"""POST notes an export and returns the signed head."""
AUDIT_HEAD_PATH = "/fleet/v1/audit/head"


class RolloutSummary(Struct, frozen=True):
    """The state of a rollout.

    Attributes:
        stage: from 0; equal to the number of stages while the devices held back take the model.
        phase: "installing" or "observing"; "" if it does not run.
        sentence: the reason for the state.
        revision: increases with each change; also the ETag.
        devices: number of devices by state, of those that were offered the model or wait for it.
        control: number of devices in the control group.
        consequences: the effect of each possible command, one sentence each.
        definition: as submitted.
        warnings: sentences about what a start cannot achieve at present; only in the answer to a start.
    """

    id: str
    bundle: str
    version: int
    state: str
    stage: int
    stages: int
    phase: str
    sentence: str
    revision: int
    created_by: str
    created_s: float
    approved_by: str
    superseded_by: str
    devices: dict[str, int]
    control: int
    consequences: dict[str, str]
    definition: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Definition"})]
    warnings: tuple[str, ...] = ()


class RolloutPage(Struct, frozen=True):
    """A page of rollouts, newest first; `after` is the cursor of the next page, None at the end."""

    rollouts: tuple[RolloutSummary, ...]
    after: str | None


class RolloutDevice(Struct, frozen=True):
    """One device of a rollout.

    Attributes:
        stage: from 0, in which it takes the model or is in the control group.
        state: see `docs/concepts/rollouts.md`.
        reason: the device's reason for a failure; "" without one.
    """

    device: str
    stage: int
    state: str
    reason: str


class RolloutDevices(Struct, frozen=True):
    """A page of the devices of a rollout, by name; `after` is the cursor of the next page, None at the end."""

    devices: tuple[RolloutDevice, ...]
    after: str | None


class FindingState(Struct, frozen=True):
    """The finding: the result for one figure in one evaluation of a stage.

    Attributes:
        treated: the figure of the devices with the model; null if no device reports it. Of installations, the share
            that failed.
        control: the figure of the control group. Of installations, the accepted share.
        tolerance: accepted difference from the control group.
        p_value: of "the model makes no device worse by more than the tolerance".
        level: the p-value at or below which the figure aborts the rollout.
        detectable: the smallest difference from the control group that is detected with probability 0.9, tolerance
            included; null if unbounded. Its name in documents is `seen`.
        devices: number of devices with the model and in the control group.
        must_detect: the difference that the rollout must detect; null for none. Its name in documents is `find`.
        group: the class with the largest difference, of a figure by class; "" for other figures.
        board: the hardware of the devices with the largest difference; "" for all devices.
    """

    figure: str
    treated: float | None
    control: float | None
    tolerance: float
    p_value: float
    level: float
    detectable: float | None = field(name="seen")
    devices: tuple[int, int]
    must_detect: float | None = field(name="find", default=None)
    group: str = ""
    board: str = ""


class Look(Struct, frozen=True):
    """One evaluation of a stage.

    Attributes:
        at_s: wall time.
        decision: "promote", "hold" or "abort".
        rule: that made the decision.
    """

    stage: int
    look: int
    at_s: float
    decision: str
    rule: str
    sentence: str
    findings: tuple[FindingState, ...]


class LookList(Struct, frozen=True):
    """Evaluations of a rollout, in order; `after` is the cursor of the next page, None at the end."""

    looks: tuple[Look, ...]
    after: str | None = None


class FigurePlan(Struct, frozen=True):
    """The sensitivity of a stage for one figure.

    Attributes:
        spread: standard deviation between the fleet's devices over the length of the stage; null if unknown.
        must_detect: the difference that the rollout must detect; null for none. Its name in documents is `find`.
        detectable: the smallest difference from the control group that is detected with probability 0.9, tolerance
            included. Its name in documents is `seen`.
        after_s: observation time after which `must_detect` would be detected; null if longer than the known past.
    """

    figure: str
    tolerance: float
    must_detect: float | None = field(name="find")
    spread: float | None
    detectable: float | None = field(name="seen")
    after_s: float | None


class StagePlan(Struct, frozen=True):
    """The plan of one stage.

    Attributes:
        devices: that take the model in it.
        away: devices of these without a recent message; they take the model when they return, and the stage does not
            wait.
        control: devices in the control group meanwhile.
        bytes: sent to devices; null if the size of the bundle is unknown.
        offered_s: time until the last device is offered the model.
        earliest_s: time until the stage can be promoted, without installations; null if the fleet's past shows that it
            cannot detect what its rules must.
    """

    stage: int
    devices: int
    away: int
    control: int
    bytes: int | None
    offered_s: float
    earliest_s: float | None
    figures: tuple[FigurePlan, ...]


class Plan(Struct, frozen=True):
    """The plan of a rollout.

    Attributes:
        devices: of the rollout.
        rest: devices held back until all stages were evaluated.
        bytes: sent to all devices; null if unknown.
        earliest_s: time until it can be complete, without installations; null if a stage cannot be promoted, or if no
            stage can detect anything.
        supersedes: ids of the rollouts that it would end.
        abort: the effect of an abort on finished, running and waiting devices.
        rollback: the same for a rollback.
        sees: whether a stage can detect any difference from its control group.
        detects: a sentence about the differences that this fleet can detect, and when.
        false_aborts: the probability that a model that changes nothing is aborted, in one sentence.
        audits: how many audits the first stage needs to detect disagreement, and how many its devices make, in a
            sentence; "" if it needs none, or if nothing is known of the last day.
        unaudited: why a stage will be held without audits, in one sentence; "" if nothing known prevents them.
        warnings: sentences about what the plan cannot achieve.
    """

    devices: int
    rest: int
    bytes: int | None
    earliest_s: float | None
    stages: tuple[StagePlan, ...]
    supersedes: tuple[str, ...]
    abort: str
    rollback: str
    sees: bool
    detects: str
    false_aborts: str
    audits: str = ""
    unaudited: str = ""
    warnings: tuple[str, ...] = ()


class AuditPage(Struct, frozen=True):
    """A page of the audit log; `after` is the cursor of the next page, None at the end."""

    entries: tuple[Entry, ...]
    after: int | None
