"""What a gateway answers about rollouts and its audit trail: documents of the REST API, no rules.

A number that is not known, or has no bound, is null.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from firstline_core.fleet.audit_log import Entry

ROLLOUTS_PATH = "/fleet/v1/rollouts"
"""POST makes a rollout (`Idempotency-Key`), GET lists them; below it each one by id."""
PLAN_PATH = "/fleet/v1/rollouts/plan"
"""POST says what a rollout would do, without making it."""
AUDIT_PATH = "/fleet/v1/audit"
AUDIT_HEAD_PATH = "/fleet/v1/audit/head"


class RolloutSummary(Struct, frozen=True):
    """How a rollout stands.

    Attributes:
        stage: from 0; as many as there are stages while those held back take the model.
        phase: "installing" or "observing"; "" where it does not run.
        sentence: why it stands so.
        revision: grows with each change; its ETag.
        devices: how many are in which state, those that were offered the model or wait for it.
        control: how many are left alone for comparison now.
        consequences: what each command that can be given now would do to devices, a sentence each.
        definition: as it was given.
        warnings: what a start cannot do as things are, in sentences; none of anything but a start.
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
    definition: dict[str, Any]
    warnings: tuple[str, ...] = ()


class RolloutPage(Struct, frozen=True):
    """Rollouts, the newest first; `after` is what to ask for next, None at the end."""

    rollouts: tuple[RolloutSummary, ...]
    after: str | None


class FindingState(Struct, frozen=True):
    """What one figure said at a look; see the gateway's `judgement.verdict.Finding`."""

    figure: str
    treated: float | None
    control: float | None
    tolerance: float
    p_value: float
    level: float
    seen: float | None
    devices: tuple[int, int]
    find: float | None = None


class Look(Struct, frozen=True):
    """One look at a stage.

    Attributes:
        at_s: wall time.
        decision: "promote", "hold" or "abort".
        rule: which one made it.
    """

    stage: int
    look: int
    at_s: float
    decision: str
    rule: str
    sentence: str
    findings: tuple[FindingState, ...]


class LookList(Struct, frozen=True):
    """Looks at a rollout, in order; `after` is what to ask for next, None at the end."""

    looks: tuple[Look, ...]
    after: str | None = None


class FigurePlan(Struct, frozen=True):
    """What a stage can see of one figure.

    Attributes:
        spread: standard deviation between the fleet's devices over a time like the stage's; null where none is known.
        find: what the rollout is to find; null where nothing.
        seen: the smallest difference from the control that is found with probability 0.9, the tolerance included.
        after_s: observed so long, `find` would be seen; null where not within what is known of the past.
    """

    figure: str
    tolerance: float
    find: float | None
    spread: float | None
    seen: float | None
    after_s: float | None


class StagePlan(Struct, frozen=True):
    """What one stage would do.

    Attributes:
        devices: that take the model in it.
        away: of those, not heard of lately; they take it when they return, and nobody waits for them.
        control: left alone meanwhile.
        bytes: that are sent; null where the bundle's size is not known.
        offered_s: until the last device is offered the model.
        earliest_s: until the stage can be promoted, installations not counted.
    """

    stage: int
    devices: int
    away: int
    control: int
    bytes: int | None
    offered_s: float
    earliest_s: float
    figures: tuple[FigurePlan, ...]


class Plan(Struct, frozen=True):
    """What a rollout would do.

    Attributes:
        devices: that it is for.
        rest: held back until all stages were judged.
        bytes: likewise, all of them; null where not known.
        earliest_s: until it can be complete, installations not counted.
        supersedes: ids of the rollouts that its start would end.
        abort: what an abort would do to those done, running and waiting.
        rollback: likewise.
        warnings: what it cannot do as it is planned, in sentences.
    """

    devices: int
    rest: int
    bytes: int | None
    earliest_s: float
    stages: tuple[StagePlan, ...]
    supersedes: tuple[str, ...]
    abort: str
    rollback: str
    warnings: tuple[str, ...] = ()


class AuditPage(Struct, frozen=True):
    """Entries of the trail; `after` is what to ask for next, None at the end."""

    entries: tuple[Entry, ...]
    after: int | None
