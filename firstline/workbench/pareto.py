"""Draws what models cost against what they are worth: latency and energy against accuracy, the Pareto front marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.bundle.artefact import Sha256
from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Measured
from firstline_core.profile.front import Front, front
from firstline_core.profile.profile import Point, Profile
from firstline_core.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png")
_MARKERS = "osD^vP*X"


def check_picture(path: Path) -> None:
    """Finds out before models run for minutes whether a picture can be drawn.

    Raises:
        ConfigError: another kind of picture, or matplotlib is not installed.
    """
    if path.suffix.lower().removeprefix(".") not in KINDS:
        raise ConfigError(f"{path} is no picture that can be drawn; let its name end with .svg or .png.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("Plots are drawn with matplotlib: pip install 'firstline[analysis]'.") from error


def check_accuracy(accuracy: Mapping[Sha256, float]) -> None:
    """Likewise, whether there is anything to draw against.

    Raises:
        ConfigError: there is not.
    """
    if not accuracy:
        raise ConfigError(
            "The bundle's manifest has no accuracy to draw against; count right answers with --data DIR (labels.csv "
            "and images), or state `measured` in its recipe."
        )


def draw_profiles(profiles: Sequence[Profile], accuracy: Mapping[Sha256, float], path: Path) -> None:
    """Writes the picture: a marker for each machine, filled where the point is on that machine's front.

    Args:
        profiles: of one bundle on several machines.
        accuracy: share of right answers, by `Model.digest`; points of other models are not drawn.
        path: of the file, see `check_picture`.

    Raises:
        ConfigError: nothing can be drawn, or the file cannot be written.
    """
    check_picture(path)
    fronts = [front(profile.points, accuracy) for profile in profiles]
    if not any(found.candidates for found in fronts):
        raise ConfigError(
            "There is nothing to draw: no model whose accuracy is known was measured with one sample a query; let "
            "--batches have 1."
        )
    from firstline.workbench import plots

    content = plots.rendered(lambda figure: _draw(figure, profiles, fronts, accuracy), plots.LIGHT, _kind(path))
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def _kind(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _draw(
    figure: Figure, profiles: Sequence[Profile], fronts: Sequence[Front], accuracy: Mapping[Sha256, float]
) -> None:
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
        for variant in {point.key.variant for _, _, point in drawn}:  # its other points lie on the same height
            spent, right, point = min(
                (each for each in drawn if each[2].key.variant == variant), key=lambda each: each[0]
            )
            name = f"{variant}, threads {point.key.threads}"
            axes.annotate(
                name,
                (spent, right),
                xytext=(0, 5),
                textcoords="offset points",
                fontsize=6,
                horizontalalignment="center",
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(0.25)


def _energy_mj(point: Point) -> float | None:
    energy = point.energy_mj
    return None if isinstance(energy, Absent) or energy.value <= 0 else energy.value


def _known_by(fronts: Sequence[Front]) -> str:
    readings = [point.energy_mj for found in fronts for point in found.candidates]
    kinds = {"measured" if isinstance(one, Measured) else "modelled" for one in readings if not isinstance(one, Absent)}
    return " or ".join(sorted(kinds))
