"""The input and the changes of a rollout's step, and the ways in which a stage ends. Pure.

The changes of a step are carried out as a whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from firstline_core.fleet.rollout import Look
from firstline_core.fleet.twin import DesiredVersion
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.device_progress import DeviceView
from firstline_gateway.rollouts.judgement.figures import Period
from firstline_gateway.rollouts.judgement.verdict import Verdict
from firstline_gateway.rollouts.state import Assignment, Phase, Rollout, RolloutState


class Now(NamedTuple):
    """The store's service clock, for durations; and wall time, for people and for the history of counts."""

    service_s: float
    wall_s: float


class View(Protocol):
    """The fleet as a step sees it: all of it at one moment."""

    @property
    def devices(self) -> Mapping[str, DeviceView]:
        """Returns the devices that belong to the fleet."""
        ...

    def totals(self, names: Iterable[str]) -> Mapping[str, Totals]:
        """Returns the counts of devices so far."""
        ...

    def totals_before(self, names: Iterable[str], at_s: float) -> Mapping[str, Totals]:
        """Returns the counts of devices at a wall time."""
        ...

    def baselines(self) -> Mapping[str, tuple[Period | None, Totals]]:
        """Returns, for each observed device, the period before its stage and its counts at the start of observation."""
        ...


@dataclass
class Changes:
    """The changes of one step.

    Args:
        rollout: its new state.
        assigned: devices whose assignment has changed.
        desired: new desired versions of devices.
        before: for devices of a new stage, the period before it.
        start: counts of devices at the start of the observation.
        look: an evaluation.
        notes: for the audit log: an action, its actor, and its details.
        more: whether the next step is due at once.
    """

    rollout: Rollout
    assigned: dict[str, Assignment] = field(default_factory=dict)
    desired: dict[str, DesiredVersion] = field(default_factory=dict)
    before: dict[str, Period | None] = field(default_factory=dict)
    start: dict[str, Totals] = field(default_factory=dict)
    look: Look | None = None
    notes: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    more: bool = False

    def note(self, action: str, actor: str, **details: Any) -> None:
        """Adds an entry to the audit log."""
        self.notes.append((f"rollout.{action}", actor, details))

    def promote(self, actor: str, sentence: str) -> None:
        """Begins the next stage; after the devices held back the rollout is complete."""
        rollout = self.rollout
        if rollout.is_rest:
            self.end(RolloutState.COMPLETED, sentence)
            return
        self.note("promote", actor, stage=rollout.stage, sentence=sentence)
        self.rollout = replace(
            rollout,
            state=RolloutState.RUNNING,
            stage=rollout.stage + 1,
            phase=Phase.NONE,
            look=0,
            paused_s=None,
            lost_s=0.0,
            sentence=f"{rollout.stage_title} was promoted: {sentence}",
        )
        self.more = True

    def abort(self, verdict: Verdict, now: Now) -> None:
        """Rolls back every device that was offered the model, because a rule failed the stage."""
        sentence = f"{self.rollout.stage_title} was aborted: {verdict.sentence}"
        self.note("abort", f"rule:{verdict.rule}", stage=self.rollout.stage, sentence=sentence)
        self.rollout = replace(
            self.rollout, state=RolloutState.ROLLING_BACK, phase=Phase.NONE, sentence=sentence, since_s=now.service_s
        )
        self.desired = {}  # the next step says what devices run instead
        self.more = True

    def pause(self, sentence: str, now: Now) -> None:
        """Pauses the rollout until a person decides."""
        self.note("pause", "rule:patience", stage=self.rollout.stage, sentence=sentence)
        self.rollout = replace(self.rollout, state=RolloutState.PAUSED, paused_s=now.service_s, sentence=sentence)

    def end(self, state: RolloutState, sentence: str) -> None:
        """Ends the rollout."""
        self.note(state, "rule:order", sentence=sentence)
        self.rollout = replace(self.rollout, state=state, phase=Phase.NONE, paused_s=None, sentence=sentence)
