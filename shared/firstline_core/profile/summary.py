"""A profile for people: its table, notes, and the Pareto front of latency, accuracy and energy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from firstline_core.bundle.manifest import Manifest
from firstline_core.hardware.readings import Absent, Reading, short
from firstline_core.profile.profile import Point, PointKey, Profile, QueryBytes, sweet_spot
from firstline_core.telemetry.wording import counted, rounded
from firstline_core.types import Sha256

COLUMNS = (
    "model", "on", "threads", "batch", "p50 ms", "p99 ms", "prepare ms", "rested p50", "samples/s",
    "memory MB", "mJ/query", "accuracy",
)  # fmt: skip
DISTURBED = 0.05
"""A measurement that waited for a core for a larger share of its time is disturbed by other work."""
_FEW = 100
"""With fewer queries, p99 is nearly the slowest one."""
ACCURACY = "accuracy"
"""Its name among the measured figures of a model, in the manifest."""


def rows(profile: Profile) -> list[tuple[str, ...]]:
    """Returns one row for each point, with the columns `COLUMNS`; a star marks the sweet spot of the batches."""
    best, accuracy = {point.key for point in _sweet_spots(profile)}, profile.accuracy
    worth = front(profile.points, accuracy).keys
    return [
        (*_row(point, point.key in best), _right(accuracy.get(point.key.model_digest), point.key in worth))
        for point in _ordered(profile)
    ]


def profile_lines(profile: Profile) -> Iterator[str]:
    """Yields the lines of a profile."""
    hardware = profile.hardware
    board = f" ({hardware.board or hardware.processor.model})" if hardware is not None else ""
    yield f"{profile.bundle} version {profile.version} on {profile.machine}{board}"
    yield ""
    table = [COLUMNS, *rows(profile)]
    widths = [max(len(row[at]) for row in table) for at in range(len(COLUMNS))]
    for row in table:
        cells = [
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    yield ""
    yield from notes(profile)


def notes(profile: Profile) -> Iterator[str]:
    """Yields what the table does not contain: refused points and notes on the figures."""
    yield "* the smallest batch with 95 % of the best rate. A query is that many samples; its decoding is part of it."
    for variant in dict.fromkeys(point.key.variant for point in profile.points):
        point = next(one for one in _ordered(profile) if one.key.variant == variant)
        times = f"loads in {rounded(point.load_ms)} ms, first query {rounded(point.first_ms)} ms"
        yield f"{variant}: {times}; a query moves {_moves(point.moved)}"
    absent = {point.energy_mj.reason for point in profile.points if isinstance(point.energy_mj, Absent)}
    yield from (f"Energy: {reason}" for reason in sorted(absent))
    if few := [point for point in profile.points if point.query.count < _FEW]:
        yield f"{counted(len(few), 'point')} measured fewer than {_FEW} queries, so p99 is nearly the slowest one."
    yield from disturbances(profile.points)
    for refused in profile.refused:
        key = refused.key
        yield f"{key.variant}, {key.provider}, {key.describe()}: not measured: {refused.reason}"
    if profile.accuracy:
        energy = ", accuracy and energy" if front(profile.points, profile.accuracy).by_energy else " and accuracy"
        yield f"+ on the Pareto front of latency{energy}, with one sample a query: nothing here is better in all."


def disturbances(points: Iterable[Point]) -> Iterator[str]:
    """Yields a sentence about the points that other work disturbed; nothing if there are none."""
    if shares := [point.waited_share for point in points if point.waited_share > DISTURBED]:
        disturbed, most = counted(len(shares), "point"), 100 * max(shares)
        yield f"{disturbed} waited for a core that other work had, up to {most:.0f} % of their time."


def _ordered(profile: Profile) -> list[Point]:
    """Warm points first, by model, threads and batch; the file has them in the order of measuring."""
    variants = list(dict.fromkeys(point.key.variant for point in profile.points))

    def place(point: Point) -> tuple[object, ...]:
        key = point.key
        return key.condition != "warm", variants.index(key.variant), key.provider, key.threads, key.batch

    return sorted(profile.points, key=place)


def _row(point: Point, best: bool) -> tuple[str, ...]:
    key = point.key
    return (
        key.variant,
        key.provider.removesuffix("ExecutionProvider") + ("" if key.condition == "warm" else ", hot"),
        str(key.threads),
        f"{key.batch}{'*' if best else ''}",
        f"{point.query.p50_ms:.3f}",
        f"{point.query.p99_ms:.3f}",
        f"{point.prepare_ms:.3f}",
        f"{point.rested.p50_ms:.3f}",
        f"{point.offline_per_s:,.0f}",
        short(point.peak_memory_bytes, 1e-6),
        short(point.energy_mj),
    )


def _right(share: float | None, worth: bool) -> str:
    return "-" if share is None else f"{100 * share:.2f} %{' +' if worth else '  '}"


def _moves(moved: QueryBytes) -> str:
    sizes = (moved.received_bytes, moved.input_bytes, moved.output_bytes)
    received, into, out = (f"{rounded(size / 1000)} KB" if size >= 1000 else f"{size} B" for size in sizes)
    return f"{received} here, {into} into the model, {out} out of it"


def _sweet_spots(profile: Profile) -> Iterator[Point]:
    """The best batch of each model, provider, number of threads and condition."""
    for _, points in groupby(_ordered(profile), lambda point: replace(point.key, batch=1, model_digest="")):
        if (found := sweet_spot(points)) is not None:
            yield found


def accuracies(manifest: Manifest) -> dict[Sha256, float]:
    """Returns the accuracies in the bundle's manifest, by `Model.digest`."""
    shares = {model.digest: model.measured.get(ACCURACY, -1.0) for model in manifest.models}
    return {digest: share for digest, share in shares.items() if 0 <= share <= 1}


class Front(NamedTuple):
    """A Pareto front.

    Attributes:
        keys: of the points on the front.
        by_energy: whether energy was compared: all candidates have it, in the same way.
    """

    keys: frozenset[PointKey]
    by_energy: bool


def front(points: Iterable[Point], accuracy: Mapping[Sha256, float]) -> Front:
    """Returns the Pareto front of one machine.

    Args:
        points: of one machine; those of a hot machine or with several samples a query are ignored, and those of models
            without a known accuracy.
        accuracy: by `Model.digest`.
    """
    found = [point for point in points if point.key.of_one_row and point.key.model_digest in accuracy]
    by_energy = _comparable([point.energy_mj for point in found])
    costs = [_costs(point, accuracy[point.key.model_digest], by_energy) for point in found]
    keys = frozenset(
        point.key for point, own in zip(found, costs, strict=True) if not any(_dominates(other, own) for other in costs)
    )
    return Front(keys, by_energy)


def _comparable(energy: Sequence[Reading]) -> bool:
    kinds = {type(reading) for reading in energy}
    return len(kinds) == 1 and Absent not in kinds


def _costs(point: Point, accuracy: float, by_energy: bool) -> tuple[float, ...]:
    """Costs, of which less is better."""
    energy = point.energy_mj
    return point.query.p50_ms, -accuracy, energy.value if by_energy and not isinstance(energy, Absent) else 0.0


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))
