"""One picture for each part, as PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pictures
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import PercentFormatter

from routing import alarm, contract, on_budget, on_time, value
from routing.margins import most

mpl.use("Agg")
mpl.rcParams |= pictures.STYLE

COLOURS = {
    "value": "#0b5fa5",
    "certified": "#2a9d8f",
    "threshold": "#e09f3e",
    "sedna": "#9e2a2b",
    "groundlight": "#7b5ea7",
    "random": "#8d99ae",
    "edge_only": "#444444",
    "cloud_only": "#bc6c25",
    "oracle": "#000000",
}
_ENDS = ("oracle", "random")  # what every policy lies between
_SHIFTS = {"labels": "#0b5fa5", "blur": "#2a9d8f", "noise": "#9e2a2b", "other images": "#8d99ae"}
_MARKERS = dict(zip(COLOURS, "os^Dv.XP*", strict=True))


def draw(part: str, records: Sequence[Any], folder: Path) -> None:
    """Draws what there is to see of a part; nothing for parts without a picture, or records."""
    for name, picture in _PICTURES.get(part, {}).items():
        if records:
            pictures.save(picture(records), folder / f"{name}.png", colours=128)


def _pairs(records: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(one.pair for one in records))


def broken(records: Sequence[contract.Tally]) -> Picture:
    """How often promises were broken: certified, and tuned naively."""
    pools = list(dict.fromkeys(one.pool for one in records))
    picture, panels = plt.subplots(1, len(pools), figsize=(4 * len(pools) + 1, 5.2), sharey=True, layout="constrained")
    for axes, pool in zip(np.atleast_1d(panels), pools, strict=True):
        shown = sorted(
            (one for one in records if one.pool == pool), key=lambda one: (one.loss, one.n, one.epsilon, one.delta)
        )
        at = np.arange(len(shown))
        for position, one in enumerate(shown):
            allowed = most(one.calibrations, one.delta) / one.calibrations
            axes.plot([0, allowed], [position, position], color="#d8e3ee", linewidth=7, solid_capstyle="butt", zorder=1)
        axes.plot([], [], color="#d8e3ee", linewidth=7, label="allowed: delta and its margin")
        axes.scatter([one.broken / one.calibrations for one in shown], at, color=COLOURS["value"], label="certified")
        naive = [one.naive_broken / one.calibrations for one in shown]
        axes.scatter(naive, at, color=COLOURS["sedna"], marker="x", label="tuned naively", zorder=3)
        axes.set_yticks(at, [f"{one.loss} ≤ {one.epsilon:.0%} at {1 - one.delta:.0%}, {one.n} rows" for one in shown])
        axes.set(title=pool, xlabel="calibrations that broke the promise", xlim=(-0.01, None))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    np.atleast_1d(panels)[0].invert_yaxis()
    _legend(picture, np.atleast_1d(panels)[0])
    return picture


def power(records: Sequence[contract.Tally]) -> Picture:
    """Share kept, of what an oracle's threshold keeps."""
    pools = list(dict.fromkeys(one.pool for one in records))
    picture, panels = plt.subplots(1, len(pools), figsize=(4 * len(pools) + 1, 4), sharey=True, layout="constrained")
    for axes, pool in zip(np.atleast_1d(panels), pools, strict=True):
        mine = [one for one in records if one.pool == pool and one.delta == max(one.delta for one in records)]
        groups = list(dict.fromkeys((one.loss, one.epsilon) for one in mine))
        for shift, n in enumerate(sorted({one.n for one in mine})):
            of_n = {(one.loss, one.epsilon): one for one in mine if one.n == n}
            at = np.arange(len(groups)) + 0.4 * (shift - 0.5)
            colour = (COLOURS["random"], COLOURS["value"])[shift % 2]
            heights = [of_n[group].power or 0.0 for group in groups]
            axes.bar(at, heights, 0.36, color=colour, label=f"{n} rows")
            ceilings = [of_n[group].ceiling / (of_n[group].oracle or 1) for group in groups]
            axes.scatter(
                at,
                ceilings,
                marker="_",
                s=150,
                color="black",
                label="without paying for the search (invalid)" if shift else None,
            )
            for place, group in zip(at, groups, strict=True):
                if (aim := of_n[group].aim) is not None:
                    axes.plot([place - 0.18, place + 0.18], [aim, aim], color=COLOURS["sedna"], linewidth=1.5)
        axes.plot([], [], color=COLOURS["sedna"], linewidth=1.5, label="aim")
        axes.set_xticks(np.arange(len(groups)), [f"{loss}\n≤ {epsilon:.0%}" for loss, epsilon in groups])
        axes.set(title=pool, ylim=(0, 1.1))
    np.atleast_1d(panels)[0].set_ylabel("kept, of what the oracle keeps")
    _legend(picture, np.atleast_1d(panels)[0])
    return picture


