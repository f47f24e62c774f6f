"""The plan of a rollout: devices, bytes, time, detectable effects, consequences of an abort. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from firstline_core.fleet.rollout import FigurePlan, Plan, StagePlan
from firstline_core.telemetry.wording import counted
from firstline_gateway.rollouts.changes import Now, View
from firstline_gateway.rollouts.definition import Definition, DeviceState, Rollout
from firstline_gateway.rollouts.device_progress import is_there
from firstline_gateway.rollouts.evaluation import finite
from firstline_gateway.rollouts.judgement.periods import FIGURES
from firstline_gateway.rollouts.judgement.sensitivity import divisions, smallest_seen, spread_error
from firstline_gateway.rollouts.judgement.spending import LOOKS
from firstline_gateway.rollouts.judgement.verdict import Limit
from firstline_gateway.rollouts.measurements import between
from firstline_gateway.rollouts.stage_steps import meant
from firstline_gateway.rollouts.stages import divide
from firstline_gateway.rollouts.states import Command, RolloutState, open_in

_WINDOWS_H = (1, 2, 4, 8, 24, 47)
_FEWEST = 3  # devices, of which a spread says anything
_S = DeviceState


class _Spreads(NamedTuple):
    """Standard deviations between devices over the last hours, by figure; those that can be told."""

    hours: int
    of: Mapping[str, float]


def plan(definition: Definition, view: View, size_bytes: int | None, now: Now) -> Plan:
    """Returns the effects of a rollout on the current fleet.

    Args:
        definition: of the rollout.
        view: of the fleet.
        size_bytes: that one device fetches; None if unknown.
        now: the time.
    """
    # Without a salt the rollout's id, which it has not got yet, would divide: the numbers are what another salt gives.
    rollout = Rollout("plan", definition, RolloutState.DRAFT, "", now.wall_s, seed=0)
    devices = meant(rollout, view)
    spreads = _spreads(definition.measured, [name for name, _ in devices], view, now)
    stages, taken = [], set[str]()
    for number, stage in enumerate(definition.stages):
        divided = divide(rollout.salt, definition.stages, number, devices, definition.held_back)
        treated = [name for name in divided.treated if name not in taken]
        control = [name for name in divided.control if name not in taken]
        taken |= set(treated)
        there = [
            sum(is_there(view.devices[name], definition.silent_s) for name in names) for names in (treated, control)
        ]
        offered_s = max(0, len(treated) - 1) / stage.per_minute * 60 if stage.per_minute is not None else 0.0
        level = definition.rules.level(len(definition.stages) + 1, LOOKS)
        stages.append(
            StagePlan(
                stage=number,
                devices=len(treated),
                away=len(treated) - there[0],
                control=len(control),
                bytes=size_bytes * len(treated) if size_bytes is not None else None,
                offered_s=offered_s,
                earliest_s=offered_s + stage.soak_s,
                figures=tuple(
                    _figure(name, limit, spreads, soak_s=stage.soak_s, groups=(there[0], there[1]), level=level)
                    for name, limit in definition.rules.judged.items()
                ),
            )
        )
    rest = len(devices) - len(taken)
    last = definition.stages[-1]
    rest_s = max(0, rest - 1) / last.per_minute * 60 if last.per_minute is not None else 0.0
    return Plan(
        devices=len(devices),
        rest=rest,
        bytes=size_bytes * len(devices) if size_bytes is not None else None,
        earliest_s=sum(stage.earliest_s for stage in stages) + rest_s,
        stages=tuple(stages),
        supersedes=(),
        abort="Those done keep the new version, those under way stop and keep the old one, those waiting hear nothing.",
        rollback="Those done and those under way run again what they ran before, those waiting hear nothing.",
        warnings=tuple(_warnings(definition, len(devices))),
    )


def consequences(rollout: Rollout, counts: Mapping[str, int]) -> dict[str, str]:
    """Returns the effect of each allowed command on the devices now.

    Args:
        rollout: as it stands.
        counts: its devices by state, without those that are left alone.
    """
    waiting, done = counts.get(_S.WAITING, 0), counts.get(_S.DONE, 0)
    running = sum(counts.get(each, 0) for each in (_S.OFFERED, _S.UNDER_WAY, _S.AWAY, _S.SILENT))
    again = sum(counts.get(each, 0) for each in (_S.FAILED, _S.SILENT, _S.WITHDRAWN))
    ended = f"stopped under way: {running}; waiting, never told: {waiting}."
    found = {
        Command.APPROVE: "It can be started then; nothing happens to devices before.",
        Command.START: f"{_follows(rollout, 0)} A rollout of {rollout.definition.bundle} that runs is aborted.",
        Command.PAUSE: f"Nothing more is begun; waiting, told nothing: {waiting}; under way, going on: {running}.",
        Command.RESUME: f"It goes on where it was paused; waiting, offered the model: {waiting}.",
        Command.PROMOTE: f"The stage is taken for sound at your word. {_follows(rollout, rollout.stage + 1)}",
        Command.RETRY: f"The model is offered again to {counted(again, 'device')} (failed, silent or withdrawn).",
        Command.ABORT: f"The new version stays on {counted(done, 'device')}; {ended}",
        Command.ROLLBACK: f"What ran before runs again on {counted(done, 'device')}; {ended}",
    }
    return {command: found[command] for command in open_in(rollout.state)}


def for_nobody(definition: Definition, devices: int) -> tuple[str, ...]:
    """A warning where a rollout is for so many devices as none: later devices may still match."""
    if devices:
        return ()
    which = f"matches {definition.selector}" if definition.selector else "belongs to the fleet"
    return (f"No device {which} now, so that nobody would try the model.",)


def _warnings(definition: Definition, devices: int) -> Iterable[str]:
    """Returns the effects that a rollout's stages cannot detect, and the stages without devices."""
    yield from for_nobody(definition, devices)
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


