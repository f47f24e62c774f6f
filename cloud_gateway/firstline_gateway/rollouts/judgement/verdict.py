"""Decides by all figures together whether a stage is promoted, held or aborted, with the rule and the numbers.

- **abort**: more installations failed than are accepted, or a figure is worse than the control group's by more than its
  tolerance, at the p-value at which this evaluation may abort.
- **hold**: no figure is worse, but the stage's time is not over; or there is too little data to detect the difference
  that the rollout must find; or no device of the stage runs the model; or no edge answer of a variant was audited.
- **promote**: the stage's time is over, and every difference that had to be found would have been detected.

Both groups contain exactly the devices that chance assigned to them: all devices of the stage that were online at the
offer, whether they run the model now or went back, and all devices of the control group that were online then. Without
the failed devices, the healthy devices of one group would be compared with all of the other. Both are observed from the
same moment on, when the stage's installations have ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from firstline_core.errors import RequestError
from firstline_core.fleet.rollout_documents import FindingState
from firstline_core.routing.binomial import cdf
from firstline_core.telemetry.wording import counted
from firstline_gateway.rollouts.judgement import statistics
from firstline_gateway.rollouts.judgement.figures import ALL, FALL, FIGURES, RISE, Figure, StageDevice, classes_of

INSTALLATIONS = "installations"
_SMALLEST = 1e-300  # no p-value is 0, so that logarithms of it are finite
_SHOWN = 0.001
_MOST_ZEROS = 9
_CLASSES_AT_MOST, _BOARDS_AT_MOST = 32, 16  # of a figure
_FEWEST_OF_A_BOARD = 4
WITHOUT_AUDITS = " To promote without audits, use `firstline rollout promote`, or start with `--ignore disagreement`."


class StageDecision(StrEnum):
    """The decision on a stage."""

    PROMOTE = "promote"
    HOLD = "hold"
    ABORT = "abort"


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """The tolerance of one figure.

    Attributes:
        tolerance: accepted difference from the control group, in the figure's unit.
        must_detect: a stage is not promoted before a difference of this size would be detected; None promotes without.
            Its name in documents is `find`.
    """

    tolerance: Annotated[float, Meta(ge=0)]
    must_detect: Annotated[float, Meta(gt=0)] | None = field(name="find", default=None)


DEFAULT_LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        "crashes": Limit(0.1, 1.0),
        "errors": Limit(0.01, 0.05),
        "latency": Limit(math.log(1.2), math.log(2.0)),
        "escalations": Limit(0.02, 0.10),
        "drift": Limit(0.10),
        "disagreement": Limit(0.01, 0.05),
        "missed": Limit(0.02),
        "invented": Limit(0.02),
        "objects": Limit(0.02),
        "surplus": Limit(0.02),
        "alarms": Limit(0.02),
        "silence": Limit(0.02),
    }
)
"""Limits of the figures for which a rollout sets none."""


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a rollout's judgement.

    Attributes:
        alpha: probability with which a model that changes nothing may be aborted, over all stages and evaluations.
        installations: share of devices on which it may fail to install or be rolled back.
        limits: by figure, replacing the defaults; see `figures.FIGURES`.
        ignored: figures that are not judged.
        promote_unseen: a stage is promoted when its time is over, whatever it could not detect, if edge answers of each
            variant were audited: for small fleets.
    """

    alpha: Annotated[float, Meta(gt=0, lt=0.5)] = 0.01
    installations: Annotated[float, Meta(gt=0, lt=1)] = 0.02
    limits: dict[str, Limit] = {}
    ignored: tuple[str, ...] = ()
    promote_unseen: bool = False

    def __post_init__(self) -> None:
        for name in (*self.limits, *self.ignored):
            if name not in FIGURES:
                raise ValueError(f"there is no figure '{name}' to judge by; there are {', '.join(FIGURES)}")

    @property
    def judged(self) -> dict[str, Limit]:
        """Returns the judged figures with their limits."""
        limits = {**DEFAULT_LIMITS, **self.limits}
        if self.promote_unseen:
            limits = {name: Limit(limit.tolerance) for name, limit in limits.items()}
        return {name: limit for name, limit in limits.items() if name not in self.ignored}

    @property
    def need_audits(self) -> bool:
        """Returns whether a model is promoted only after audits; a rollout may ignore disagreement, or find none."""
        limit = self.limits.get("disagreement", DEFAULT_LIMITS["disagreement"])
        return limit.must_detect is not None and "disagreement" not in self.ignored

    def check(self) -> None:
        """Checks that the rules can promote a stage.

        Raises:
            RequestError: they cannot.
        """
        for name, limit in self.judged.items():
            if limit.must_detect is not None and limit.must_detect <= limit.tolerance:
                raise RequestError(
                    f"A difference of {limit.must_detect:g} in {name} must be detected, but {limit.tolerance:g} is "
                    "accepted: no stage could be promoted. Give a larger `find`, or null to promote without."
                )

    def level(self, stages: int, look: int) -> float:
        """Returns the p-value at which one figure aborts; installations are a figure too."""
        return statistics.level(self.alpha, stages=stages, figures=len(self.judged) + 1, look=look)


