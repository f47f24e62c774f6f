"""Plans how a device should run a bundle: a pure function of measurements that changes nothing.

A plan contains the figures that it is based on, and lists in `open` what was not measured. It does not decide which
variant may answer: each answers under its own certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from firstline_core.bundle.manifest import Manifest, Model, valid_certificate
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.readings import Reading
from firstline_core.planning.quickest import quickest
from firstline_core.planning.split import Splits, Stretch, Surroundings, Way, best, stretches, ways
from firstline_core.profile.profile import Key, Point, Profile, sweet_spot


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


class Share(Struct, frozen=True):
    """The operators of the planned variant that one provider runs, by the runtime's profiler."""

    provider: str
    kinds: tuple[str, ...]
    nodes: int
    query_ms: float


class Carried(Struct, frozen=True):
    """The form in which an escalated row is sent, and so where the full model's preprocessing runs.

    Attributes:
        form: the encoded input, which the gateway preprocesses; or the full model's tensor, preprocessed here.
        encoded_bytes, tensor_bytes: of a row.
        prepare_ms: time to preprocess a row for the full model, on the measured machine.
    """

    form: Literal["encoded", "tensor"]
    encoded_bytes: float
    tensor_bytes: float | None
    prepare_ms: float


class FullModel(Struct, frozen=True):
    """The ways to the full model's answer.

    Attributes:
        way: the fastest one over the stated link; None without a bandwidth.
        latency_ms: of that way.
        by_bandwidth: all ways that are the fastest at some bandwidth.
    """

    way: Way | None
    latency_ms: float | None
    by_bandwidth: tuple[Stretch, ...]


