"""All figures together: a stage is promoted, held or aborted, and says by which rule and numbers.

- **abort**: more installations failed than are accepted, or a figure is worse than the control's by more than its
  tolerance, at the p-value that this look may abort at.
- **hold**: nothing is worse so far as one can see, but its time is not over, or of a figure too little is known to have
  seen the difference that the rollout is to find; or the few devices that tried could none of them install it.
- **promote**: its time is over, and all that was to be found would have been.

Both groups are as chance made them: all devices of the stage that were there to be offered the model, whether they run
it by now or went back, and all of its control that were there then. Leaving out failed devices would compare the
healthy devices of one group with all of the other. Both are observed from the same moment on, when the stage's
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

from firstline_core.errors import RequestError
from firstline_core.routing.binomial import cdf
from firstline_core.telemetry.wording import counted
from firstline_gateway.rollouts.judgement.periods import FIGURES, Figure, Period
from firstline_gateway.rollouts.judgement.permutation import Groups, p_values
from firstline_gateway.rollouts.judgement.sensitivity import divisions, smallest_seen, standard_error
from firstline_gateway.rollouts.judgement.spending import level

INSTALLATIONS = "installations"

_SMALLEST = 1e-300  # no p-value is 0, and whoever shows or keeps it need not think of that
_SHOWN = 0.001
_MOST_ZEROS = 9


class Decision(StrEnum):
    """The decision on a stage."""

    PROMOTE = "promote"
    HOLD = "hold"
    ABORT = "abort"


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """The tolerance of one figure.

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
        "silence": Limit(0.02),
    }
)
"""The one home of what is accepted, and of what is to be found, where a rollout does not say."""


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """By what a rollout is judged.

    Attributes:
        alpha: the probability with which a model that changes nothing may be aborted, over all stages and looks.
        installations: the share of devices on which it may fail to install or be rolled back.
        limits: by figure, over the defaults; see `periods.FIGURES`.
        ignored: figures that are not looked at.
        promote_unseen: a stage is promoted when its time is over, whatever it could not see: for small fleets.
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
        """The figures that are looked at, with their limits."""
        found = {**DEFAULT_LIMITS, **self.limits}
        if self.promote_unseen:
            found = {name: Limit(limit.tolerance) for name, limit in found.items()}
        return {name: limit for name, limit in found.items() if name not in self.ignored}

    def check(self) -> None:
        """Whether a stage can ever be promoted by them.

        Raises:
            RequestError: it cannot, and why.
        """
        for name, limit in self.judged.items():
            if limit.find is not None and limit.find <= limit.tolerance:
                raise RequestError(
                    f"Of {name}, {limit.find:g} is to be found and {limit.tolerance:g} is accepted: no stage could "
                    "ever tell. Give a larger `find`, or null to promote without."
                )

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
    """The finding of one figure.

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
    """The decision on a stage, and its reason.

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
    judged = rules.judged
    groups = [_groups(FIGURES[name], treated, control) for name in judged]
    chances = p_values([(one, limit.tolerance) for one, limit in zip(groups, judged.values(), strict=True)], share, rng)
    findings = [_installations(rules.installations, installed, failed, share)]
    for (name, limit), one, chance in zip(judged.items(), groups, chances, strict=True):
        findings.append(_compared(name, limit, one, chance, share))
    found = tuple(findings)
    for finding in found:
        if finding.worse:
            return Verdict(Decision.ABORT, finding.figure, _worse(finding), look, found)
    if not over:
        return Verdict(Decision.HOLD, "time", "Nothing is worse so far; the stage's time is not over.", look, found)
    if failed and not installed:  # of few devices even that may be chance, and yet nobody runs what is judged
        sentence = f"Of {counted(failed, 'device')} that tried, none could install it."
        return Verdict(Decision.HOLD, INSTALLATIONS, sentence, look, found)
    unclear = [finding for finding in found if finding.unclear]
    if unclear:
        return Verdict(Decision.HOLD, "unclear", _unclear(unclear), look, found)
    return Verdict(Decision.PROMOTE, "sound", _sound(found), look, found)


def _installations(accepted: float, installed: int, failed: int, share: float) -> Finding:
    """The exact binomial test: so many failures or more, at the accepted rate."""
    tried = installed + failed
    # So few successes: the small tail by itself, of which nothing is lost against one.
    p = max(float(cdf(installed, tried, 1 - accepted)), _SMALLEST) if failed else 1.0
    rate = failed / tried if tried else math.nan
    return Finding(INSTALLATIONS, rate, accepted, 0.0, p, share, math.nan, (tried, 0))


def _groups(figure: Figure, treated: Sequence[Device], control: Sequence[Device]) -> Groups:
    """The figure of all devices."""
    rows: list[tuple[float, float, float, bool]] = []
    for devices, is_treated in ((treated, True), (control, False)):
        for device in devices:
            after = figure(device.after) if device.after is not None else None
            before = figure(device.before) if device.before is not None else None
            rows.append((*(after or (0.0, 0.0)), before[0] if before is not None else math.nan, is_treated))
    table = np.asarray(rows, np.float64).reshape(-1, 4)
    return Groups(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool))


def _compared(name: str, limit: Limit, groups: Groups, chance: float, share: float) -> Finding:
    counts = groups.counts
    seen = math.inf
    if all(counts):
        seen = limit.tolerance + smallest_seen(standard_error(groups), share, divisions(*counts))
    means = groups.means if all(counts) else (math.nan, math.nan)
    return Finding(name, *means, limit.tolerance, chance, share, seen, counts, limit.find)


def _worse(finding: Finding) -> str:
    chance = f"{_chance(finding.p_value)}, aborts at {finding.level:.2g}"
    if finding.figure == INSTALLATIONS:
        return (
            f"{finding.treated:.1%} of {counted(finding.devices[0], 'installation')} failed, where "
            f"{finding.control:.1%} are accepted ({chance})."
        )
    return (
        f"{finding.figure}: {finding.treated:.4g} on {counted(finding.devices[0], 'device')} with the model, "
        f"{finding.control:.4g} on {finding.devices[1]} without; {finding.tolerance:.4g} more would be accepted "
        f"({chance})."
    )


def _chance(p: float) -> str:
    """A p-value for people: none is 0, and of a small one the power of ten that it is below says enough."""
    if p >= _SHOWN:
        return f"p = {p:.2g}"
    zeros = min(_MOST_ZEROS, math.ceil(-math.log10(p)) - 1)
    return f"p < {10.0**-zeros:.{zeros}f}"


def _sound(findings: Sequence[Finding]) -> str:
    if any(one.find is not None for one in findings):
        return "Nothing is worse, and what was to be found would have been."
    return "Nothing that could be seen is worse, and nothing had to be found."


def _unclear(findings: Sequence[Finding]) -> str:
    parts = [f"{one.figure} (would see {one.seen:.3g}, is to see {one.find:.3g})" for one in findings]
    return f"Nothing is worse, but too little is known yet of {', '.join(parts)}."