class Verdict(Struct, frozen=True):
    """The decision on a stage, and its reason.

    Attributes:
        rule: "installations", a figure's name, "time", "unclear", "unaudited" or "sound".
        sentence: for people.
    """

    decision: StageDecision
    rule: str
    sentence: str
    look: int
    findings: tuple[FindingState, ...]


def judge(
    rules: Rules,
    *,
    stages: int,
    look: int,
    over: bool,
    installed: int,
    failed: int,
    treated: Sequence[StageDevice],
    control: Sequence[StageDevice],
    running: Sequence[StageDevice] = (),
    seed: int,
) -> Verdict:
    """Judges a stage.

    Args:
        rules: of the rollout.
        stages: number of stages of the rollout.
        look: 1 for the first evaluation of this stage.
        over: whether the stage's time is over.
        installed: number of devices that committed the model.
        failed: number of devices that could not, or went back; a device that fell silent after it accepted is included.
        treated: the stage's devices that are compared; the module docstring says which.
        control: the control group.
        running: the devices of the stage that run the model, including those that are not compared; none for a
            configuration.
        seed: of the divisions that are drawn; stored, so that the numbers can be reproduced.
    """
    level, rng = rules.level(stages, look), np.random.default_rng([seed, look])
    judged = rules.judged
    tested = [
        statistics.ClassGroups(_groups(FIGURES[name], treated, control), limit.tolerance)
        for name, limit in judged.items()
    ]
    p_values = statistics.p_values(tested, level, rng)
    findings = (
        _installations(rules.installations, installed, failed, level),
        *(_compared(*each, level) for each in zip(judged.items(), tested, p_values, strict=True)),
    )
    decided = partial(Verdict, look=look, findings=findings)
    for finding in findings:
        if finding.p_value <= finding.level:
            return decided(StageDecision.ABORT, finding.figure, _worse(finding))
    if not over:
        return decided(StageDecision.HOLD, "time", "Nothing is worse so far; the stage's time is not over.")
    if not installed:  # with few devices even that may be chance
        sentence = (
            f"Of {counted(failed, 'device')} that tried, none could install it."
            if failed
            else "No device of the stage runs the model yet."
        )
        return decided(StageDecision.HOLD, INSTALLATIONS, sentence)
    unclear = [
        one
        for one in findings
        if one.must_detect is not None and (one.detectable is None or one.detectable > one.must_detect)
    ]
    if unclear:
        blind = any(one.figure == "disagreement" for one in unclear)
        sentence = f"{_unclear(unclear)}{_without_audits(running or treated, control) if blind else ''}"
        return decided(StageDecision.HOLD, "unclear", sentence)
    if rules.need_audits and (unaudited := _unaudited(running)):
        sentence = f"Nothing that could be seen is worse.{unaudited}{WITHOUT_AUDITS}"
        return decided(StageDecision.HOLD, "unaudited", sentence)
    sentence = f"{_sound(findings)}{_audits(running, control) if running else ''}"
    return decided(StageDecision.PROMOTE, "sound", sentence)


def finite(value: float) -> float | None:
    """Returns a number as documents contain it: null if it is unknown or unbounded."""
    return value if math.isfinite(value) else None


