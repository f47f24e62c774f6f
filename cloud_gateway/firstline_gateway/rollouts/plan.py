"""The plan of a rollout: devices, bytes, time, detectable effects, consequences of an abort. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest

import numpy as np

from firstline_core.fleet.rollout_documents import FigurePlan, Plan, StagePlan
from firstline_core.telemetry.wording import counted, duration_text, rounded
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.device_progress import DeviceView, is_reachable
from firstline_gateway.rollouts.judgement import statistics
from firstline_gateway.rollouts.judgement.figures import BEFORE_S, FIGURES, ByClass, against_past, between, classes_of
from firstline_gateway.rollouts.judgement.verdict import WITHOUT_AUDITS, Limit, finite
from firstline_gateway.rollouts.rollout import Definition, Rollout, RolloutState, Stage, divide, place
from firstline_gateway.rollouts.step import StepTime, StepView, selected

_WINDOWS_H = (1, 2, 4, 8, 24, 47)
_FALLS_H = 23  # of which the day before is known too
_FEWEST = 3  # devices for a meaningful standard deviation
_SAMPLED = 2000  # devices whose past is read: a standard deviation of as many has an error of 2 %

_Spreads = Mapping[int, Mapping[str, float]]
"""Known standard deviations between devices over the last hours, by hours and figure."""


def plan(
    definition: Definition,
    view: StepView,
    size_bytes: int | None,
    now: StepTime,
    *,
    delta: float,
    contracts: int,
    has_full_model: bool = True,
) -> Plan:
    """Returns the effects of a rollout on the current fleet.

    Args:
        definition: of the rollout.
        view: of the fleet.
        size_bytes: that one device fetches; None if unknown.
        now: the time.
        delta: the probability with which a contract that holds may ever alarm.
        contracts: number of contracts of the version.
        has_full_model: whether the version has a full model, which audits its edge answers.
    """
    rollout = Rollout("plan", definition, RolloutState.DRAFT, "", now.wall_s, seed=0)
    devices = selected(rollout, view)
    sample = nsmallest(_SAMPLED, (name for name, _ in devices), key=lambda name: place(definition.places_salt, name))
    spreads = _spreads(definition.judged_bundle, sample, view, now)
    level = definition.rules.level(len(definition.stages) + 1, statistics.LOOKS_PER_STAGE)
    stages, taken = [], set[str]()
    for number, stage in enumerate(definition.stages):
        treated, control, _ = divide(definition.places_salt, stage, devices, definition.held_back, taken)
        taken |= set(treated)
        sizes = _reachable(treated, view, definition), _reachable(control, view, definition)
        offered_s = _offered_s(stage, len(treated))
        figures = tuple(
            _figure(name, limit, spreads, soak_s=stage.soak_s, groups=sizes, level=level)
            for name, limit in definition.rules.judged.items()
        )
        stages.append(
            StagePlan(
                stage=number,
                devices=len(treated),
                away=len(treated) - sizes[0],
                control=len(control),
                bytes=size_bytes * len(treated) if size_bytes is not None else None,
                offered_s=offered_s,
                earliest_s=_earliest_s(offered_s, stage, figures),
                figures=figures,
            )
        )
    rest = len(devices) - len(taken)
    sees = any(figure.detectable is not None for stage in stages for figure in stage.figures)
    times = [stage.earliest_s for stage in stages]
    rest_s = _offered_s(definition.stages[-1], rest)
    return Plan(
        devices=len(devices),
        rest=rest,
        bytes=size_bytes * len(devices) if size_bytes is not None else None,
        earliest_s=sum(filter(None, times)) + rest_s if sees and None not in times else None,
        stages=tuple(stages),
        supersedes=(),
        abort="Devices that are done keep the new version, those under way the old one. Those waiting get no offer.",
        rollback="Devices that are done or under way return to the previous version. Those waiting get no offer.",
        warnings=tuple(_warnings(definition, len(devices))),
        audits=_audits(definition, stages[0], sample, view, level=level, now=now),
        unaudited=_unaudited(definition, [view.devices[name] for name, _ in devices], has_full_model=has_full_model),
        sees=sees,
        detects=_detects(stages, definition),
        false_aborts=_false_aborts(definition.rules.alpha, delta, contracts),
    )


def _false_aborts(alpha: float, delta: float, contracts: int) -> str:
    most = min(1.0, alpha + contracts * delta)
    alarms = {
        0: "no contract can alarm",
        1: f"{delta:.3g} by the alarm of its contract on the gateway (contracts.delta)",
    }
    several = f"{delta:.3g} by the alarm of each of its {contracts} contracts on the gateway (contracts.delta)"
    own = " A device's own alarm has the delta of its certificate, and aborts nothing." if contracts else ""
    return (
        f"A model that changes nothing is aborted with a probability of at most {most:.3g}: {alpha:.3g} by the "
        f"comparison of its stages (alpha), and {alarms.get(contracts, several)}.{own}"
    )


def _earliest_s(offered_s: float, stage: Stage, figures: Sequence[FigurePlan]) -> float | None:
    """Returns the time until a stage can be promoted; None if it cannot, as far as the fleet's past shows."""
    soak_s = stage.soak_s
    for figure in figures:
        if figure.must_detect is not None and (figure.detectable is None or figure.detectable > figure.must_detect):
            if figure.after_s is None:
                return None
            soak_s = max(soak_s, figure.after_s)
    return offered_s + soak_s