def _follows(rollout: Rollout, number: int) -> str:
    stages = rollout.definition.stages
    if number > len(stages):
        return "The rollout is complete."
    if number == len(stages):
        return "The devices that were held back are offered the model."
    stage = stages[number]
    group = f" of those tagged {stage.group}" if stage.group else ""
    return f"Stage {number + 1} of {len(stages)} begins, with {100 * stage.share:.4g} % of the devices{group}."


def _spreads(bundle: str, names: Sequence[str], view: View, now: Now) -> list[_Spreads]:
    end, found = view.totals(names), []
    for hours in _WINDOWS_H:
        start = view.totals_before(names, now.wall_s - hours * 3600)
        periods = [between(bundle, start[name], end[name]) for name in names if name in start and name in end]
        values = {
            name: [told[0] for period in periods if period is not None and (told := figure(period)) is not None]
            for name, figure in FIGURES.items()
        }
        known = {name: float(np.std(one, ddof=1)) for name, one in values.items() if len(one) >= _FEWEST}
        if known:
            found.append(_Spreads(hours, known))
    return found


def _figure(
    name: str, limit: Limit, spreads: Iterable[_Spreads], *, soak_s: float, groups: tuple[int, int], level: float
) -> FigurePlan:
    """Returns the smallest effects that a stage can detect, from the devices' differences over an equal time."""
    seen: dict[int, tuple[float, float]] = {}
    for hours, of in spreads:
        if name in of:
            error = spread_error(of[name], *groups)
            smallest = smallest_seen(error, level, divisions(*groups)) if math.isfinite(error) else math.inf
            seen[hours] = of[name], limit.tolerance + smallest
    soak_h = soak_s / 3600
    fitting = [hours for hours in seen if hours <= max(soak_h, 1)]
    spread, smallest = seen[max(fitting)] if fitting else (math.nan, math.inf)
    enough = [hours for hours, (_, found) in seen.items() if limit.find is not None and found <= limit.find]
    return FigurePlan(
        figure=name,
        tolerance=limit.tolerance,
        find=limit.find,
        spread=finite(spread),
        seen=finite(smallest),
        after_s=min(enough) * 3600.0 if enough else None,
    )