class Plan(Struct, frozen=True):
    """How to run one bundle on one device.

    Attributes:
        chosen: how edge answers are computed; None if no variant was measured here.
        others: other candidates, best first.
        batch: the smallest batch that is nearly as fast as the best; None if only one row was measured.
        partition: which provider runs which operators; empty if it was not measured.
        throttled_ms: median of a row under sustained load; None if it was not measured.
        carried, full: None if nothing was measured of the full model.
        open: missing or invalid measurements, in sentences.
    """

    bundle: str
    version: int
    machine: str
    chosen: Candidate | None
    others: tuple[Candidate, ...]
    batch: int | None
    partition: tuple[Share, ...]
    throttled_ms: float | None
    carried: Carried | None
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
    costs_ms = full.latency_ms if full is not None else None
    found = [
        _candidate(manifest, point, costs_ms) for point in points if _is_edge(manifest, point) and point.key.of_one_row
    ]
    ranked = _ranked(manifest, found, notes)
    chosen = ranked[0] if ranked else None
    own = [point for point in points if chosen is not None and _same(point.key, chosen)]
    point = next((one for one in own if one.key.of_one_row), None)
    return Plan(
        manifest.name,
        manifest.version,
        profile.machine if profile is not None else "",
        chosen,
        tuple(ranked[1:]),
        _batch(own, notes),
        _partition(point, notes),
        _throttled(own, notes),
        _carried(manifest, points, splits, notes),
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
        notes.append("Which providers really work here was not tried: edge-agent hardware --measure.")
    if catalogue is not None and profile.fingerprint != catalogue.fingerprint:
        notes.append(
            f"The profile is of '{profile.machine}', another machine or other software: its figures may differ."
        )
    digests = {model.digest: model for model in manifest.models}
    usable = []
    for point in profile.points:
        model = digests.get(point.key.model_digest)
        if model is None:
            notes.append(f"The profile's '{point.key.variant}' is not this bundle's: it is passed over.")
        elif (reason := _broken(model, point.key, catalogue)) is not None:
            notes.append(f"{point.key.provider} is passed over: {reason}")
        else:
            usable.append(point)
    measured = {point.key.model_digest for point in usable}
    notes += [f"Variant '{model.id}' was not measured here." for model in manifest.edge if model.digest not in measured]
    return usable


def _broken(model: Model, key: Key, catalogue: Catalogue | None) -> str | None:
    """Why this provider does not work here; None if it works or was not tried."""
    engine = catalogue.engine(model.runtime, key.provider) if catalogue is not None else None
    return engine.reason if engine is not None and not engine.works else None


def _is_edge(manifest: Manifest, point: Point) -> bool:
    return any(point.key.model_digest == model.digest for model in manifest.edge)


def _same(key: Key, chosen: Candidate) -> bool:
    return (key.variant, key.provider, key.threads) == (chosen.variant, chosen.provider, chosen.threads)


def _candidate(manifest: Manifest, point: Point, full_ms: float | None) -> Candidate:
    model = next(model for model in manifest.edge if model.digest == point.key.model_digest)
    certificate = valid_certificate(manifest, model)
    kept = certificate.kept if certificate is not None else None
    row_ms = point.query.p50_ms
    return Candidate(
        model.id,
        point.key.provider,
        point.key.threads,
        row_ms,
        point.query.p99_ms,
        point.offline_per_s,
        point.energy_mj,
        kept,
        row_ms + (1 - kept) * full_ms if kept is not None and full_ms is not None else None,
    )


def _ranked(manifest: Manifest, found: Sequence[Candidate], notes: list[str]) -> list[Candidate]:
    """Best first: by expected time if it is known for every variant, else by the bundle's order."""
    each: dict[str, list[Candidate]] = {}
    for one in found:
        each.setdefault(one.variant, []).append(one)
    leaders = [quickest(of, lambda one: (one.row_ms, one.threads)) for of in each.values()]
    order = [model.id for model in manifest.edge]
    if leaders and all(one.expected_ms is not None for one in leaders):
        leaders.sort(key=lambda one: one.expected_ms or 0.0)
    else:
        leaders.sort(key=lambda one: order.index(one.variant))
        if len(leaders) > 1:
            notes.append(
                "What an escalation takes, or what a variant keeps, is not known: the bundle's own order decides "
                "between variants, the profile between ways to run each."
            )
    rest = sorted((one for one in found if one not in leaders), key=lambda one: one.row_ms)
    return [*leaders, *rest]


def _batch(own: Sequence[Point], notes: list[str]) -> int | None:
    warm = [point for point in own if point.key.condition == "warm"]
    spot = sweet_spot(warm)
    if spot is None or len(warm) < 2:
        if own:
            notes.append("No batch of several rows was measured: profile --batches 1,4,16.")
        return None
    return spot.key.batch


def _partition(point: Point | None, notes: list[str]) -> tuple[Share, ...]:
    if point is None:
        return ()
    if not point.operators:
        notes.append(
            f"Which operators run where was not measured: {(point.operators_absent or 'no reason given').rstrip('.')}."
        )
        return ()
    providers = dict.fromkeys(operator.provider or point.ran_on for operator in point.operators)
    return tuple(
        Share(
            provider,
            tuple(operator.kind for operator in of),
            sum(operator.nodes for operator in of),
            sum(operator.query_ms for operator in of),
        )
        for provider in providers
        for of in [[one for one in point.operators if (one.provider or point.ran_on) == provider]]
    )


def _throttled(own: Sequence[Point], notes: list[str]) -> float | None:
    hot = [point for point in own if point.key.batch == 1 and point.key.condition != "warm"]
    if own and not hot:
        notes.append("How it runs under sustained load was not measured: profile --sustained 10.")
    return max((point.query.p50_ms for point in hot), default=None)


def _full_point(manifest: Manifest, points: Iterable[Point]) -> Point | None:
    digest = manifest.full_digest
    of = [point for point in points if point.key.model_digest == digest and point.key.of_one_row]
    return min(of, key=lambda point: point.query.p50_ms, default=None)


def _carried(manifest: Manifest, points: Iterable[Point], splits: Splits | None, notes: list[str]) -> Carried | None:
    """The smaller form; the encoded input if they are equal, because the gateway preprocesses at least as fast."""
    if manifest.full is None:
        return None
    point = _full_point(manifest, points)
    if point is not None:
        encoded, tensor, ms = point.moved.received_bytes, point.moved.input_bytes, point.prepare.p50_ms
        return Carried("tensor" if tensor < encoded else "encoded", encoded, tensor, ms)
    if splits is not None and splits.model_digest == manifest.full.digest:
        notes.append("How large the full model's input tensor is was not measured here.")
        return Carried("encoded", splits.input_bytes, None, splits.prepare_ms)
    notes.append("The full model was not measured: what travels is the input as it came.")
    return None


def _full(
    manifest: Manifest, points: Sequence[Point], splits: Splits | None, link: Link, notes: list[str]
) -> FullModel | None:
    if manifest.full is None:
        return None
    if splits is None:
        notes.append("Splits of the full model were not measured: firstline split.")
        return None
    if splits.model_digest != manifest.full.digest:
        notes.append("The splits that were given are of another full model: they are passed over.")
        return None
    point, slowdown = _full_point(manifest, points), 1.0
    if point is None:
        notes.append("The full model was not measured here: this device is taken to be as quick as where it was split.")
    else:
        slowdown = point.query.p50_ms / (splits.prepare_ms + splits.model_ms)
    if link.round_trip_ms is None:
        notes.append("The round trip to the gateway is not stated: it is taken for 0 ms, which flatters the gateway.")
    of = ways(splits, Surroundings(link.round_trip_ms or 0.0, slowdown))
    if link.bytes_per_s is None:
        notes.append("The bandwidth to the gateway is not stated: the best way is given by bandwidth.")
        return FullModel(None, None, tuple(stretches(of)))
    way = best(of, link.bytes_per_s)
    return FullModel(way, way.latency_ms(link.bytes_per_s), tuple(stretches(of)))