def _detects(stages: Sequence[StagePlan], definition: Definition) -> str:
    """Returns in one sentence what the judgement of these stages can detect, and when."""
    names = list(definition.rules.judged)
    found, unseen, elapsed_s = list[str](), names, 0.0
    for stage, rules in zip(stages, definition.stages, strict=True):
        elapsed_s += stage.offered_s + rules.soak_s
        seen = {figure.figure: figure.detectable for figure in stage.figures if figure.detectable is not None}
        new = [f"{name} (+{rounded(seen[name])})" for name in unseen if name in seen]
        if new:
            found.append(f"{', '.join(new)} in stage {stage.stage + 1}, after {duration_text(elapsed_s)}")
        unseen = [name for name in unseen if name not in seen]
    if found:
        blind = f", and cannot detect {', '.join(unseen)}" if unseen else ""
        return f"This fleet can detect a rise of {'; of '.join(found)}{blind}."
    return (
        f"This fleet can detect nothing by comparison, because {_blindness(stages, definition)}: only failed "
        "installations and the alarm of a contract can abort the rollout."
    )


def _blindness(stages: Sequence[StagePlan], definition: Definition) -> str:
    """Returns why no stage detects anything."""
    if not definition.rules.judged:
        return "its rules ignore all figures"
    if not any(stage.devices - stage.away and stage.control for stage in stages):
        return "no stage has both a device that would run the model and one that would not"
    if not any(figure.spread is not None for stage in stages for figure in stage.figures):
        return f"fewer than {counted(_FEWEST, 'device')} have reported counts for the length of a stage"
    return "its groups are too small for a difference to be more than chance"


def _unaudited(definition: Definition, devices: Sequence[DeviceView], *, has_full_model: bool) -> str:
    """Returns why a stage will be held without audits, in a sentence; "" if nothing known prevents them."""
    off = sorted({device.audits_off for device in devices if device.audits_off})
    if not definition.needs_audits or (has_full_model and not off):
        return ""
    number = counted(sum(bool(device.audits_off) for device in devices), "device")
    because = f"{' or '.join(off)} is 0 on {number}" if has_full_model else f"{definition.title} has no full model"
    return f"A stage whose edge answers are not audited is held, and {because}.{WITHOUT_AUDITS}"


def _audits(
    definition: Definition, stage: StagePlan, names: Sequence[str], view: StepView, *, level: float, now: StepTime
) -> str:
    """Returns how many audits the first stage needs, and how many its devices make, in a sentence; "" if it needs none.

    The rate is that of the named devices. Only audits in which an event can occur count, such as those of frames with
    objects.
    """
    limit = definition.rules.judged.get("disagreement")
    treated = stage.devices - stage.away
    if not definition.needs_audits or limit is None or limit.must_detect is None or not treated or not stage.control:
        return ""
    end, start = view.totals(names), view.totals_before(names, now.wall_s - BEFORE_S)
    found = [between(definition.judged_bundle, start.get(name, Totals()), end[name]) for name in names if name in end]
    periods = [period for period in found if period is not None]
    telling, audited, losses = (
        sum(getattr(period.counts, name) for period in periods) for name in ("telling_audits", "audited", "losses")
    )
    hours = sum(period.hours for period in periods)
    share = min(1.0, max(losses / telling if telling else 0.0, limit.must_detect))
    # The standard error of a difference of shares, if the devices do not differ.
    reach = statistics.smallest_detectable(1.0, level, statistics.divisions(treated, stage.control)) / (
        limit.must_detect - limit.tolerance
    )
    if not hours or not math.isfinite(reach):
        return ""
    needed = math.ceil(share * (1 - share) * (1 + treated / stage.control) * reach**2)
    soak_s = definition.stages[stage.stage].soak_s
    expected = telling / hours * treated * soak_s / 3600
    return (
        f"To detect {limit.must_detect:g} more disagreement, the devices of stage {stage.stage + 1} need at least "
        f"{counted(needed, 'audit')} in which an event can occur, such as of a frame with an object. At the rate of "
        f"the last day ({telling:,} of {counted(audited, 'audit')}) they make {rounded(expected)} "
        f"in {duration_text(soak_s)}."
    )


