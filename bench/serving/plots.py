"""Pictures of what was measured, as PNG in bench/results/serving, from the raw numbers of bench/results/TARGET.json."""

from __future__ import annotations

import json
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pictures
from figures import RESULTS
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from serving import flat, rest
from serving.samples import Sample, median, values

mpl.use("Agg")
_OURS, _RAW, _PEER = "#0b5fa5", "#444444", "#8d99ae"
FOLDER = RESULTS / "serving"


def draw(target: str) -> None:
    """What there are samples of."""
    said = json.loads((RESULTS / f"{target}.json").read_text())
    samples = [Sample(**one) for one in said["samples"]]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(pictures.STYLE):
        for part, make in (("rest", rates), ("flat", costs), ("bench-peers", beside)):
            of = [one for one in samples if one.part == part]
            if of:
                pictures.save(make(of), FOLDER / f"{part}.png", colours=64)


def rates(samples: Sequence[Sample]) -> Picture:
    """Requests a second of the gateway and of raw ASGI; a dot is a round."""
    picture, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", width_ratios=(2, 1))
    sets = ([q.name for q in rest.SMALL], [q.name + rest.TWO for q in rest.MEDIUM])
    for axes, names in zip(panels, sets, strict=True):
        for at, (who, colour) in enumerate(((rest.GATEWAY, _OURS), (rest.RAW, _RAW))):
            places = np.arange(len(names)) + (at - 0.5) * 0.38
            axes.bar(places, [median(samples, who, n, "rate_per_s") or 0 for n in names], 0.36, color=colour, label=who)
            for place, name in zip(places, names, strict=True):
                found = values(samples, who, name, "rate_per_s")
                axes.plot([place] * len(found), found, ".", color="white", markeredgecolor="black", markersize=5)
        axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names])
    panels[0].set(title="S, one core", ylabel="requests a second")
    panels[1].set(title="M, two cores")
    panels[0].legend()
    return picture


def costs(samples: Sequence[Sample]) -> Picture:
    """Processor time of a request, by how many are in flight, and by how many models are asked in turn."""
    picture, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    names = {n: flat.in_flight_name(n) for n in flat.IN_FLIGHT}
    for who, colour in ((flat.GATEWAY, _OURS), (flat.RAW, _RAW)):
        _line(left, _costs(samples, who, names), colour, who)
    for in_flight, style in zip(flat.IN_FLIGHT_OF_MODELS, ("-", "--"), strict=True):
        names = {n: flat.models_name(n, in_flight) for n in flat.MODELS}
        _line(right, _costs(samples, flat.GATEWAY, names), _OURS, f"{in_flight} in flight", style)
    left.set(title="S", xlabel="in flight", ylabel="processor time of a request (us)")
    right.set(title="copies of S, asked in turn", xlabel="models")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend()
    left.set_xticks(flat.IN_FLIGHT, [str(n) for n in flat.IN_FLIGHT], minor=False)
    right.set_xticks(flat.MODELS, [str(n) for n in flat.MODELS], minor=False)
    for axes in (left, right):
        axes.minorticks_off()
    return picture


def beside(samples: Sequence[Sample]) -> Picture:
    """Requests a second of everybody, on a logarithmic scale."""
    whats = list(dict.fromkeys(one.what for one in samples if "rate_per_s" in one.values))
    everybody = list(dict.fromkeys(one.who for one in samples))
    columns = min(3, len(whats))
    picture, panels = plt.subplots(
        -(-len(whats) // columns), columns, figsize=(9, 5), sharey=True, layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(whats) :]:
        axes.set_visible(False)
    for axes, what in zip(panels.flat, whats, strict=False):
        found = [median(samples, who, what, "rate_per_s") or 0.0 for who in everybody]
        axes.barh(everybody, found, color=[{"gateway": _OURS, "raw ASGI": _RAW}.get(who, _PEER) for who in everybody])
        axes.set(title=what, xscale="log", xlim=(1, 30 * max(found)))
        for at, rate in enumerate(found):
            text = f"{rate:,.0f}" if rate else "no such form"
            axes.annotate(text, (rate or 1.0, at), xytext=(3, 0), textcoords="offset points", va="center")
    for axes in panels[-1]:
        axes.set(xlabel="requests a second")
    panels[0][0].invert_yaxis()
    return picture


def _costs(samples: Sequence[Sample], who: str, names: dict[int, str]) -> dict[int, float]:
    found = {n: median(samples, who, name, "cpu_us") for n, name in names.items()}
    return {n: cost for n, cost in found.items() if cost is not None}


def _line(axes: Axes, known: dict[int, float], colour: str, label: str, style: str = "-") -> None:
    axes.plot(list(known), list(known.values()), style, marker="o", markersize=4, color=colour, label=label)