def _installations(accepted: float, installed: int, failed: int, level: float) -> FindingState:
    """Returns the exact binomial test: the probability of `failed` failures or more, at the accepted rate."""
    tried = installed + failed
    # The probability of so few successes: computed as 1 minus the opposite, a small tail would vanish.
    p_value = max(float(cdf(installed, tried, 1 - accepted)), _SMALLEST) if failed else 1.0
    rate = failed / tried if tried else None
    return FindingState(INSTALLATIONS, rate, accepted, 0.0, p_value, level, None, (tried, 0))


def _groups(figure: Figure, treated: Sequence[StageDevice], control: Sequence[StageDevice]) -> list[statistics.Groups]:
    """Returns the groups of the classes with most weight; one group of both kinds without data if there are none."""
    devices = [*treated, *control]
    is_treated = np.arange(len(devices)) < len(treated)
    after = [figure(device.after) if device.after is not None else {} for device in devices]
    before = [figure(device.before) if device.before is not None else {} for device in devices]
    found, by_board = list[statistics.Groups](), list[statistics.Groups]()
    boards = _boards(devices)
    for name in classes_of(after)[:_CLASSES_AT_MOST] or [ALL]:
        table = np.asarray([values.get(name, values.get(ALL, (0.0, 0.0))) for values in after], np.float64).reshape(
            -1, 2
        )
        past = np.asarray([values[name].value if name in values else math.nan for values in before], np.float64)
        found.append(statistics.Groups(table[:, 0], table[:, 1], past, is_treated, name))
        for board, there in boards.items():
            by_board.append(statistics.Groups(table[:, 0], table[:, 1] * there, past, is_treated, name, board))
    by_board.sort(key=lambda groups: -groups.weights.sum())
    return found + by_board[:_BOARDS_AT_MOST]


def _boards(devices: Sequence[StageDevice]) -> dict[str, NDArray[np.bool_]]:
    """Returns which devices have each board that a few of them have; nothing if all have the same."""
    numbers = Counter(device.board for device in devices if device.board)
    several = [board for board, number in numbers.items() if _FEWEST_OF_A_BOARD <= number < len(devices)]
    return {board: np.array([device.board == board for device in devices]) for board in several}


def _compared(named: tuple[str, Limit], tested: statistics.ClassGroups, p_value: float, level: float) -> FindingState:
    """Returns the finding for a figure: the class and board with the largest difference.

    Its limit of detection is for a difference of that class on all boards.
    """
    (name, limit), counted = named, [groups for groups in tested.classes if all(groups.counts)]
    if not counted:
        counts = tested.classes[0].counts
        return FindingState(name, None, None, limit.tolerance, p_value, level, None, counts, limit.must_detect)
    worst = max(counted, key=lambda groups: statistics.difference(groups, limit.tolerance))
    treated, control = map(finite, worst.means)
    everywhere = next(groups for groups in tested.classes if groups.name == worst.name)  # on all boards
    smallest = statistics.smallest_detectable(
        statistics.standard_error(everywhere), level / len(tested.classes), statistics.divisions(*everywhere.counts)
    )
    detectable = finite(limit.tolerance + smallest)
    return FindingState(
        name,
        treated,
        control,
        limit.tolerance,
        p_value,
        level,
        detectable,
        worst.counts,
        limit.must_detect,
        worst.name,
        worst.board,
    )


def _worse(finding: FindingState) -> str:
    chance = f"{_chance(finding.p_value)}, aborts at {finding.level:.2g}"
    on = f" on '{finding.board}'" if finding.board else ""
    changed = {"objects": f"fewer than {FALL:.0%}", "surplus": f"more than {RISE:.0%}"}.get(finding.figure)
    if changed and finding.treated is not None and finding.control is not None:
        with_, without, accepted = (
            f"{math.exp(fall):.3g}" for fall in (finding.treated, finding.control, finding.tolerance)
        )
        return (
            f"objects of '{finding.group}'{on}: {changed} of the devices' own past, by a factor of {with_} "
            f"on {counted(finding.devices[0], 'device')} with the model and {without} on {finding.devices[1]} without; "
            f"{accepted} times that would be accepted ({chance})."
        )
    of = f" '{finding.group}'" if finding.group else ""
    if finding.figure == INSTALLATIONS:
        return (
            f"{finding.treated:.1%} of {counted(finding.devices[0], 'installation')} failed, where "
            f"{finding.control:.1%} are accepted ({chance})."
        )
    return (
        f"{finding.figure}{of}{on}: {finding.treated:.4g} on {counted(finding.devices[0], 'device')} with the model, "
        f"{finding.control:.4g} on {finding.devices[1]} without; {finding.tolerance:.4g} more would be accepted "
        f"({chance})."
    )


