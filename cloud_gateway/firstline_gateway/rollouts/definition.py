"""The definition of a rollout, and the state of a rollout and of its devices."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.fleet.twin import DesiredVersion, Version, Withdrawn
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name
from firstline_gateway.fleet.selector import parse_selector
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.stages import Stage, check_growing
from firstline_gateway.rollouts.states import RolloutState
from firstline_gateway.rollouts.subject import Subject

DEFAULT_STAGES = (Stage(0.01), Stage(0.1), Stage(1.0))


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The definition of a rollout.

    Attributes:
        bundle: its name; of a configuration, where it brings one.
        manifest_sha256: of the bundle's manifest, or of the configuration, as signed metadata has it.
        stages: judged one after the other; devices that no stage took get the model when the last was promoted.
        rules: by which they are judged.
        selector: of the devices that it is for; "" is all.
        held_back: the share of devices that no stage takes, so that there is always a control group.
        salt: of the hash that gives devices their places; "" is the rollout's id, and the same one keeps the places.
        approval: whether a second person has to approve it.
        silent_s: a device that was not heard of for so long is away before it was offered the model, and has failed
            after.
        what: whether it brings a bundle or a configuration.
    """

    bundle: Name
    version: Version
    manifest_sha256: Sha256
    stages: Annotated[tuple[Stage, ...], Meta(min_length=1, max_length=20)] = DEFAULT_STAGES
    rules: Rules = Rules()
    selector: Annotated[str, Meta(max_length=1024)] = ""
    held_back: Annotated[float, Meta(ge=0, le=0.9)] = 0.05
    salt: Annotated[str, Meta(max_length=64)] = ""
    approval: bool = False
    silent_s: Annotated[float, Meta(ge=10, le=86_400)] = 900.0
    what: Subject = Subject.MODEL

    def __post_init__(self) -> None:
        parse_selector(self.selector)

    def check(self) -> None:
        """Whether it can do what it is made for; one that is kept is read whatever it says.

        Raises:
            RequestError: its rules can never promote a stage, or a stage takes no device.
        """
        self.rules.check()
        check_growing(self.stages)

    @property
    def brought(self) -> str:
        """Returns its target in words."""
        what = "" if self.what is Subject.MODEL else f"{self.what} "
        return f"{what}{self.bundle} version {self.version}"

    @property
    def place(self) -> tuple[Subject, str]:
        """Returns its place in a device's document: one for each bundle, and one for all configurations."""
        return self.what, self.bundle if self.what is Subject.MODEL else ""

    @property
    def measured(self) -> str:
        """The bundle whose answers are judged; "" for all of a device's, of which a configuration speaks."""
        return self.bundle if self.what is Subject.MODEL else ""


class Phase(StrEnum):
    """The phase of a running rollout."""

    NONE = ""
    INSTALLING = "installing"
    OBSERVING = "observing"


class Rollout(Struct, frozen=True):
    """How a rollout stands. Durations are the store's service clock, by which nothing happens while no gateway runs.

    Attributes:
        revision: grows with each change.
        created_s: wall time.
        stage: from 0; the number of stages while the devices held back take the model.
        since_s: when the phase began.
        patience_s: from when on a person's patience counts.
        paused_s: when it was paused; None where it is not.
        lost_s: how long the phase was paused.
        look: the stage's latest; 0 before the first.
        look_due_s: when the next one is.
        seed: of the divisions that the test draws.
        sentence: why it stands so.
        unsettled: whether devices still have to receive an abort.
        attempt: of those that are offered the model now.
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
        """Whether all stages were promoted, and those held back are next."""
        return self.stage >= len(self.definition.stages)

    @property
    def current(self) -> Stage:
        """The stage whose pace holds; for those held back the last one's."""
        return self.definition.stages[min(self.stage, len(self.definition.stages) - 1)]


class DeviceState(StrEnum):
    """The state of a device in a rollout."""

    CONTROL = "control"
    """Left alone, for comparison."""
    WAITING = "waiting"
    """Of the stage, and not offered the model yet."""
    AWAY = "away"
    """Was not there when it was offered the model, and has not come back: nothing that is held against a model."""
    OFFERED = "offered"
    """Was told, and has not said how it goes."""
    UNDER_WAY = "under_way"
    DONE = "done"
    FAILED = "failed"
    SILENT = "silent"
    """Was there when it was told, and has not been heard of since: failed, until it returns."""
    WITHDRAWN = "withdrawn"
    """Was told not to, or found its time over."""
    RETURNING = "returning"
    """Was told to run again what ran before."""
    RETURNED = "returned"
    STRANDED = "stranded"
    """Was told to run again what ran before, and could not: it runs the new version still."""


OPEN = frozenset({DeviceState.WAITING, DeviceState.OFFERED, DeviceState.UNDER_WAY})
"""A stage waits for these."""
TOLD = frozenset(DeviceState) - {DeviceState.CONTROL, DeviceState.WAITING}
"""These were offered the model."""


class Assignment(Struct, frozen=True):
    """One device in a rollout.

    Attributes:
        stage: in which it takes the model, or is left alone.
        treated: takes it.
        there: whether it was heard of lately when the stage began.
        place: in the order in which they are offered the model.
        offered_s: when that was; None before.
        before: its desired version until then; None if there was none.
        before_version: the version that it ran then; 0 if it did not report one.
        withdrawn: the versions withdrawn by then, see `DesiredVersion`.
        reason: why it failed, in its word.
    """

    device: str
    stage: int
    treated: bool
    there: bool
    place: int
    state: DeviceState
    offered_s: float | None = None
    before: DesiredVersion | None = None
    before_version: int = 0
    reason: str = ""
    withdrawn: Withdrawn = ()
