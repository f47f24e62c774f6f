"""Draws latency and energy of models against their accuracy, with the Pareto front marked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Measured
from firstline_core.profile.profile import Point, Profile
from firstline_core.profile.summary import Front, front
from firstline_core.storage.artefact import Sha256
from firstline_core.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png")
_MARKERS = "osD^vP*X"
_LINE = 0.05
"""Share of the axes' height that a name takes."""


def check_picture(path: Path) -> None:
    """Checks whether a picture can be drawn, before models run for minutes.

    Raises:
        ConfigError: another kind of picture, no such folder, or matplotlib is not installed.
    """
    if path.suffix.lower().removeprefix(".") not in KINDS:
        raise ConfigError(f"{path} is no picture that can be drawn; let its name end with .svg or .png.")
    if not os.path.isdir(path.parent):  # noqa: PTH112 (`is_dir` raises where no such name is possible)
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} cannot be written: the folder {path.parent} may not be written in.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("Plots are drawn with matplotlib: pip install 'firstline[analysis]'.") from error


def check_accuracy(accuracy: Mapping[Sha256, float]) -> None:
    """Checks whether there is an accuracy to draw against.

    Raises:
        ConfigError: there is not.
    """
    if not accuracy:
        raise ConfigError(
            "The bundle's manifest has no accuracy to draw against; count right answers with --data DIR (labels.csv "
            "and images), or state `measured` in its recipe."
        )


def draw_profiles(profiles: Sequence[Profile], accuracy: Mapping[Sha256, float], path: Path) -> None:
    """Writes the picture: a marker for each machine, filled if the point is on the front of its machine.

    Args:
        profiles: of one bundle on several machines.
        accuracy: share of right answers, by `Model.digest`; points of other models are not drawn.
        path: of the file, see `check_picture`.

    Raises:
        ConfigError: nothing can be drawn, or the file cannot be written.
    """
    check_picture(path)
    if not any(front(profile.points, accuracy).candidates for profile in profiles):
        raise ConfigError(
            "There is nothing to draw: no model whose accuracy is known was measured with one sample a query; let "
            "--batches have 1."
        )
    from firstline.workbench import plots

    content = plots.rendered(lambda figure: drawn(figure, profiles, accuracy), plots.LIGHT, _kind(path))
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def _kind(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def drawn(figure: Figure, profiles: Sequence[Profile], accuracy: Mapping[Sha256, float]) -> None:
    """Draws into a figure what `draw_profiles` writes."""
    fronts = [front(profile.points, accuracy) for profile in profiles]
    with_energy = any(not isinstance(point.energy_mj, Absent) for found in fronts for point in found.candidates)
    panels = figure.subplots(1, 2 if with_energy else 1, sharey=True, squeeze=False)[0]
    _panel(panels[0], profiles, fronts, accuracy, lambda point: point.query.p50_ms)
    panels[0].set_xlabel("median of a query (ms)")
    panels[0].set_ylabel("right answers (%)")
    if with_energy:
        _panel(panels[1], profiles, fronts, accuracy, _energy_mj)
        panels[1].set_xlabel(f"a query's energy (mJ, {_known_by(fronts)})")
    else:
        panels[0].set_title("energy: neither measured nor modelled here", loc="left")
    _name_heights(panels[-1], fronts, accuracy)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _panel(
    axes: Axes,
    profiles: Sequence[Profile],
    fronts: Sequence[Front],
    accuracy: Mapping[Sha256, float],
    cost: Callable[[Point], float | None],
) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    for at, (profile, found) in enumerate(zip(profiles, fronts, strict=True)):
        drawn = [
            (spent, 100 * accuracy[point.key.model_digest], point)
            for point in found.candidates
            if (spent := cost(point)) is not None
        ]
        colour, marker = f"C{at}", _MARKERS[at % len(_MARKERS)]
        best = sorted((spent, right) for spent, right, point in drawn if point.key in found.keys)
        axes.plot(
            [spent for spent, _ in best],
            [right for _, right in best],
            color=colour,
            marker=marker,
            linewidth=1,
            drawstyle="steps-post",
            label=f"{profile.machine} (filled: Pareto front)",
        )
        for spent, right, point in drawn:
            if point.key not in found.keys:
                axes.plot(spent, right, color=colour, marker=marker, markerfacecolor="none", linestyle="none")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(0.25)


def _name_heights(axes: Axes, fronts: Sequence[Front], accuracy: Mapping[Sha256, float]) -> None:
    """Names each model once at the right of the axes; all its points have the same height."""
    heights = {
        point.key.variant: 100 * accuracy[point.key.model_digest] for found in fronts for point in found.candidates
    }
    low, high = axes.get_ylim()
    names = sorted(heights, key=lambda name: heights[name])
    places = spread([(heights[name] - low) / (high - low) for name in names], min(_LINE, 1 / len(names)))
    for name, place in zip(names, places, strict=True):
        axes.annotate(
            name,
            (1, heights[name]),
            (1.04, place),
            xycoords=("axes fraction", "data"),
            textcoords="axes fraction",
            fontsize=6,
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4},
        )


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Returns ascending places, moved apart by the height of a line; within 0 to 1 if there is room for all."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + apart) if found else place)
    high = 1.0
    for at in reversed(range(len(found))):
        found[at] = min(found[at], high)
        high = found[at] - apart
    return found


def _energy_mj(point: Point) -> float | None:
    energy = point.energy_mj
    return None if isinstance(energy, Absent) or energy.value <= 0 else energy.value


def _known_by(fronts: Sequence[Front]) -> str:
    readings = [point.energy_mj for found in fronts for point in found.candidates]
    kinds = {"measured" if isinstance(one, Measured) else "modelled" for one in readings if not isinstance(one, Absent)}
    return " or ".join(sorted(kinds))
