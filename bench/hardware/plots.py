"""The pictures of docs/planning.md and its neighbours, as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pictures
from matplotlib import pyplot as plt

from firstline_core.planning.split import Surroundings, ways
from hardware import energy, split

mpl.use("Agg")
mpl.rcParams |= pictures.STYLE

_COLOURS = {"device": "#444444", "input": "#bc6c25", "split": "#0b5fa5"}
_SLOWDOWN, _ROUND_TRIP_MS = 32, 20.0


def draw_split(records: Mapping[str, split.Record], folder: Path) -> None:
    """Latency by bandwidth: lines are reckoned, dots were measured."""
    picture, panels = plt.subplots(1, len(records), figsize=(3 * len(records), 3), squeeze=False)
    speeds = np.geomspace(split.BANDWIDTHS_MBIT_S[0], split.BANDWIDTHS_MBIT_S[-1], 60)
    for axes, (name, record) in zip(panels[0], records.items(), strict=True):
        around = Surroundings(_ROUND_TRIP_MS, _SLOWDOWN, 1.0, split.MOST_DISAGREEMENT)
        for way in ways(record.splits, around):
            took = [way.latency_ms(speed * split.MBIT) for speed in speeds]
            axes.plot(speeds, took, color=_COLOURS[way.kind], lw=0.6 if way.kind == "split" else 1.4)
        for cell in record.cells:
            if (cell.slowdown, cell.round_trip_ms) == (_SLOWDOWN, _ROUND_TRIP_MS):
                for label, measured_ms in cell.measured_ms.items():
                    axes.plot(cell.bandwidth_mbit_s, measured_ms, "o", ms=3, color=_COLOURS[label.split()[0]])
        axes.set(xscale="log", yscale="log", title=name, xlabel="Mbit/s")
    panels[0][0].set_ylabel("ms to the full model's answer")
    for kind, colour in _COLOURS.items():
        panels[0][0].plot([], [], color=colour, label={"input": "send the input"}.get(kind, kind))
    panels[0][0].legend()
    picture.tight_layout()
    pictures.save(picture, folder / "split.png", colours=64)


def draw_energy(records: Mapping[str, energy.Record], folder: Path) -> None:
    """How the ratio of tiered to cloud only moves with each constant, over Wi-Fi."""
    picture, panels = plt.subplots(1, len(records), figsize=(3.6 * len(records), 2.6), squeeze=False)
    for axes, (name, record) in zip(panels[0], records.items(), strict=True):
        middle = energy.ratio(record.measured, energy.STATED["wifi"])
        swings = energy.swings(record.measured, energy.STATED["wifi"])
        for at, swing in enumerate(reversed(swings)):
            low, high = sorted((swing.at_third, swing.at_triple))
            axes.barh(at, high - low, left=low, color=_COLOURS["split"])
        names = [swing.constant.replace("_", " ") for swing in reversed(swings)]
        axes.set_yticks(range(len(names)), names)
        axes.axvline(middle, color=_COLOURS["device"], lw=0.8)
        axes.axvline(1, color=_COLOURS["input"], lw=0.8, ls="--")
        axes.set(title=name, xlabel="device's energy, tiered / cloud only")
    picture.tight_layout()
    pictures.save(picture, folder / "energy.png", colours=32)
