"""View models of rollouts: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from firstline.console.cells import (
    Cell,
    Column,
    Listing,
    Row,
    Tone,
    address,
    device_page,
    moment,
    number,
    rollout_page,
    rows,
)
from firstline.fleet import wording
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.rollout_documents import FindingState, Look, Plan, RolloutDevice, RolloutPage, RolloutSummary

_DETAILS = 300  # characters
LOOKS = 20
"""Number of the latest evaluations and decisions shown; `firstline rollout get` and `firstline audit list` show all."""
UNITS = (
    "Crashes are per day. Latency is the natural logarithm of its 95th percentile in milliseconds: 0.182 more is 20 % "
    "slower. Drift is the stability index. Objects and surplus are logarithms of ratios. All others are shares, 0 to 1."
)

_TONES = {
    "running": Tone.BUSY,
    "paused": Tone.BUSY,
    "completed": Tone.GOOD,
    "aborted": Tone.BAD,
    "rolling_back": Tone.BAD,
    "rolled_back": Tone.BAD,
}
_VERDICTS = {"promote": Tone.GOOD, "hold": Tone.BUSY, "abort": Tone.BAD}


def title(rollout: RolloutSummary) -> str:
    """Returns the bundle or configuration of a rollout."""
    return f"{wording.subject(rollout.definition.get('what', 'model'), rollout.bundle)} {rollout.version}"


def state(rollout: RolloutSummary) -> Cell:
    """Returns the state of a rollout in a word or two."""
    words = rollout.state.replace("_", " ")
    return Cell(f"{words}: {rollout.phase}" if rollout.phase else words, tone=_TONES.get(rollout.state, Tone.PLAIN))


def device_counts(rollout: RolloutSummary) -> str:
    """Returns the number of devices by state, in words."""
    states = [f"{count} {name.replace('_', ' ')}" for name, count in rollout.devices.items()]
    control = [f"{rollout.control} in the control group"] if rollout.control else []
    return ", ".join(states + control) or "none yet"


def progress(rollout: RolloutSummary) -> tuple[int, int]:
    """Returns how many devices have the model, and how many have received or wait for the offer."""
    return rollout.devices.get("done", 0), sum(rollout.devices.values())


def _stage(rollout: RolloutSummary) -> str:
    return f"{rollout.stage + 1} of {rollout.stages}" if rollout.stage < rollout.stages else "those held back"


def _stage_state(rollout: RolloutSummary, index: int) -> Cell:
    if index < rollout.stage or rollout.state == "completed":
        return Cell("promoted" if index < rollout.stages else "has the model", tone=Tone.GOOD)
    if index == rollout.stage and rollout.state not in ("draft", "approved"):
        return state(rollout)
    return Cell("to come")


def look_name(look: Look) -> str:
    return f"stage {look.stage + 1}, look {look.look}"


def decision_text(entry: Entry) -> str:
    """Returns the details of an entry of the audit log in words."""
    details: dict[str, Any] = msgspec.json.decode(entry.details, type=dict[str, Any])
    if "sentence" in details:
        return str(details["sentence"])
    stage = [f"stage {details['stage'] + 1}"] if "stage" in details else []
    if {"bundle", "version"} <= details.keys():
        return f"{details['bundle']} {details['version'] or ''}".rstrip()
    words = stage + [f"{details[name]} {name}" for name in ("devices", "control") if name in details]
    if not words and entry.action.split(".")[0] != "rollout":
        words = [f"{name}: {_plain(value)}" for name, value in details.items() if value not in ("", None)]
    return ", ".join(words)[:_DETAILS] or "-"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _stages(rollout: RolloutSummary) -> Iterable[_Stage]:
    """Yields the stages, and at the end the devices held back."""
    for index, stage in enumerate(rollout.definition.get("stages", ())):
        pace = number(stage["per_minute"]) if stage.get("per_minute") else "all at once"
        group, soak = stage.get("group") or "all", wording.duration(stage.get("soak_s", 0.0))
        state_ = _stage_state(rollout, index)
        yield _Stage(str(index), str(index + 1), state_, stage.get("share", 0), group, soak, pace)
    if held_back := rollout.definition.get("held_back", 0.0):
        state_ = _stage_state(rollout, len(rollout.definition.get("stages", ())))
        yield _Stage("rest", "held back", state_, held_back, "all", "-", "as the last stage")


def plan_facts(plan: Plan) -> list[tuple[str, str]]:
    """Returns the numbers of a plan by name."""
    stages = ", ".join(f"{stage.devices:,}" for stage in plan.stages)
    return [
        ("Devices", f"{plan.devices:,}"),
        ("In the stages", stages or "-"),
        ("Held back", f"{plan.rest:,}"),
        ("Download", "-" if plan.bytes is None else f"{plan.bytes / 1e6:,.1f} MB"),
        (
            "Complete at the earliest",
            "unknown" if plan.earliest_s is None else f"after {wording.duration(plan.earliest_s)}",
        ),
        ("If it is aborted", plan.abort),
        ("If it is rolled back", plan.rollback),
    ]


class _Stage(NamedTuple):
    key: str
    name: str
    state: Cell
    share: float
    group: str
    soak: str
    pace: str


ROLLOUTS: tuple[Column[RolloutSummary], ...] = (
    Column("rollout", "Rollout", lambda rollout: Cell(title(rollout), rollout_page(rollout.id))),
    Column("state", "State", state),
    Column("stage", "Stage", _stage),
    Column("devices", "Devices", device_counts),
    Column("created", "Created (UTC)", lambda rollout: moment(rollout.created_s)),
    Column("by", "By", lambda rollout: rollout.created_by),
)
STAGES: tuple[Column[_Stage], ...] = (
    Column("stage", "Stage", lambda stage: stage.name),
    Column("state", "State", lambda stage: stage.state),
    Column("share", "Share of devices", lambda stage: f"{100 * stage.share:.3g} %", number=True),
    Column("group", "With the tag", lambda stage: stage.group),
    Column("soak", "Observed for", lambda stage: stage.soak),
    Column("pace", "Devices per minute", lambda stage: stage.pace, number=True),
)
LOOK_COLUMNS: tuple[Column[Look], ...] = (
    Column("look", "Look", look_name),
    Column("when", "When (UTC)", lambda look: moment(look.at_s)),
    Column("verdict", "Verdict", lambda look: Cell(look.decision, tone=_VERDICTS.get(look.decision, Tone.PLAIN))),
    Column("rule", "Rule", lambda look: look.rule),
    Column("why", "Why", lambda look: look.sentence),
)
FINDINGS: tuple[Column[FindingState], ...] = (
    Column(
        "figure",
        "Figure",
        lambda one: Cell(
            " ".join(filter(None, (one.figure, one.group, one.board))),
            tone=Tone.BAD if one.p_value <= one.level else Tone.PLAIN,
        ),
    ),
    Column("treated", "With the model", lambda one: number(one.treated), number=True),
    Column("control", "Without", lambda one: number(one.control), number=True),
    Column("tolerance", "Tolerance", lambda one: number(one.tolerance), number=True),
    Column("p", "p-value", lambda one: number(one.p_value), number=True),
    Column("level", "Aborts at", lambda one: number(one.level), number=True),
    Column("seen", "Detectable", lambda one: number(one.detectable), number=True),
    Column("find", "Must detect", lambda one: number(one.must_detect), number=True),
    Column("devices", "Devices with / without", lambda one: f"{one.devices[0]} / {one.devices[1]}", number=True),
)
FAILED: tuple[Column[RolloutDevice], ...] = (
    Column("device", "Device", lambda one: Cell(one.device, device_page(one.device))),
    Column("stage", "Stage", lambda one: str(one.stage + 1), number=True),
    Column("state", "State", lambda one: Cell(one.state.replace("_", " "), tone=Tone.BAD)),
    Column("reason", "Reason", lambda one: Cell(one.reason or "no reason given", tone=Tone.BAD)),
)
DECISIONS: tuple[Column[Entry], ...] = (
    Column("when", "When (UTC)", lambda entry: moment(entry.at_s)),
    Column("who", "Who", lambda entry: entry.actor),
    Column("action", "Action", lambda entry: entry.action.removeprefix("rollout.")),
    Column("details", "Details", decision_text),
)


def rollout_rows(page: RolloutPage) -> Listing:
    """Returns a page of rollouts."""
    following = address("/rollouts", after=page.after) if page.after is not None else ""
    return Listing(rows(ROLLOUTS, page.rollouts, lambda rollout: rollout.id), following)


def stage_rows(rollout: RolloutSummary) -> list[Row]:
    """Returns the stages, and at the end the devices held back."""
    return rows(STAGES, _stages(rollout), lambda stage: stage.key)


def look_rows(looks: Sequence[Look]) -> list[Row]:
    """Returns the latest evaluations, newest first."""
    return rows(LOOK_COLUMNS, reversed(looks[-LOOKS:]), lambda look: f"{look.stage}.{look.look}")


def finding_rows(look: Look | None) -> list[Row]:
    """Returns the numbers of one evaluation."""
    return rows(FINDINGS, look.findings if look is not None else (), lambda one: one.figure)


def decision_rows(entries: Sequence[Entry]) -> list[Row]:
    """Returns decisions in the given order."""
    return rows(DECISIONS, entries, lambda entry: str(entry.number))
