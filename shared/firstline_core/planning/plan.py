"""Plans how a device should run a bundle: a pure function of measurements that changes nothing.

A plan contains the figures that it is based on, and lists in `open` what was not measured. It does not decide which
variant may answer: each answers under its own certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from firstline_core.bundle.manifest import Manifest, Model, valid_certificate
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.readings import Absent, Reading
from firstline_core.planning.split import SplitEnvironment, Splits, Stretch, Way, best, stretches, ways
from firstline_core.profile.profile import Point, PointKey, Profile, of_one_row, sweet_spot
from firstline_core.profile.summary import disturbances
from firstline_core.telemetry.wording import counted, rounded

_AS_GOOD = 1.05
"""More threads have to be faster by more than this, because other models need threads too."""
MBIT = 1e6 / 8
"""Bytes a second of a megabit a second."""
_SHOWN = 6


def quickest(points: Sequence[Point]) -> Point:
    """Returns the fastest point of a model; of those that are nearly as fast, the one with the fewest threads.

    Args:
        points: at least one, with one row a query.
    """
    near_ms = _AS_GOOD * min(point.query.p50_ms for point in points)
    near = (point for point in points if point.query.p50_ms <= near_ms)
    return min(near, key=lambda point: (point.key.threads or 1024, point.query.p50_ms))


class Candidate(Struct, frozen=True):
    """One way to run a variant here.

    Attributes:
        row_ms, worst_ms: of one request back to back, median and 99th percentile.
        kept: share of answers that its certificate keeps; None without a valid one.
        expected_ms: time of a row, escalations to the full model included; None if unknown.
    """

    variant: str
    provider: str
    threads: int
    row_ms: float
    worst_ms: float
    rows_per_s: float
    energy_mj: Reading
    kept: float | None
    expected_ms: float | None


class FullModel(Struct, frozen=True):
    """The ways to the full model's answer.

    Attributes:
        way: the fastest one over the stated link; None without a bandwidth.
        latency_ms: of that way.
        escalation_ms: the latency if the encoded input is sent, as an agent does; None without a bandwidth.
        by_bandwidth: all ways that are the fastest at some bandwidth.
    """

    way: Way | None
    latency_ms: float | None
    escalation_ms: float | None
    by_bandwidth: tuple[Stretch, ...]


class Plan(Struct, frozen=True):
    """How to run one bundle on one device.

    Attributes:
        chosen: how edge answers are computed; None if no variant was measured here.
        others: other candidates, best first.
        hot_ms: median of a row under sustained load; None if it was not measured.
        batch: the smallest batch that is nearly as fast as the best; None if only one row was measured.
        full: None if nothing was measured of the full model.
        open: missing or invalid measurements, in sentences.
    """

    bundle: str
    version: int
    machine: str
    chosen: Candidate | None
    others: tuple[Candidate, ...]
    batch: int | None
    hot_ms: float | None
    full: FullModel | None
    open: tuple[str, ...]


class Link(Struct, frozen=True):
    """The link to the gateway; None for unknown values."""

    bytes_per_s: float | None = None
    round_trip_ms: float | None = None


def plan(
    manifest: Manifest,
    profile: Profile | None,
    catalogue: Catalogue | None = None,
    splits: Splits | None = None,
    link: Link = Link(),  # noqa: B008 (frozen)
) -> Plan:
    """Returns the best measured way to run a bundle.

    Args:
        manifest: of the bundle.
        profile: of the bundle on this machine; None if there is none.
        catalogue: of this device, for the providers that work; None if unknown.
        splits: of the full model; None if they were not measured.
        link: to the gateway.
    """
    notes: list[str] = []
    points = _usable(manifest, profile, catalogue, notes)
    full = _full(manifest, points, splits, link, notes)
    ranked = _ranked(manifest, points, full.escalation_ms if full is not None else None, notes)
    chosen = ranked[0] if ranked else None
    own = [point for point in points if chosen is not None and _runs(point.key, chosen)]
    return Plan(
        manifest.name,
        manifest.version,
        profile.machine if profile is not None else "",
        chosen,
        tuple(ranked[1:]),
        _batch(manifest, [point for point in own if point.key.condition == "warm"], notes),
        max((point.query.p50_ms for point in own if point.key.condition != "warm"), default=None),
        full,
        tuple(dict.fromkeys(notes)),
    )


def _usable(manifest: Manifest, profile: Profile | None, catalogue: Catalogue | None, notes: list[str]) -> list[Point]:
    """The points of this bundle's models with providers that work here."""
    if profile is None:
        notes.append(
            "No profile: the bundle's first variant that loads answers, as configured. Make one on this device."
        )
        return []
    if catalogue is None or not catalogue.measured:
        notes.append("Which providers really work here was not tried: edge-agent hardware get --measure.")
    if catalogue is not None and profile.fingerprint != catalogue.fingerprint:
        notes.append(
            f"The profile is of '{profile.machine}', another machine or other software: its figures may differ."
        )
    models = {model.digest: model for model in manifest.models}
    usable = []
    for point in profile.points:
        key, model = point.key, models.get(point.key.model_digest)
        engine = catalogue.engine(model.runtime, key.provider) if catalogue is not None and model is not None else None
        if model is None:
            notes.append(f"The profile's '{key.variant}' is not this bundle's: it is ignored.")
        elif engine is not None and not engine.works:
            notes.append(f"{key.provider} is ignored: {engine.reason}")
        else:
            usable.append(point)
    notes += disturbances(usable)
    measured = {point.key.model_digest for point in usable}
    notes += [f"Variant '{model.id}' was not measured here." for model in manifest.edge if model.digest not in measured]
    return usable