def no_device_warning(definition: Definition) -> tuple[str, ...]:
    """Returns the warning about a rollout that selects no device at present; later devices may still match."""
    which = f"matches {definition.selector}" if definition.selector else "belongs to the fleet"
    return (f"No device {which} now, so no device would try the model.",)


def _warnings(definition: Definition, devices: int) -> Iterable[str]:
    """Yields the effects that a rollout's stages cannot detect, and a warning if it selects no device."""
    if not devices:
        yield from no_device_warning(definition)
    if "silence" not in definition.rules.judged:
        return
    short = [str(number) for number, each in enumerate(definition.stages, 1) if each.soak_s <= definition.silent_s]
    if short:
        which = f"Stage {short[0]} is" if len(short) == 1 else f"Stages {', '.join(short)} are"
        yield (
            f"{which} observed for no longer than the {definition.silent_s:g} s (silent_s) after which a device is "
            "silent: a model that takes devices down is not seen by their silence. Observe for longer, or give a "
            "smaller silent_s."
        )


def _reachable(names: Iterable[str], view: StepView, definition: Definition) -> int:
    return sum(is_reachable(view.devices[name], definition.silent_s) for name in names)


def _offered_s(stage: Stage, devices: int) -> float:
    """Returns the time until the last of a stage's devices is offered the model."""
    return max(0, devices - 1) / stage.per_minute * 60 if stage.per_minute is not None else 0.0


def _spreads(bundle: str, names: Sequence[str], view: StepView, now: StepTime) -> _Spreads:
    end, spreads = view.totals(names), {}
    for hours in _WINDOWS_H:
        start = view.totals_before(names, now.wall_s - hours * 3600)
        past = view.totals_before(names, now.wall_s - hours * 3600 - BEFORE_S) if hours <= _FALLS_H else {}
        before = {name: between(bundle, past[name], start[name]) for name in names if name in past and name in start}
        periods = [
            against_past(earlier, period) if (earlier := before.get(name)) is not None else period
            for name in names
            if name in start and name in end and (period := between(bundle, start[name], end[name])) is not None
        ]
        spreads[hours] = {
            name: float(np.std(values, ddof=1))
            for name, figure in FIGURES.items()
            if len(values := _values([figure(period) for period in periods])) >= _FEWEST
        }
    return spreads


def _values(by_class: Sequence[ByClass]) -> list[float]:
    """Returns a figure's values on the devices that report it; of a figure by class, those of the most frequent one."""
    return [values[name].value for name in classes_of(by_class)[:1] for values in by_class if name in values]


def _figure(
    name: str, limit: Limit, spreads: _Spreads, *, soak_s: float, groups: tuple[int, int], level: float
) -> FigurePlan:
    """Returns the smallest effect that a stage can detect, from the devices' differences over an equal time."""
    detectable: dict[int, tuple[float, float]] = {}
    for hours, by_figure in spreads.items():
        if name in by_figure:
            smallest = statistics.smallest_detectable(
                statistics.spread_error(by_figure[name], *groups), level, statistics.divisions(*groups)
            )
            detectable[hours] = by_figure[name], limit.tolerance + smallest
    fitting = [hours for hours in detectable if hours <= max(soak_s / 3600, 1)]
    spread, smallest = detectable[max(fitting)] if fitting else (math.nan, math.inf)
    wanted = limit.must_detect
    enough = [hours for hours, (_, size) in detectable.items() if wanted is not None and size <= wanted]
    return FigurePlan(
        figure=name,
        tolerance=limit.tolerance,
        must_detect=wanted,
        spread=finite(spread),
        detectable=finite(smallest),
        after_s=min(enough) * 3600.0 if enough else None,
    )