def delays(records: Sequence[alarm.Watch]) -> Picture:
    """How many streams have alarmed, by the audits since the shift."""
    pairs = _pairs(records)
    size = (4 * len(pairs) + 1, 5.5)
    picture, panels = plt.subplots(
        len(alarm.EPSILONS), len(pairs), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    quantiles = np.linspace(0, 1, 60)
    for row, epsilon in zip(panels, alarm.EPSILONS, strict=True):
        for axes, pair in zip(row, pairs, strict=True):
            shown = [one for one in records if (one.pair, one.epsilon) == (pair, epsilon) and one.shift]
            for one in shown:
                late = [one.delay(quantile) or np.inf for quantile in quantiles]
                style = "--" if one.quiet else "-"
                axes.plot(late, quantiles, color=_SHIFTS[one.shift], linestyle=style)
            risks = ", ".join(f"{one.shift} {one.after:.0%}" for one in shown if not one.quiet)
            axes.set(title=f"{pair}: {epsilon:.0%} promised\n{risks}", xscale="log", ylim=(0, 1.02))
            axes.set_xlim(1, alarm.within(min(alarm.EPSILONS)))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in panels[-1]:
        axes.set_xlabel("audits since the shift")
    for row in panels:
        row[0].set_ylabel("streams that have alarmed")
    for shift in dict.fromkeys(one.shift for one in records if one.shift):
        panels[0][0].plot([], [], color=_SHIFTS[shift], label=shift)
    for style, quiet in (("-", "at once"), ("--", f"after {max(alarm.QUIET)} quiet audits")):
        panels[0][0].plot([], [], color="black", linestyle=style, label=quiet)
    _legend(picture, panels[0][0])
    return picture


def gains(records: Sequence[value.Gain]) -> Picture:
    """Accuracy by the share escalated."""
    pairs = _pairs(records)
    picture, panels = plt.subplots(1, len(pairs), figsize=(4 * len(pairs) + 1, 4), layout="constrained")
    for axes, pair in zip(np.atleast_1d(panels), pairs, strict=True):
        for one in records:
            if one.pair != pair:
                continue
            rates, won = np.append(0, value.RATES), one.edge + np.append(0, one.gained.mean(axis=0))
            ends = one.policy in _ENDS
            axes.plot(
                rates,
                won,
                color=COLOURS[one.policy],
                linestyle=":" if ends else "-",
                linewidth=2 if one.policy == value.OURS else 1.2,
                marker=None if ends else _MARKERS[one.policy],
                markersize=3,
                label=f"{one.policy}",
            )
            if one.policy == value.OURS and len(one.gained) > 1:
                half = np.append(0, 1.96 * one.gained.std(axis=0, ddof=1) / np.sqrt(len(one.gained)))
                axes.fill_between(rates, won - half, won + half, color=COLOURS[one.policy], alpha=0.15, linewidth=0)
                axes.axhline(one.full, color="black", linewidth=0.6)
                axes.annotate("full model alone", (0.5, one.full), ha="right", va="bottom", fontsize=7)
        axes.set(title=pair, xlabel="escalated", xlim=(0, 0.5))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))  # with half percents, where the axis has them
    np.atleast_1d(panels)[0].set_ylabel("accuracy")
    _legend(picture, np.atleast_1d(panels)[0])
    return picture


def links(records: Sequence[on_time.Stretch]) -> Picture:
    """Correct by the deadline, against bytes sent: up and to the left is better."""

    def panel(axes: Axes, one: on_time.Stretch) -> None:
        axes.scatter(
            one.sent_kb, one.correct, color=COLOURS[one.policy], marker=_MARKERS[one.policy], s=28, label=one.policy
        )
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    return _small_multiples(records, panel, "kB sent a request", "correct by the deadline")