def _runs(key: PointKey, chosen: Candidate) -> bool:
    return (key.variant, key.provider, key.threads) == (chosen.variant, chosen.provider, chosen.threads)


def _candidate(manifest: Manifest, model: Model, point: Point, escalation_ms: float | None) -> Candidate:
    certificate, row_ms = valid_certificate(manifest, model), point.query.p50_ms
    edge_share = certificate.kept if certificate is not None else None
    return Candidate(
        model.id,
        point.key.provider,
        point.key.threads,
        row_ms,
        point.query.p99_ms,
        point.offline_per_s,
        point.energy_mj,
        edge_share,
        row_ms + (1 - edge_share) * escalation_ms if edge_share is not None and escalation_ms is not None else None,
    )


def _ranked(
    manifest: Manifest, points: Sequence[Point], escalation_ms: float | None, notes: list[str]
) -> list[Candidate]:
    """Best first: by expected time if it is known for every variant, else by the bundle's order."""
    leaders, rest = list[Candidate](), list[Candidate]()
    for model in manifest.edge:
        own = of_one_row(points, model.digest)
        first = quickest(own) if own else None
        for point in own:
            (leaders if point is first else rest).append(_candidate(manifest, model, point, escalation_ms))
    if all(one.expected_ms is not None for one in leaders):
        leaders.sort(key=lambda one: one.expected_ms or 0.0)
    elif len(leaders) > 1:
        notes.append(
            "What an escalation takes, or what a variant keeps, is not known: the bundle's own order decides "
            "between variants, the profile between ways to run each."
        )
    return [*leaders, *sorted(rest, key=lambda one: one.row_ms)]


def _batch(manifest: Manifest, own: Sequence[Point], notes: list[str]) -> int | None:
    if own and any(model.id == own[0].key.variant and model.batch is not None for model in manifest.models):
        notes.append(f"{own[0].key.variant} runs row by row, as the bundle declares (`batch: 1`).")
        return None
    spot = sweet_spot(own)
    if spot is not None and len(own) > 1:
        return spot.key.batch
    if own:
        notes.append("No batch of several rows was measured: profile --batches 1,4,16.")
    return None


