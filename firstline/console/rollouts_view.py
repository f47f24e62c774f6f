"""View models of rollouts: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from firstline.console.cells import Cell, Column, Listing, Row, Tone, address, duration, moment, number, rollout_page
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.rollout import Look, RolloutPage, RolloutSummary

LOOKS = 20
"""Number of the latest evaluations and decisions shown; `firstline rollout get` and `audit ls` show all."""

ROLLOUTS = (
    Column("rollout", "Rollout"),
    Column("state", "State"),
    Column("stage", "Stage"),
    Column("devices", "Devices"),
    Column("made", "Made (UTC)"),
    Column("by", "By"),
)
STAGES = (
    Column("stage", "Stage"),
    Column("standing", "Standing"),
    Column("share", "Share of devices", number=True),
    Column("group", "Of those tagged"),
    Column("soak", "Observed for"),
    Column("pace", "Told a minute", number=True),
)
LOOK_COLUMNS = (
    Column("look", "Look"),
    Column("when", "When (UTC)"),
    Column("verdict", "Verdict"),
    Column("rule", "Rule"),
    Column("why", "Why"),
)
FINDINGS = (
    Column("figure", "Figure"),
    Column("treated", "With the model", number=True),
    Column("control", "Without", number=True),
    Column("tolerance", "More accepted", number=True),
    Column("p", "p", number=True),
    Column("level", "Aborts at p", number=True),
    Column("seen", "Can see", number=True),
    Column("find", "Is to find", number=True),
    Column("devices", "Devices with / without", number=True),
)
DECISIONS = (Column("when", "When (UTC)"), Column("who", "Who"), Column("what", "What"), Column("said", "Saying"))

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
    what = rollout.definition.get("what", "model")
    return f"{rollout.bundle} {rollout.version}" if what == "model" else f"{what} {rollout.bundle} {rollout.version}"


def state(rollout: RolloutSummary) -> Cell:
    """Returns the state of a rollout in a word or two."""
    words = rollout.state.replace("_", " ")
    return Cell(f"{words}: {rollout.phase}" if rollout.phase else words, tone=_TONES.get(rollout.state, Tone.PLAIN))


def rollout_rows(page: RolloutPage) -> Listing:
    """Returns a page of rollouts."""
    rows = [
        {
            "key": Cell(rollout.id),
            "rollout": Cell(title(rollout), rollout_page(rollout.id)),
            "state": state(rollout),
            "stage": Cell(_stage(rollout)),
            "devices": Cell(counted(rollout)),
            "made": Cell(moment(rollout.created_s)),
            "by": Cell(rollout.created_by),
        }
        for rollout in page.rollouts
    ]
    return Listing(rows, address("/rollouts", after=page.after) if page.after is not None else "")


def counted(rollout: RolloutSummary) -> str:
    """Returns the number of devices by state, in words."""
    states = [f"{count} {name.replace('_', ' ')}" for name, count in rollout.devices.items()]
    control = [f"{rollout.control} left alone"] if rollout.control else []
    return ", ".join(states + control) or "none yet"


def progress(rollout: RolloutSummary) -> tuple[int, int]:
    """Returns how many devices have the model, and how many have received or wait for the offer."""
    return rollout.devices.get("done", 0), sum(rollout.devices.values())


def _stage(rollout: RolloutSummary) -> str:
    return f"{rollout.stage + 1} of {rollout.stages}" if rollout.stage < rollout.stages else "those held back"


def stage_rows(rollout: RolloutSummary) -> list[Row]:
    """Returns the stages, and at the end the devices held back."""
    stages: Sequence[dict[str, Any]] = rollout.definition.get("stages", ())
    rows = [
        {
            "key": Cell(str(index)),
            "stage": Cell(str(index + 1)),
            "standing": _stage_state(rollout, index),
            "share": Cell(f"{100 * stage.get('share', 0):.3g} %"),
            "group": Cell(stage.get("group") or "all"),
            "soak": Cell(duration(stage.get("soak_s", 0.0))),
            "pace": Cell(number(stage["per_minute"]) if stage.get("per_minute") else "all at once"),
        }
        for index, stage in enumerate(stages)
    ]
    held_back = rollout.definition.get("held_back", 0.0)
    if held_back:
        last: Row = {
            "key": Cell("rest"),
            "stage": Cell("held back"),
            "standing": _stage_state(rollout, len(stages)),
            "share": Cell(f"{100 * held_back:.3g} %"),
            "group": Cell("all"),
            "soak": Cell("-"),
            "pace": Cell("as the last stage"),
        }
        rows.append(last)
    return rows


def _stage_state(rollout: RolloutSummary, index: int) -> Cell:
    if index < rollout.stage or rollout.state == "completed":
        return Cell("promoted" if index < rollout.stages else "has the model", tone=Tone.GOOD)
    if index == rollout.stage and rollout.state not in ("draft", "approved"):
        return state(rollout)
    return Cell("to come")


def look_name(look: Look) -> str:
    return f"stage {look.stage + 1}, look {look.look}"


def look_rows(looks: Sequence[Look]) -> list[Row]:
    """Returns the latest evaluations, newest first."""
    return [
        {
            "key": Cell(f"{look.stage}.{look.look}"),
            "look": Cell(look_name(look)),
            "when": Cell(moment(look.at_s)),
            "verdict": Cell(look.decision, tone=_VERDICTS.get(look.decision, Tone.PLAIN)),
            "rule": Cell(look.rule),
            "why": Cell(look.sentence),
        }
        for look in reversed(looks[-LOOKS:])
    ]


def finding_rows(look: Look | None) -> list[Row]:
    """Returns the numbers of one evaluation."""
    return [
        {
            "key": Cell(found.figure),
            "figure": Cell(found.figure, tone=Tone.BAD if found.p_value <= found.level else Tone.PLAIN),
            "treated": Cell(number(found.treated)),
            "control": Cell(number(found.control)),
            "tolerance": Cell(number(found.tolerance)),
            "p": Cell(number(found.p_value)),
            "level": Cell(number(found.level)),
            "seen": Cell(number(found.seen)),
            "find": Cell(number(found.find)),
            "devices": Cell(f"{found.devices[0]} / {found.devices[1]}"),
        }
        for found in (look.findings if look is not None else ())
    ]


def decision_rows(entries: Sequence[Entry]) -> list[Row]:
    """Returns the latest decisions, newest first."""
    return [
        {
            "key": Cell(str(entry.number)),
            "when": Cell(moment(entry.at_s)),
            "who": Cell(entry.actor),
            "what": Cell(entry.action.removeprefix("rollout.")),
            "said": Cell(_decision_text(entry)),
        }
        for entry in reversed(entries[-LOOKS:])
    ]


def _decision_text(entry: Entry) -> str:
    details: dict[str, Any] = msgspec.json.decode(entry.details, type=dict[str, Any])
    if "sentence" in details:
        return str(details["sentence"])
    stage = [f"stage {details['stage'] + 1}"] if "stage" in details else []
    return ", ".join(stage + [f"{details[name]} {name}" for name in ("devices", "control") if name in details]) or "-"