def latencies(records: Sequence[on_time.Stretch]) -> Picture:
    """From p50 to p99, by policy."""
    order = list(dict.fromkeys(one.policy for one in records))

    def panel(axes: Axes, one: on_time.Stretch) -> None:
        at, colour = order.index(one.policy), COLOURS[one.policy]
        axes.plot([one.p50_ms, one.p99_ms], [at, at], color=colour, linewidth=2.5)
        axes.scatter([one.p50_ms], [at], color=colour, s=22, zorder=3)
        axes.axvline(on_time.DEADLINE_S * 1000, color="black", linewidth=0.6)
        axes.set(ylim=(len(order) - 0.5, -0.5), xlim=(0, on_time.DEADLINE_S * 1050))
        axes.set_yticks(range(len(order)), order)

    return _small_multiples(records, panel, "ms from p50 (dot) to p99", "", sharey=True)


def days(records: Sequence[on_budget.Day]) -> Picture:
    """What of a day's budget is spent by when, and what that buys of what it could."""
    pairs = _pairs(records)
    size = (4 * len(pairs) + 1, 5.5)
    picture, panels = plt.subplots(2, len(pairs), figsize=size, squeeze=False, sharey="row", layout="constrained")
    colours = dict(zip(on_budget.SHARES, (COLOURS["value"], COLOURS["threshold"]), strict=False))
    styles = dict(zip(range(1, on_budget.DAYS + 1), (":", "--", "-"), strict=False))
    for (spent, won), pair in zip(panels.T, pairs, strict=True):
        shown = [one for one in records if one.pair == pair and one.resource == "bytes" and not one.contract]
        for one in shown:
            spent.plot(one.hours, one.spent_by, color=colours[one.share], linestyle=styles[one.number])
        spent.plot(shown[-1].hours, shown[-1].asked_by, color="black", linewidth=0.6, label="requests that have come")
        spent.set(title=f"{pair}: bytes, value alone", xlabel="hour", xlim=(0, 24), ylim=(0, 1.02))
        mine = [one for one in records if one.pair == pair and one.number == on_budget.DAYS]
        groups = list(dict.fromkeys((one.resource, one.contract) for one in mine))
        for position, share in enumerate(on_budget.SHARES):
            of_share = {(one.resource, one.contract): one for one in mine if one.share == share}
            heights = [of_share[group].gain / (of_share[group].optimum or 1) for group in groups]
            at = np.arange(len(groups)) + 0.4 * (position - 0.5)
            won.bar(at, heights, 0.36, color=colours[share])
        names = [f"{resource}\n{'contract' if contract else 'value'}" for resource, contract in groups]
        won.set_xticks(np.arange(len(groups)), names, fontsize=7)
        for axes in (spent, won):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0][0].set_ylabel("spent of the day's budget")
    panels[1][0].set_ylabel(f"day {on_budget.DAYS}: accuracy won,\nof the offline optimum's")
    for share, colour in colours.items():
        panels[0][0].plot([], [], color=colour, label=f"budget for {share:.0%}")
    for number, style in styles.items():
        panels[0][0].plot([], [], color="grey", linestyle=style, label=f"day {number}")
    _legend(picture, panels[0][0])
    return picture


def _small_multiples(
    records: Sequence[on_time.Stretch],
    panel: Callable[[Axes, on_time.Stretch], None],
    x: str,
    y: str,
    *,
    sharey: bool | str = "row",
) -> Picture:
    """A row for each pair, a column for each link."""
    pairs, weathers = _pairs(records), list(dict.fromkeys(one.weather for one in records))
    size = (2.1 * len(weathers) + 1.5, 2.1 * len(pairs) + 0.7)
    picture, panels = plt.subplots(
        len(pairs), len(weathers), figsize=size, sharex="row", sharey=sharey, squeeze=False, layout="constrained"
    )
    for row, pair in zip(panels, pairs, strict=True):
        for axes, weather in zip(row, weathers, strict=True):
            for one in records:
                if (one.pair, one.weather) == (pair, weather):
                    panel(axes, one)
            if pair == pairs[0]:
                axes.set_title(weather, fontsize=8)
            if pair == pairs[-1]:
                axes.set_xlabel(x)
        row[0].set_ylabel(f"{pair.replace(' ', chr(10))}\n{y}".strip())
    if y:
        _legend(picture, panels[0][0])
    return picture


def _legend(picture: Picture, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=len(labels))


_PICTURES: dict[str, dict[str, Callable[[Sequence[Any]], Picture]]] = {
    "contract": {"contract": broken, "power": power},
    "alarm": {"alarm": delays},
    "value": {"value": gains},
    "on_time": {"on_time": links, "latency": latencies},
    "on_budget": {"on_budget": days},
}
