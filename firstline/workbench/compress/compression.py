"""Makes candidates on one part of the data, judges them on another, and certifies them on the third."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from firstline.workbench.certify import Certification, Terms
from firstline.workbench.compress.candidates import Candidate, Work, make_candidates
from firstline.workbench.compress.evaluation import (
    Cost,
    Parts,
    accuracy,
    measured_costs,
    profiled_costs,
    proved,
    split_data,
)
from firstline.workbench.compress.judge import Figures, judge
from firstline.workbench.compress.student import Lesson
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.evaluate import ALL_VARIANTS, Measured, measure
from firstline.workbench.event_promises import EventBound, require_event
from firstline.workbench.evidence import evidence_of, require_labels
from firstline.workbench.quality import require_fitting_labels
from firstline.workbench.row_checks import data_rows, require_independent_rows
from firstline.workbench.selection import BUNDLE
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Manifest, Model, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.profile.profile import Profile
from firstline_core.runtime.select import RuntimeOptions


class Rule(Struct, frozen=True):
    """The requirements for a candidate, in addition to those of `judge`.

    Attributes:
        promise: that it is certified for, by the bundle's own score.
        max_loss: share of accuracy that may be lost.
    """

    promise: Terms
    max_loss: float = 0.02


class Compression(Struct, frozen=True):
    """The result of a compression.

    Attributes:
        source: the model that the candidates were made of.
        target: the machine whose profile has latency and energy; "" for this machine, where latency is measured.
        rule: that the candidates were judged by.
        existing: figures of all models of the bundle, the source included; one that did not run on the target has no
            latency, and is not compared.
        certifications: of the candidates, by id; the promise holds for all of them together.
        rows: images of each part: make, judge, certify.
        rows_checked: rows whose independence was checked, of each model of the bundle that runs here, by id.
        certified_accuracy: of every model, by id, on the certifying rows, which chose nothing.
    """

    source: Model
    target: str
    rule: Rule
    existing: tuple[Figures, ...]
    candidates: tuple[Candidate, ...]
    certifications: dict[str, Certification]
    rows: tuple[int, int, int]
    rows_checked: dict[str, int]
    certified_accuracy: dict[str, float]


def source_of(manifest: Manifest, wanted: str = "") -> Model:
    """Returns the model to compress: the wanted one, else the first edge variant in FP32, else the full model in FP32.

    Raises:
        ConfigError: there is no such model, it is not in FP32, or it has no axis of rows.
    """
    fit = (model for model in manifest.models if model.precision == "fp32")
    source = manifest.model(wanted) if wanted else next(fit, None)
    if source is None:
        precisions = ", ".join(f"{model.id} {model.precision}" for model in manifest.models)
        raise ConfigError(
            f"Bundle '{manifest.name}' has no model in fp32, and only such are compressed: {precisions}. "
            "Where one is, say so by precision in the recipe (docs/reference/bundles.md), and create the bundle again."
        )
    if source.precision != "fp32":
        raise ConfigError(f"'{wanted}' is {source.precision}; models in fp32 are compressed.")
    if source.without_rows:
        raise ConfigError(f"'{source.id}' has no axis of rows; export it with one to compress it.")
    return source


def promise_of(
    manifest: Manifest, epsilon: float | None, delta: float | None, events: Mapping[str, EventBound]
) -> Terms:
    """Returns the stated promise; by default that of the first certified variant, or 5 % at 95 %.

    Args:
        manifest: of the bundle to compress.
        epsilon: None if it is not stated.
        delta: None if it is not stated.
        events: the stated promises about events, without epsilon and delta.

    Raises:
        ConfigError: the variant promises something about the stream or about each class, which is not proved for
            candidates, or about events; the user has to state a promise, so that it is not weakened silently.
    """
    first = next((model for model in manifest.edge if model.certificate is not None), None)
    carried = first.certificate if first is not None else None
    if carried is not None and not events and epsilon is None and delta is None:
        events = {name: EventBound(one.epsilon, one.delta) for name, one in carried.events.items()}
    stated = bool(events) or (epsilon is not None and delta is not None)
    other = carried is not None and (carried.contract in ("stream", "events") or bool(carried.by))
    if first is not None and carried is not None and other and not stated:
        kinds = {"stream": "the stream of all answers", "events": "single events"}
        of_what = f"each {carried.by}" if carried.by else kinds[carried.contract]
        raise ConfigError(
            f"The certificate of '{first.id}' promises something of {of_what}; candidates are certified on all edge "
            "answers together, so say with --epsilon and --delta what is to be promised of those, or of events with "
            "--promise."
        )
    usual = (carried.epsilon, carried.delta) if carried is not None else (0.05, 0.05)
    terms = Terms(
        usual[0] if epsilon is None else epsilon,
        usual[1] if delta is None else delta,
        "harm" if carried is not None and carried.contract == "harm" else "disagreement",
        score=BUNDLE,
        select_fraction=0.0,
    )
    return Terms(0, 0, score=BUNDLE, select_fraction=0.0).about(events) if events else terms


def compress(
    bundle: Bundle,
    dataset: Dataset,
    folder: Path,
    *,
    source: Model,
    rule: Rule,
    lesson: Lesson | None = None,
    profile: Profile | None = None,
    seed: int = 0,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    report: Callable[[str], None] = lambda step: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Compression:
    """Makes, measures, certifies and judges a candidate by each technique.

    Args:
        bundle: with edge and full model.
        dataset: labelled images from the field's distribution that no model was trained on.
        folder: empty; becomes a copy of the bundle's files, with the candidates'.
        source: one of its models, see `source_of`.
        rule: that candidates are judged by; see `promise_of`.
        lesson: how a student is trained; None for no student.
        profile: of the target machine; None for this machine.
        seed: of the parts.
        options: how the models run.
        report: receives what is done next.
        progress: receives how much of it is done.

    Raises:
        ConfigError: the bundle lacks a tier or a file; the data or its labels do not fit, or are too few; no candidate
            can have run on the profile's machine.
        ModelLoadError: a model of the bundle does not load here.
        OSError: the folder cannot be written.
    """
    manifest = bundle.manifest
    if manifest.full is None or not manifest.edge:
        raise ConfigError("A candidate is certified against the full model; the bundle needs edge and full model.")
    if not rule.promise.events:
        require_event(manifest)
    if profile is not None:
        _require_points(profile, manifest, source)
    truth = dataset.required_truth(manifest.task, manifest.inputs)
    if rule.promise.contract == "harm":
        require_labels(manifest.task, truth, str(dataset.path))
    report("Reading the data")
    parts = split_data(dataset, manifest.inputs, seed)
    copy = _copied(bundle, folder)
    for model in manifest.models:
        load_model(copy, model, options).close()  # fail now, not after minutes
    rows_checked = require_independent_rows(bundle, manifest.models, parts.make, options)
    counts = (len(parts.make), len(parts.judge), len(parts.certify))
    data = {"seed": str(seed), "data_sha256": dataset.digest(manifest.inputs, truth)}
    data |= {f"{name}_rows": str(rows) for name, rows in zip(("make", "judge", "certify"), counts, strict=True)}
    trial = data_rows(parts.make, bundle)
    work = Work(copy, source, data, options, report, progress, trial, lesson)
    return _judged(work, parts, make_candidates(work, parts), rows_checked=rows_checked, profile=profile, rule=rule)


def _judged(
    work: Work,
    parts: Parts,
    made: Sequence[Candidate],
    *,
    rows_checked: dict[str, int],
    profile: Profile | None,
    rule: Rule,
) -> Compression:
    """Judges and certifies all models whose cost is known."""
    bundle, manifest, source = work.bundle, work.bundle.manifest, work.source
    models = [*manifest.models, *(one.model for one in made if one.model is not None)]
    work.report("Timing")
    if profile is None:
        costs = measured_costs(bundle, models, parts.judge, work.options)
    else:
        costs = profiled_costs(models, profile)
    new = [one.model for one in made if one.model is not None and one.model.id in costs]
    models, among = [*manifest.models, *new], max(len(new), 1)
    work.report("Judging")
    whole = Bundle(bundle.path, replace(manifest, edge=tuple(model for model in models if model != manifest.full)))
    judged = _measured(whole, parts.judge, work)
    if judged.full is not None and judged.truth is not None:
        # Against wrong labels every model is as bad as by chance, so that no candidate would lose accuracy.
        require_fitting_labels(manifest.task, judged.full.outputs, judged.truth)
    work.report("Certifying")
    certified = _measured(whole, parts.certify, work)
    placing = evidence_of(judged)
    proofs = {
        name: proved(bundle, evidence, rule.promise, among=among, judged=placing[name])
        for name, evidence in evidence_of(certified).items()
    }
    accuracies = _accuracies(judged)
    figures = {}
    for model in models:
        cost = costs.get(model.id, Cost())
        figures[model.id] = Figures(
            id=model.id,
            accuracy=accuracies[model.id],
            size_bytes=model.artefact.size_bytes,
            kept=proofs[model.id].result.kept if model.id in proofs else None,
            **cost._asdict(),
        )
    there = tuple(figures[model.id] for model in manifest.models)
    rivals = [one for one in there if one.latency_ms is not None]
    promised = any(valid_certificate(manifest, model) is not None for model in manifest.edge)

    def with_verdict(one: Candidate) -> Candidate:
        if one.model is None:
            return one
        if one.model.id not in costs and profile is not None:
            return replace(one, failed=f"it never ran on '{profile.machine}': its profile has no model of this digest")
        found = figures[one.model.id]
        verdict = judge(found, figures[source.id], rivals, rule.max_loss, promised=promised)
        return replace(one, figures=found, verdict=verdict)

    return Compression(
        source=source,
        target="" if profile is None else profile.machine,
        rule=rule,
        existing=there,
        candidates=tuple(map(with_verdict, made)),
        certifications={one.id: proofs[one.id] for one in new},
        rows=(len(parts.make), len(parts.judge), len(parts.certify)),
        rows_checked=rows_checked,
        certified_accuracy=_accuracies(certified),
    )


def _measured(bundle: Bundle, dataset: Dataset, work: Work) -> Measured:
    return measure(
        bundle, dataset, variants=[ALL_VARIANTS], options=work.options, progress=work.progress, all_evidence=True
    )


def _accuracies(measured: Measured) -> dict[str, float]:
    """Returns the accuracy of every model, by id."""
    answers = [*(edge.answers for edge in measured.edges), *filter(None, [measured.full])]
    return {one.model.id: accuracy(measured, one) for one in answers}


def _require_points(profile: Profile, manifest: Manifest, source: Model) -> None:
    """Raises ConfigError if the source, or every model other than the bundle's own, never ran on the machine."""
    ran = {point.key.model_digest for point in profile.points if point.key.of_one_row}
    if ran <= {model.digest for model in manifest.models}:
        raise ConfigError(
            f"The profile of '{profile.machine}' has one row through no model but the bundle's own, and times are not "
            "scaled from other models. Write the candidates with --force and --out DIR, measure DIR there (edge-agent "
            "profile create DIR), and give that profile, with the same data and seed."
        )
    if source.digest not in ran:
        raise ConfigError(
            f"The profile of '{profile.machine}' has one row through no '{source.id}', which the candidates are made "
            "of and compared with. Measure it there (edge-agent profile create DIR), or name a model that ran there "
            "with --of."
        )


