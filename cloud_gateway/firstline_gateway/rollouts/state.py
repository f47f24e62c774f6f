"""The states of a rollout and of its devices.

    DRAFT -> APPROVED -> RUNNING <-> PAUSED
                            |           |
             COMPLETED <----+-----------+---> ABORTED
                 |                      |        |
                 +------> ROLLING_BACK <+--------+
                               `--> ROLLED_BACK

After `abort` no device begins: devices under way stop, those that are done keep the new version. `rollback` is an abort
after which those that are done go back to what they ran before; a verdict to abort does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from firstline_core.fleet.twin import DesiredVersion, Withdrawn
from firstline_gateway.rollouts.definition import Definition, Stage


class RolloutState(StrEnum):
    """The state of a rollout."""

    DRAFT = "draft"
    APPROVED = "approved"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"


BEGUN = (RolloutState.RUNNING, RolloutState.PAUSED)
"""Devices may be offered the model."""
LIVE = frozenset({*BEGUN, RolloutState.ROLLING_BACK})
"""The desired state of devices may still change."""


class Phase(StrEnum):
    """The phase of a running rollout."""

    NONE = ""
    INSTALLING = "installing"
    OBSERVING = "observing"


class Rollout(Struct, frozen=True):
    """A rollout. Durations are measured on the store's service clock, which stops while no gateway runs.

    Attributes:
        revision: increases with each change.
        created_s: wall time.
        stage: from 0; the number of stages while the devices held back take the model.
        since_s: when the phase began.
        patience_s: the time from which `Stage.patience_s` counts.
        paused_s: when it was paused; None if it is not.
        lost_s: how long the phase was paused.
        look: number of the stage's latest evaluation; 0 before the first.
        look_due_s: when the next evaluation is due.
        seed: of the divisions that the test draws.
        sentence: the reason for the state.
        unsettled: whether devices still have to receive an abort.
        attempt: of the devices that are offered the model now.
        started_s: when a person started it; 0 before.
    """

    id: str
    definition: Definition
    state: RolloutState
    created_by: str
    created_s: float
    seed: int
    revision: int = 1
    approved_by: str = ""
    superseded_by: str = ""
    stage: int = 0
    phase: Phase = Phase.NONE
    since_s: float = 0.0
    patience_s: float = 0.0
    paused_s: float | None = None
    lost_s: float = 0.0
    look: int = 0
    look_due_s: float = 0.0
    sentence: str = ""
    unsettled: bool = False
    attempt: int = 1
    started_s: float = 0.0

    @property
    def salt(self) -> str:
        return self.definition.salt or self.id

    @property
    def is_rest(self) -> bool:
        """Returns whether all stages were promoted, and the devices held back are next."""
        return self.stage >= len(self.definition.stages)

    @property
    def current(self) -> Stage:
        """Returns the present stage; for the devices held back, the last stage, whose pace they follow."""
        return self.definition.stages[min(self.stage, len(self.definition.stages) - 1)]

    @property
    def stage_title(self) -> str:
        """Returns the stage in words."""
        return "The rest" if self.is_rest else f"Stage {self.stage + 1} of {len(self.definition.stages)}"


class DeviceState(StrEnum):
    """The state of a device in a rollout."""

    CONTROL = "control"
    """In the control group."""
    WAITING = "waiting"
    """Of the stage, and not offered the model yet."""
    AWAY = "away"
    """Was offline when it was offered the model, and has not returned; does not count against the model."""
    OFFERED = "offered"
    """Has not reported progress."""
    UNDER_WAY = "under_way"
    DONE = "done"
    FAILED = "failed"
    SILENT = "silent"
    """Was online at the offer and has not been seen since; counts as failed until it returns."""
    WITHDRAWN = "withdrawn"
    """The offer was withdrawn, or expired."""
    RETURNING = "returning"
    """Must run its previous version again."""
    RETURNED = "returned"
    STRANDED = "stranded"
    """Could not run its previous version again; it still runs the new one."""


UNFINISHED = frozenset({DeviceState.WAITING, DeviceState.OFFERED, DeviceState.UNDER_WAY})
"""A stage waits for these."""
EVER_OFFERED = frozenset(DeviceState) - {DeviceState.CONTROL, DeviceState.WAITING}
"""These were offered the model."""


class Assignment(Struct, frozen=True):
    """One device in a rollout.

    Attributes:
        stage: in which it takes the model, or is in the control group.
        treated: whether it takes the model.
        reachable: whether it was online when the stage began.
        place: in the order of the offers.
        offered_s: time of the offer; None before.
        before: its desired version until then; None if there was none.
        before_version: the version that it ran then; 0 if it did not report one.
        withdrawn: the versions withdrawn by then, see `DesiredVersion`.
        reason: the device's reason for a failure.
    """

    device: str
    stage: int
    treated: bool
    reachable: bool
    place: int
    state: DeviceState
    offered_s: float | None = None
    before: DesiredVersion | None = None
    before_version: int = 0
    reason: str = ""
    withdrawn: Withdrawn = ()


def stage_devices(rollout: Rollout, assignments: Mapping[str, Assignment]) -> list[Assignment]:
    """Returns the devices that take the model in the present stage, in the order of the offers."""
    treated = (each for each in assignments.values() if each.treated and each.stage == rollout.stage)
    return sorted(treated, key=lambda each: each.place)