def _chance(p: float) -> str:
    """Returns a p-value for people: never 0, and a small one as the power of ten that it is below."""
    if p >= _SHOWN:
        return f"p = {p:.2g}"
    zeros = min(_MOST_ZEROS, math.ceil(-math.log10(p)) - 1)
    return f"p < {10.0**-zeros:.{zeros}f}"


def _sound(findings: Sequence[FindingState]) -> str:
    if any(one.must_detect is not None for one in findings):
        return "Nothing is worse, and this stage would have found what it must find."
    return "Nothing that could be seen is worse, and nothing had to be found."


def _unclear(findings: Sequence[FindingState]) -> str:
    parts = [f"{one.figure} ({_detects(one.detectable)}, must detect {one.must_detect:.3g})" for one in findings]
    alone = all(one.devices[1] == 0 for one in findings)
    why = " No comparison is possible without devices that are held back." if alone else ""
    return f"Nothing is worse, but too little is known yet of {', '.join(parts)}.{why}"


def _unaudited(running: Sequence[StageDevice]) -> str:
    """Returns a sentence about the variants without audited answers, with the reason; "" if all have audits."""
    audited = {device.variant for device in running if device.audited}
    unaudited = [device for device in running if device.variant and device.variant not in audited]
    if not unaudited:
        return ""
    variants = ", ".join(sorted({device.variant for device in unaudited}))
    return f" No edge answer of {variants} was audited: {_why_unaudited(unaudited)}."


def _audits(running: Sequence[StageDevice], control: Sequence[StageDevice]) -> str:
    """Returns sentences about the audits of the model's answers and about a group without audited answers."""
    counts = [each.after.counts for each in running if each.after is not None]
    audited, disagreed = (sum(getattr(each, name) for each in counts) for name in ("telling_audits", "disagreed"))
    losses = sum(each.losses for each in counts)
    mean = f", with a mean loss of {losses / audited:.3g}" if audited and losses != disagreed else ""
    found = (
        f" Of {counted(audited, 'audit')} on devices with the model, {disagreed} disagreed{mean}." if audited else ""
    )
    return f"{found}{_without_audits(running, control)}"


def _without_audits(running: Sequence[StageDevice], control: Sequence[StageDevice]) -> str:
    """Returns a sentence about a group without audited answers; "" if both groups have audits."""
    groups = {"with": running, "without": control}
    unaudited = {
        word: devices for word, devices in groups.items() if devices and not any(one.audited for one in devices)
    }
    if not unaudited:
        return ""
    why = _why_unaudited([device for devices in unaudited.values() for device in devices])
    return f" No edge answer on devices {' or '.join(unaudited)} the model was audited: {why}."


def _why_unaudited(devices: Sequence[StageDevice]) -> str:
    """Returns the reasons why these devices audit nothing, or the conditions of audits if no reason is known."""
    reasons = Counter(device.audits_off for device in devices if device.audits_off)
    why = " and ".join(f"{reason} on {counted(number, 'device')}" for reason, number in sorted(reasons.items()))
    empty = sum(device.after.counts.audited_empty for device in devices if device.after is not None)
    if empty and not why:
        return f"neither model reported an object in {counted(empty, 'audit')}"
    return why or (
        "audits need requests that are not local_only, a bundle with a full model, a link, and a budget "
        "(audit.per_hour, audit.max_share, audit.spacing_s)"
    )


def _detects(smallest: float | None) -> str:
    return "detects no difference" if smallest is None else f"detects differences from {smallest:.3g}"