def _full(
    manifest: Manifest, points: Sequence[Point], splits: Splits | None, link: Link, notes: list[str]
) -> FullModel | None:
    if manifest.full is None:
        return None
    if splits is None or splits.model_digest != manifest.full.digest:
        missing = "Splits of the full model were not measured: firstline profile split."
        notes.append(missing if splits is None else "The splits are of another full model: they are ignored.")
        return None
    slowdown = 1.0
    measured_ms = [point.query.p50_ms for point in of_one_row(points, manifest.full.digest)]
    if measured_ms:
        slowdown = min(measured_ms) / (splits.prepare_ms + splits.model_ms)
    else:
        notes.append(
            "The full model was not measured here: the device is assumed to be as fast as the one it was split on."
        )
    if link.round_trip_ms is None:
        notes.append("The round trip to the gateway is not stated: 0 ms is assumed, which favours the gateway.")
    of = ways(splits, SplitEnvironment(link.round_trip_ms or 0.0, slowdown))
    if link.bytes_per_s is None:
        notes.append("The bandwidth to the gateway is not stated: the best way is given by bandwidth.")
        return FullModel(None, None, None, tuple(stretches(of)))
    way = best(of, link.bytes_per_s)
    sent = next(each for each in of if each.kind == "input")
    return FullModel(way, way.latency_ms(link.bytes_per_s), sent.latency_ms(link.bytes_per_s), tuple(stretches(of)))


def plan_lines(plan: Plan) -> list[str]:
    """Returns the lines of a plan; open questions come last."""
    lines = [f"{plan.bundle} {plan.version}{f' on {plan.machine}' if plan.machine else ''}"]
    if plan.chosen is not None:
        lines.append(f"  run       {_describe(plan.chosen)}")
        lines += [f"  next best {_describe(other)}" for other in plan.others[:_SHOWN]]
    if plan.batch is not None:
        rows = counted(plan.batch, "row")
        lines.append(f"  batch     {rows}: the smallest measured one with 95 % of the best rate")
    if plan.hot_ms is not None:
        lines.append(f"  hot       {rounded(plan.hot_ms)} ms a row under sustained load")
    if (full := plan.full) is not None:
        if full.way is not None and full.latency_ms is not None:
            lines.append(f"  full      {describe_way(full.way)}: {rounded(full.latency_ms)} ms over the stated link")
        lines += [
            f"  by link   {describe_bandwidths(stretch)}: {describe_way(stretch.way)}" for stretch in full.by_bandwidth
        ]
    return lines + [f"  open      {sentence}" for sentence in plan.open]


def describe_way(way: Way) -> str:
    """Describes a way to the full model's answer."""
    if way.kind == "device":
        return "the whole model on the device"
    if way.kind == "input":
        return f"the encoded input is sent ({way.sent_bytes:.0f} bytes)"
    return f"split at {way.tensor} as {way.form} ({way.sent_bytes:.0f} bytes); measured, not run by this version"


def describe_bandwidths(stretch: Stretch) -> str:
    """Describes the bandwidths of a stretch."""
    low, high = stretch.from_bytes_per_s / MBIT, stretch.to_bytes_per_s / MBIT
    if low <= 0:
        return "whatever the bandwidth" if math.isinf(high) else f"up to {rounded(high)} Mbit/s"
    return f"from {rounded(low)} Mbit/s on" if math.isinf(high) else f"from {rounded(low)} to {rounded(high)} Mbit/s"


def _describe(one: Candidate) -> str:
    threads = "as many threads as the runtime likes" if not one.threads else f"{one.threads} thread(s)"
    kept = "no valid certificate" if one.kept is None else f"keeps {one.kept:.0%} under its certificate"
    expected = "" if one.expected_ms is None else f", {rounded(one.expected_ms)} ms expected with escalations"
    return (
        f"{one.variant} by {one.provider}, {threads}: {rounded(one.row_ms)} ms a row (p99 {rounded(one.worst_ms)}), "
        f"{one.rows_per_s:.0f} rows/s, {_energy(one.energy_mj)}; {kept}{expected}"
    )


def _energy(reading: Reading) -> str:
    if isinstance(reading, Absent):
        return "energy not known"
    return f"{rounded(reading.value)} mJ {type(reading).__name__.lower()}"
