"""A profile for people: its table and notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from firstline_core.hardware.readings import Absent, Modelled, Reading
from firstline_core.profile.profile import Moved, Point, Profile, WarmUp, sweet_spot
from firstline_core.telemetry.wording import counted

COLUMNS = (
    "model", "on", "threads", "batch", "p50 ms", "p99 ms", "prepare ms", "rested p50", "samples/s",
    "memory MB", "mJ/query",
)  # fmt: skip
_OPERATORS = 3
DISTURBED = 0.05
"""A measurement that waited for a core for a larger share of its time is disturbed by other work."""


def rows(profile: Profile) -> list[tuple[str, ...]]:
    """Returns one row for each point, with the columns `COLUMNS`; a star marks the sweet spot of the batches."""
    best = {point.key for point in _sweet_spots(profile)}
    return [_row(point, point.key in best) for point in _ordered(profile)]


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
    """Yields what the table does not contain: the slowest operators, refused points, notes on the figures."""
    yield "* the smallest batch with 95 % of the best rate. A query is that many samples; its decoding is part of it."
    for variant in dict.fromkeys(point.key.variant for point in profile.points):
        point = next(one for one in _ordered(profile) if one.key.variant == variant)
        dear = ", ".join(f"{one.kind} {one.query_ms:.3g} ms ({one.nodes})" for one in point.operators[:_OPERATORS])
        yield f"{variant}: {'slowest operators: ' + dear if dear else point.operators_absent}"
        yield f"{variant}: {_begins(point.warm_up)}; a query moves {_moves(point.moved)}"
    absent = {point.energy_mj.reason for point in profile.points if isinstance(point.energy_mj, Absent)}
    yield from (f"Energy: {reason}" for reason in sorted(absent))
    if disturbed := [point for point in profile.points if point.waited_share > DISTURBED]:
        points, most = counted(len(disturbed), "point"), max(point.waited_share for point in disturbed)
        yield f"{points} waited for a core that other work had, up to {100 * most:.0f} % of their time."
    for refused in profile.refused:
        key = refused.key
        condition = "" if key.condition == "warm" else f", {key.condition}"
        which = f"{key.variant}, {key.provider}, threads {key.threads}, batch {key.batch}{condition}"
        yield f"{which}: not measured: {refused.reason}"


def _ordered(profile: Profile) -> list[Point]:
    """Warm points first, by model, threads and batch; the file has them in the order of measuring."""
    variants = list(dict.fromkeys(point.key.variant for point in profile.points))

    def place(point: Point) -> tuple[object, ...]:
        key = point.key
        return key.condition != "warm", variants.index(key.variant), key.provider, key.threads, key.batch, key.condition

    return sorted(profile.points, key=place)


def _row(point: Point, best: bool) -> tuple[str, ...]:
    key = point.key
    return (
        key.variant,
        f"{key.provider.removesuffix('ExecutionProvider')}{_condition(point)}",
        str(key.threads),
        f"{key.batch}{'*' if best else ''}",
        f"{point.query.p50_ms:.3f}",
        f"{point.query.p99_ms:.3f}",
        f"{point.prepare.p50_ms:.3f}",
        f"{point.rested.p50_ms:.3f}",
        f"{point.offline_per_s:,.0f}",
        _reading(point.peak_memory_bytes, 1e-6),
        _reading(point.energy_mj, 1.0),
    )


def _condition(point: Point) -> str:
    """The condition of a heated point."""
    return f", {point.heated_s:.0f} s hot" if point.key.condition == "sustained" else ""


def _reading(reading: Reading, scale: float) -> str:
    if isinstance(reading, Absent):
        return "absent"
    return f"{reading.value * scale:.3g}{' (modelled)' if isinstance(reading, Modelled) else ''}"


def _begins(warm_up: WarmUp) -> str:
    steady = f"steady after {warm_up.queries} queries, {warm_up.total_ms:.3g} ms" if warm_up.queries else "steady then"
    return f"loads in {warm_up.load_ms:.3g} ms, first query {warm_up.first_ms:.3g} ms, {steady}"


def _moves(moved: Moved) -> str:
    model = f"{_size(moved.input_bytes)} into the model, {_size(moved.output_bytes)} out of it"
    return f"{_size(moved.received_bytes)} here, {model}, {_size(moved.weights_bytes)} of weights"


def _size(size_bytes: int) -> str:
    for unit, times in (("MB", 1_000_000), ("KB", 1000)):
        if size_bytes >= times:
            return f"{size_bytes / times:.3g} {unit}"
    return f"{size_bytes} B"


def _sweet_spots(profile: Profile) -> Iterator[Point]:
    groups: dict[tuple[str, str, int, str], list[Point]] = {}
    for point in profile.points:
        key = point.key
        groups.setdefault((key.variant, key.provider, key.threads, key.condition), []).append(point)
    for points in groups.values():
        if (found := sweet_spot(points)) is not None:
            yield found