def _copied(bundle: Bundle, folder: Path) -> Bundle:
    """Copies all files of the bundle."""
    for artefact in bundle.manifest.artefacts:
        if not bundle.file(artefact).is_file():
            raise ConfigError(
                f"{bundle.path} has no {artefact.file}, which its manifest names; compressing needs all of a bundle's "
                "files, so fetch it."
            )
        (folder / artefact.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.file(artefact), folder / artefact.file)
    return Bundle(folder, bundle.manifest)


def next_version(manifest: Manifest, found: Compression, take: Collection[str]) -> Manifest:
    """Returns the manifest of the next version, still with the old golden answers.

    Args:
        manifest: of the bundle that was compressed.
        found: the result of the compression.
        take: ids of the candidates to add.
    """
    new = [
        replace(
            one.model,
            certificate=found.certifications[one.model.id].certificate,
            measured={"accuracy": round(found.certified_accuracy[one.model.id], 4)},  # on rows that chose nothing
        )
        for one in found.candidates
        if one.model is not None and one.figures is not None and one.model.id in take
    ]
    figures = {one.id: one for one in found.existing}
    figures |= {one.figures.id: one.figures for one in found.candidates if one.figures is not None}
    edge = ordered_variants(manifest.edge, new, figures)
    return replace(manifest, version=manifest.version + 1, edge=edge)


def ordered_variants(there: Sequence[Model], new: Sequence[Model], figures: Mapping[str, Figures]) -> tuple[Model, ...]:
    """Inserts new variants into the edge variants, of which a device takes the first that it can load.

    A new variant is inserted before the first one that keeps fewer answers under the same promise, or as many and is
    slower, or of unknown time. A variant without a certificate is behind all that have one. Existing variants stay in
    their order.
    """

    def rank(model: Model) -> tuple[float, float]:
        latency_ms = figures[model.id].known_ms
        return -(figures[model.id].kept or 0.0), inf if latency_ms is None else latency_ms

    placed = list(there)
    for model in new:
        position = next((at for at, one in enumerate(placed) if rank(one) > rank(model)), len(placed))
        if model.certificate is None:
            behind = max((at + 1 for at, one in enumerate(placed) if one.certificate is not None), default=0)
            position = max(position, behind)
        placed.insert(position, model)
    return tuple(placed)
