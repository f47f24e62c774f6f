"""A rollout: its content, rules and stages, the devices of each stage, and its states and those of its devices.

Chance divides the devices: each has a place in [0, 1) by a hash of the rollout's salt and its name. A stage takes the
devices with the lowest places, so that a growing share keeps its devices, and devices that join later have a place too.
The devices with the highest places are held back until the last stage was judged: without them it would have no control
group.

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

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from firstline_core.errors import RequestError
from firstline_core.fleet.selector import parse_selector
from firstline_core.fleet.twin import DesiredVersion, Version, Window, Withdrawn
from firstline_core.fleet.update import UpdateKind
from firstline_core.types import Name, Sha256
from firstline_gateway.rollouts.judgement.verdict import Rules

_PLACES = 1 << 64


class Stage(Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a rollout.

    Attributes:
        share: of the devices of its group, including those of earlier stages.
        group: selects its devices; "" for all.
        soak_s: how long its devices are observed after the installations ended, before it can be promoted.
        per_minute: number of devices that are offered the model per minute; None for all at once.
        window: when devices may try it; None for any time.
        patience_s: how long devices may take to install, and then how long the stage may be held, before the rollout
            pauses for a decision by a person.
    """

    share: Annotated[float, Meta(gt=0, le=1)]
    group: str = ""
    soak_s: Annotated[float, Meta(ge=0, le=90 * 86_400)] = 3600.0
    per_minute: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    window: Window | None = None
    patience_s: Annotated[float, Meta(ge=1, le=90 * 86_400)] = 86_400.0

    def __post_init__(self) -> None:
        parse_selector(self.group)


DEFAULT_STAGES = (Stage(0.01), Stage(0.1), Stage(1.0))


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The definition of a rollout.

    Attributes:
        bundle: name of the bundle, or of the configuration.
        manifest_sha256: of the bundle's manifest, or of the configuration, as in signed metadata.
        stages: judged one after the other; devices outside all stages get the model after the last was promoted.
        rules: of the judgement.
        selector: of the devices; "" for all.
        held_back: the share of devices that no stage takes, so that there is always a control group.
        salt: of the hash that gives devices their places; "" for `manifest_sha256`, so that the plan of a rollout has
            the devices of its start. The same salt keeps the places.
        approval: whether a second person has to approve it.
        silent_s: silence after which a device is away, if it has no offer yet, or has failed, if it has one.
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
    what: UpdateKind = UpdateKind.MODEL

    def __post_init__(self) -> None:
        parse_selector(self.selector)

    def check(self) -> None:
        """Checks a new definition; stored ones are read without this check.

        Raises:
            RequestError: its rules can never promote a stage, or a stage takes no device.
        """
        self.rules.check()
        check_growing(self.stages)

    @property
    def needs_audits(self) -> bool:
        """Returns whether its stages are promoted only after audits of edge answers; a configuration's never."""
        return self.what is UpdateKind.MODEL and self.rules.need_audits

    @property
    def places_salt(self) -> str:
        """Returns the salt of the devices' places."""
        return self.salt or self.manifest_sha256

    @property
    def title(self) -> str:
        """Returns what it brings, in words."""
        what = "" if self.what is UpdateKind.MODEL else f"{self.what} "
        return f"{what}{self.bundle} version {self.version}"

    @property
    def document_key(self) -> tuple[UpdateKind, str]:
        """Returns its key in a device's desired document: one for each bundle, and one for all configurations."""
        return self.what, self.bundle if self.what is UpdateKind.MODEL else ""

    @property
    def judged_bundle(self) -> str:
        """Returns the bundle whose answers are judged; "" for all bundles, which a configuration affects."""
        return self.bundle if self.what is UpdateKind.MODEL else ""


class StageGroups(NamedTuple):
    """The devices of one stage, each group in the order in which it is offered the model.

    Attributes:
        treated: the devices that take the model in this stage.
        control: the control group.
        members: number of devices of the stage's group, including those that took the model in earlier stages.
    """

    treated: tuple[str, ...]
    control: tuple[str, ...]
    members: int


