"""All figures together: a stage is promoted, held or aborted, and says by which rule and numbers.

- **abort**: more installations failed than are accepted, or a figure is worse than the control's by more than its
  tolerance, at the p-value that this look may abort at.
- **hold**: nothing is worse so far as one can see, but its time is not over, or of a figure too little is known to have
  seen the difference that the rollout is to find.
- **promote**: its time is over, and all that was to be found would have been.

Both groups are as chance made them: all devices of the stage that were there to be offered the model, whether they run
it by now or went back, and all of its control that were there then. Whoever left out those on which it failed would
compare the healthy ones of one group with all of the other. Both are observed from the same moment on, when the stage's
installations have ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from firstline_core.routing.binomial import cdf
from firstline_gateway.rollouts.judgement.periods import FIGURES, Figure, Period
from firstline_gateway.rollouts.judgement.permutation import Groups, p_value
from firstline_gateway.rollouts.judgement.sensitivity import divisions, smallest_seen, standard_error
from firstline_gateway.rollouts.judgement.spending import level

INSTALLATIONS = "installations"


class Decision(StrEnum):
    """What becomes of a stage."""

    PROMOTE = "promote"
    HOLD = "hold"
    ABORT = "abort"


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """What of one figure is accepted.

    Attributes:
        tolerance: so much worse than the control's is accepted, in the figure's unit.
        find: a stage is not promoted before it would have found a difference of this; None promotes without.
    """

    tolerance: Annotated[float, Meta(ge=0)]
    find: Annotated[float, Meta(gt=0)] | None = None


DEFAULT_LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        "crashes": Limit(0.1, 1.0),
        "errors": Limit(0.01, 0.05),
        "latency": Limit(math.log(1.2), math.log(2.0)),
        "escalations": Limit(0.02, 0.10),
        "drift": Limit(0.10),
        "disagreement": Limit(0.01, 0.05),
        "alarms": Limit(0.02),
    }
)


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """By what a rollout is judged.

    Attributes:
        alpha: the probability with which a model that changes nothing may be aborted, over all stages and looks.
        installations: the share of devices on which it may fail to install or be rolled back.
        limits: by figure, over the defaults; see `periods.FIGURES`.
        ignored: figures that are not looked at.
    """

    alpha: Annotated[float, Meta(gt=0, lt=0.5)] = 0.01
    installations: Annotated[float, Meta(gt=0, lt=1)] = 0.02
    limits: dict[str, Limit] = {}
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.limits, *self.ignored):
            if name not in FIGURES:
                raise ValueError(f"there is no figure '{name}' to judge by; there are {', '.join(FIGURES)}")

    @property
    def judged(self) -> dict[str, Limit]:
        """The figures that are looked at, with their limits."""
        found = {**DEFAULT_LIMITS, **self.limits}
        return {name: limit for name, limit in found.items() if name not in self.ignored}

    def level(self, stages: int, look: int) -> float:
        """The p-value at which one figure aborts; installations are a figure too."""
        return level(self.alpha, stages=stages, figures=len(self.judged) + 1, look=look)


class Device(Struct, frozen=True):
    """One device in one stage.

    Attributes:
        after: since the stage's installations have ended; None while nothing came.
        before: a time before the stage; None where nothing is known of it.
    """

    after: Period | None
    before: Period | None = None


class Finding(Struct, frozen=True):
    """What one figure says.

    Attributes:
        treated: weighted mean over the devices with the model; NaN where none tells.
        control: of those without; for installations what is accepted.
        difference: the one less the other, beyond the tolerance where positive and large.
        p_value: of "not worse by more than the tolerance"; 1 where nothing can be said.
        level: aborts at or below it.
        seen: the smallest difference that would have been found by now, the tolerance included.
        devices: how many tell, treated and control.
    """

    figure: str
    treated: float
    control: float
    tolerance: float
    p_value: float
    level: float
    seen: float
    devices: tuple[int, int]
    find: float | None = None

    @property
    def difference(self) -> float:
        return self.treated - self.control

    @property
    def worse(self) -> bool:
        return self.p_value <= self.level

    @property
    def unclear(self) -> bool:
        return self.find is not None and not self.seen <= self.find


class Verdict(Struct, frozen=True):
    """What becomes of a stage, and why.

    Attributes:
        rule: "installations", a figure's name, "time", "unclear" or "sound".
        sentence: for people.
    """

    decision: Decision
    rule: str
    sentence: str
    look: int
    findings: tuple[Finding, ...]


def judge(
    rules: Rules,
    *,
    stages: int,
    look: int,
    over: bool,
    installed: int,
    failed: int,
    treated: Sequence[Device],
    control: Sequence[Device],
    seed: int,
) -> Verdict:
    """Looks at a stage.

    Args:
        rules: the rollout's.
        stages: of the rollout.
        look: 1 for this stage's first.
        over: whether the stage's time is over.
        installed: devices that committed the model.
        failed: devices that could not, or went back; a device that fell silent after it accepted is one of them.
        treated: the stage's devices, see above.
        control: those that were left alone meanwhile.
        seed: of the divisions that are drawn, kept with the verdict's numbers so that they can be had again.
    """
    share, rng = rules.level(stages, look), np.random.default_rng([seed, look])
    findings = [_installations(rules.installations, installed, failed, share)]
    for name, limit in rules.judged.items():
        groups = _groups(FIGURES[name], treated, control)
        findings.append(_compared(name, limit, groups, share, rng))
    found = tuple(findings)
    for finding in found:
        if finding.worse:
            return Verdict(Decision.ABORT, finding.figure, _worse(finding), look, found)
    if not over:
        return Verdict(Decision.HOLD, "time", "Nothing is worse so far; the stage's time is not over.", look, found)
    unclear = [finding for finding in found if finding.unclear]
    if unclear:
        return Verdict(Decision.HOLD, "unclear", _unclear(unclear), look, found)
    return Verdict(
        Decision.PROMOTE, "sound", "Nothing is worse, and what was to be found would have been.", look, found
    )


def _installations(accepted: float, installed: int, failed: int, share: float) -> Finding:
    """The exact binomial test: so many failures or more, at the accepted rate."""
    tried = installed + failed
    p = 1.0 - float(cdf(failed - 1, tried, accepted)) if failed else 1.0
    rate = failed / tried if tried else math.nan
    return Finding(INSTALLATIONS, rate, accepted, 0.0, p, share, math.nan, (tried, 0))


def _groups(figure: Figure, treated: Sequence[Device], control: Sequence[Device]) -> Groups:
    """The figure of all devices that have one."""
    rows: list[tuple[float, float, float, bool]] = []
    for devices, is_treated in ((treated, True), (control, False)):
        for device in devices:
            after = figure(device.after) if device.after is not None else None
            if after is not None:
                before = figure(device.before) if device.before is not None else None
                rows.append((*after, before[0] if before is not None else math.nan, is_treated))
    table = np.asarray(rows, np.float64).reshape(-1, 4)
    return Groups(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool))


def _compared(name: str, limit: Limit, groups: Groups, share: float, rng: np.random.Generator) -> Finding:
    counts = groups.counts
    if not all(counts):
        nothing = math.nan, math.nan
        return Finding(name, *nothing, limit.tolerance, 1.0, share, math.inf, counts, limit.find)
    p = p_value(groups, limit.tolerance, share, rng)
    seen = limit.tolerance + smallest_seen(standard_error(groups), share, divisions(*counts))
    return Finding(name, *groups.means, limit.tolerance, p, share, seen, counts, limit.find)


def _worse(finding: Finding) -> str:
    if finding.figure == INSTALLATIONS:
        return (
            f"{finding.treated:.1%} of {finding.devices[0]} installations failed, where {finding.control:.1%} are "
            f"accepted (p = {finding.p_value:.2g}, aborts at {finding.level:.2g})."
        )
    return (
        f"{finding.figure}: {finding.treated:.4g} on {finding.devices[0]} devices with the model, "
        f"{finding.control:.4g} on {finding.devices[1]} without; {finding.tolerance:.4g} more would be accepted "
        f"(p = {finding.p_value:.2g}, aborts at {finding.level:.2g})."
    )


def _unclear(findings: Sequence[Finding]) -> str:
    parts = [f"{one.figure} (would see {one.seen:.3g}, is to see {one.find:.3g})" for one in findings]
    return f"Nothing is worse, but too little is known yet of {', '.join(parts)}."
