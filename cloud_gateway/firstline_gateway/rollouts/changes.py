"""The input and the changes of a rollout's step, and the ways in which a stage ends. Pure.

A step takes nothing back: it is executed as a whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from firstline_core.fleet.rollout import Look
from firstline_core.fleet.twin import DesiredVersion
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.definition import Assignment, Phase, Rollout
from firstline_gateway.rollouts.device_progress import Seen
from firstline_gateway.rollouts.judgement.periods import Period
from firstline_gateway.rollouts.judgement.verdict import Verdict
from firstline_gateway.rollouts.states import RolloutState


class Now(NamedTuple):
    """The store's service clock, by which things last; and wall time, which is shown, and by which history is kept."""

    service_s: float
    wall_s: float


class View(Protocol):
    """The fleet as a step sees it: all of it at one moment."""

    @property
    def devices(self) -> Mapping[str, Seen]:
        """Those that belong to the fleet."""
        ...

    def totals(self, names: Iterable[str]) -> Mapping[str, Totals]:
        """Returns their counts so far."""
        ...

    def totals_before(self, names: Iterable[str], at_s: float) -> Mapping[str, Totals]:
        """Returns their counts at a wall time."""
        ...

    def measured(self) -> Mapping[str, tuple[Period | None, Totals]]:
        """By what the rollout's devices are compared."""
        ...


@dataclass
class Step:
    """The changes of one step.

    Args:
        rollout: as it is after.
        assigned: devices whose standing is another one now.
        told: the desired version for devices.
        before: the period before their stage.
        start: their counts at the start of the observation.
        look: that was had.
        notes: for the audit log: an action, its actor, and its numbers.
        more: whether the next step has something to do at once.
    """

    rollout: Rollout
    assigned: dict[str, Assignment] = field(default_factory=dict)
    told: dict[str, DesiredVersion] = field(default_factory=dict)
    before: dict[str, Period | None] = field(default_factory=dict)
    start: dict[str, Totals] = field(default_factory=dict)
    look: Look | None = None
    notes: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    more: bool = False


def promote(made: Step, actor: str, sentence: str) -> None:
    """The stage is taken for sound, and the next one follows; after those held back the rollout is complete."""
    rollout = made.rollout
    if rollout.is_rest:
        end(made, RolloutState.COMPLETED, sentence)
        return
    made.notes.append(("rollout.promote", actor, {"stage": rollout.stage, "sentence": sentence}))
    made.rollout = replace(
        rollout,
        state=RolloutState.RUNNING,
        stage=rollout.stage + 1,
        phase=Phase.NONE,
        look=0,
        paused_s=None,
        lost_s=0.0,
        sentence=f"{named(rollout)} was promoted: {sentence}",
    )
    made.more = True


def abort(made: Step, verdict: Verdict, now: Now) -> None:
    """A rule has found the stage bad: every device that was told goes back."""
    sentence = f"{named(made.rollout)} was aborted: {verdict.sentence}"
    made.rollout = replace(
        made.rollout, state=RolloutState.ROLLING_BACK, phase=Phase.NONE, sentence=sentence, since_s=now.service_s
    )
    made.told = {}  # they hear in the next step what they are to run instead
    made.notes.append(("rollout.abort", f"rule:{verdict.rule}", {"stage": made.rollout.stage, "sentence": sentence}))
    made.more = True


def pause(made: Step, sentence: str, now: Now) -> None:
    """A person is asked."""
    made.rollout = replace(made.rollout, state=RolloutState.PAUSED, paused_s=now.service_s, sentence=sentence)
    made.notes.append(("rollout.pause", "rule:patience", {"stage": made.rollout.stage, "sentence": sentence}))


def end(made: Step, state: RolloutState, sentence: str) -> None:
    """Nothing follows by itself."""
    made.rollout = replace(made.rollout, state=state, phase=Phase.NONE, paused_s=None, sentence=sentence)
    made.notes.append((f"rollout.{state}", "rule:order", {"sentence": sentence}))


def of_stage(rollout: Rollout, held: Mapping[str, Assignment]) -> list[Assignment]:
    """Those that the stage takes, in the order in which they are offered the model."""
    return sorted(
        (each for each in held.values() if each.treated and each.stage == rollout.stage), key=lambda each: each.place
    )


def named(rollout: Rollout) -> str:
    """The stage, in words."""
    stages = len(rollout.definition.stages)
    return "The rest" if rollout.is_rest else f"Stage {rollout.stage + 1} of {stages}"