def place(salt: str, device: str) -> float:
    """Returns a device's place in a rollout, in [0, 1): uniform over salts, and independent between devices."""
    digest = hashlib.sha256(f"{salt}\0{device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / _PLACES


def check_growing(stages: Sequence[Stage]) -> None:
    """Checks that each stage takes places that no earlier stage took; different groups cannot be compared.

    Raises:
        RequestError: a stage takes no device.
    """
    for (first, before), (second, after) in combinations(enumerate(stages, 1), 2):
        if before.group in ("", after.group) and after.share <= before.share:
            raise RequestError(
                f"Stage {second} takes {100 * after.share:.4g} % of devices of which stage {first} has taken "
                f"{100 * before.share:.4g} % already, so no new device: a share includes the devices of earlier "
                "stages. Increase the shares from stage to stage."
            )


def divide(
    salt: str,
    stage: Stage,
    devices: Iterable[tuple[str, Mapping[str, str]]],
    held_back: float,
    taken: Collection[str],
) -> StageGroups:
    """Returns a stage's devices and its control group; counts whole devices.

    A stage takes its share of the devices of its group, rounded up, and at least one device that no earlier stage took.
    The share that is held back is rounded up too, but leaves one device for the stage. So if `held_back` is above 0, a
    group of two devices already has a control group. The number of devices does not depend on the salt.

    Args:
        salt: of the rollout.
        stage: that begins.
        devices: names and tags of the rollout's devices.
        held_back: the share of its group that no stage takes.
        taken: the devices that took the model in earlier stages.
    """
    group = parse_selector(stage.group)
    members = sorted((place(salt, name), name) for name, tags in devices if group.matches(tags))
    untaken = [name for _, name in members if name not in taken]
    earlier = len(members) - len(untaken)
    most = len(members) - min(_whole(held_back, len(members)), max(0, len(members) - 1))
    number = max(0, min(max(_whole(stage.share, len(members)), earlier + 1), most) - earlier)
    return StageGroups(tuple(untaken[:number]), tuple(untaken[number:]), len(members))


def _whole(share: float, devices: int) -> int:
    """Returns a share of devices, rounded up; a rounding error of the product does not add a device."""
    return math.ceil(share * devices - 1e-9)


def due(stage: Stage, devices: int, elapsed_s: float) -> int:
    """Returns how many of a stage's devices may have been offered the model by now."""
    if stage.per_minute is None:
        return devices
    return min(devices, int(elapsed_s / 60 * stage.per_minute) + 1)


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
WAITING = (RolloutState.DRAFT, RolloutState.APPROVED, RolloutState.PAUSED)
"""The rollout waits until a person approves, starts or resumes it."""
LIVE = frozenset({*BEGUN, RolloutState.ROLLING_BACK})
"""The desired state of devices may still change."""


class Phase(StrEnum):
    """The phase of a running rollout."""

    NONE = ""
    EMPTY = "empty"
    """The stage has no device; it begins with the first one."""
    INSTALLING = "installing"
    OBSERVING = "observing"


class Rollout(Struct, frozen=True):
    """A rollout. Durations are measured on the store's service clock, which stops while no gateway runs.

    Attributes:
        revision: increases with each change.
        created_s: wall time.
        stage: from 0; the number of stages while the devices held back take the model.
        since_s: when the phase began.
        patience_from_s: the time from which `Stage.patience_s` counts.
        paused_s: when it was paused; None if it is not.
        lost_s: how long the phase was paused.
        look: number of the stage's latest evaluation; 0 before the first.
        look_due_s: when the next evaluation is due.
        seed: of the divisions that the test draws.
        sentence: the reason for the state.
        unsettled: whether devices still have to receive an abort, or the end of the audits.
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
    patience_from_s: float = 0.0
    paused_s: float | None = None
    lost_s: float = 0.0
    look: int = 0
    look_due_s: float = 0.0
    sentence: str = ""
    unsettled: bool = False
    attempt: int = 1
    started_s: float = 0.0

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


class Assignment(Struct, frozen=True):
    """One device in a rollout.

    Attributes:
        stage: in which it takes the model, or is in the control group.
        treated: whether it takes the model.
        reachable: whether it was online when the stage began.
        turn: in the order of the offers.
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
    turn: int
    state: DeviceState
    offered_s: float | None = None
    before: DesiredVersion | None = None
    before_version: int = 0
    reason: str = ""
    withdrawn: Withdrawn = ()


def stage_devices(rollout: Rollout, assignments: Mapping[str, Assignment]) -> list[Assignment]:
    """Returns the devices that take the model in the present stage, in the order of the offers."""
    treated = (each for each in assignments.values() if each.treated and each.stage == rollout.stage)
    return sorted(treated, key=lambda each: each.turn)
