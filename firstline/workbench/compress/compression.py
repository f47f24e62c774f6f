"""Makes candidates on one part of the data, judges them on another, and certifies them on the third."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from firstline.workbench.certify import Certification, EdgeContract, Terms
from firstline.workbench.compress.candidates import Candidate, Work, make_candidates
from firstline.workbench.compress.costs import Costs, Target, measure_in_turns, measured_costs, read_costs, target_of
from firstline.workbench.compress.evaluation import Parts, accuracy, proved, right, split_data
from firstline.workbench.compress.judge import Figures, Loss, Verdict, judge, loss, outdone
from firstline.workbench.compress.student import Lesson
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.evidence import gather_all
from firstline.workbench.promises import EventBound, require_event
from firstline.workbench.row_checks import data_rows, require_independent_rows
from firstline.workbench.selection import BUNDLE
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, encode_manifest, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, listed
from firstline_core.hardware.kernel_files import Tree
from firstline_core.profile.profile import Profile
from firstline_core.runtime.select import RuntimeOptions

LOSS_DELTA = 0.05
"""Of the bounds of lost accuracy, without a required confidence."""


class Rule(Struct, frozen=True):
    """The requirements for a candidate, in addition to those of `judge`.

    Attributes:
        promise: that it is certified for, by the bundle's own score.
        max_loss: share of accuracy that may be lost.
        confidence: with which no greater loss has to be proved, for all candidates together; None if the loss on the
            judging rows counts.
    """

    promise: Terms
    max_loss: float = 0.02
    confidence: float | None = None

    @property
    def loss_delta(self) -> float:
        """Of the candidates' bounds of lost accuracy, for all of them together."""
        return LOSS_DELTA if self.confidence is None else 1 - self.confidence


class Compression(Struct, frozen=True):
    """The result of a compression.

    Attributes:
        source: the model that the candidates were made of.
        target: the machine of latency and energy; None for this one, as the options say.
        rule: that the candidates were judged by.
        existing: figures of all models of the bundle, the source included.
        unmeasured: models of the bundle that did not run on the target, by id, and why; they are not compared.
        certifications: of the candidates, by id; the promise holds for all of them together.
        rows: images of each part: make, judge, certify.
        rows_checked: rows whose independence was checked, of each model of the bundle that runs here, by id.
        certified_accuracy: of every model, by id, on the certifying rows, which chose nothing.
        waited_share: largest share of a measurement in which other work had the core; 0 if it was not counted.
    """

    source: Model
    target: Target | None
    rule: Rule
    existing: tuple[Figures, ...]
    unmeasured: dict[str, str]
    candidates: tuple[Candidate, ...]
    certifications: dict[str, Certification]
    rows: tuple[int, int, int]
    rows_checked: dict[str, int]
    certified_accuracy: dict[str, float]
    waited_share: float


def source_of(manifest: Manifest, wanted: str = "") -> Model:
    """Returns the model to compress: the wanted one, else the first edge variant in FP32, else the full model in FP32.

    Raises:
        ConfigError: there is no such model, it is not in FP32, or it has no axis of rows.
    """
    known = {model.id: model for model in manifest.models}
    if wanted and wanted not in known:
        raise ConfigError(f"Bundle '{manifest.name}' has no model '{wanted}'{listed(wanted, known, 'it has:')}")
    fit = [model for model in manifest.models if model.precision == "fp32"]
    if wanted and known[wanted] not in fit:
        raise ConfigError(f"'{wanted}' is {known[wanted].precision}; models in fp32 are compressed.")
    if not fit:
        precisions = ", ".join(f"{model.id} {model.precision}" for model in manifest.models)
        raise ConfigError(
            f"Bundle '{manifest.name}' has no model in fp32, and only such are compressed: {precisions}. "
            "Where one is, say so by precision in the recipe (docs/reference/bundles.md), and create the bundle again."
        )
    source = known[wanted] if wanted else fit[0]
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
    stated = epsilon is not None and delta is not None
    if events:
        return _terms(0, 0, events=events)
    if carried is not None and carried.events and epsilon is None and delta is None:
        bounds = {name: EventBound(one.epsilon, one.delta) for name, one in carried.events.items()}
        return _terms(0, 0, events=bounds)
    if first is None or carried is None:
        return _terms(0.05 if epsilon is None else epsilon, 0.05 if delta is None else delta)
    if not stated and (carried.contract in ("stream", "events") or carried.by):
        kinds = {"stream": "the stream of all answers", "events": "single events"}
        of_what = f"each {carried.by}" if carried.by else kinds[carried.contract]
        raise ConfigError(
            f"The certificate of '{first.id}' promises something of {of_what}; candidates are certified on all "
            "edge answers together, so say with --epsilon and --delta what is to be promised of those, or of events "
            "with --promise."
        )
    return _terms(
        carried.epsilon if epsilon is None else epsilon,
        carried.delta if delta is None else delta,
        "harm" if carried.contract == "harm" else "disagreement",
    )


def _terms(
    epsilon: float, delta: float, contract: EdgeContract = "disagreement", *, events: Mapping[str, EventBound] = {}
) -> Terms:
    terms = Terms(epsilon, delta, contract, score=BUNDLE, select_fraction=0.0)
    return terms.about(events) if events else terms


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
    checkpoints: Path | None = None,
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
        profile: of the target machine, see `costs.py`; None for this machine, as the options say.
        seed: of the parts.
        checkpoints: folder that a training is saved in and resumed from; None for none.
        options: how the models run, unless a profile says otherwise.
        report: receives what is done next.
        progress: receives how much of it is done.

    Raises:
        ConfigError: the bundle lacks a tier or a file; the data does not fit or is too little; no candidate can have
            run on the profile's machine.
        ModelLoadError: a model of the bundle does not load here.
        OSError: the folder cannot be written.
    """
    manifest = bundle.manifest
    if manifest.full is None or not manifest.edge:
        raise ConfigError("A candidate is certified against the full model; the bundle needs edge and full model.")
    if not rule.promise.events:
        require_event(manifest)
    truth = dataset.required_truth(manifest.task, manifest.inputs)
    target = target_of(profile, manifest, Tree()) if profile is not None else None
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
    work = Work(copy, source, data, options, report, progress, trial, lesson, checkpoints)
    made = make_candidates(work, parts)
    models = [*manifest.models, *(one.model for one in made if one.model is not None)]
    report("Timing")
    if profile is None or target is None:
        costs = measure_in_turns(copy, models, parts.judge, options)
    elif target.here:
        costs = measured_costs(_with_candidates(copy, models), models, profile, progress=progress)
    else:
        costs = read_costs(models, profile)
    return _judged(work, parts, made, rows_checked=rows_checked, costs=costs, target=target, rule=rule)


def _judged(
    work: Work,
    parts: Parts,
    made: Sequence[Candidate],
    *,
    rows_checked: dict[str, int],
    costs: Costs,
    target: Target | None,
    rule: Rule,
) -> Compression:
    """Judges and certifies the candidates whose cost is known."""
    bundle, manifest, source = work.bundle, work.bundle.manifest, work.source
    new = [one.model for one in made if one.model is not None and one.model.id in costs.known]
    models, among = [*manifest.models, *new], max(len(new), 1)
    work.report("Judging")
    judged = gather_all(bundle, models, parts.judge, options=work.options, progress=work.progress)
    work.report("Certifying")
    certified = gather_all(bundle, models, parts.certify, options=work.options, progress=work.progress)
    proofs = {
        model.id: proved(bundle, certified[model.id], rule.promise, among=among, judged=judged[model.id])
        for model in models
        if manifest.full is None or model.id != manifest.full.id
    }
    was_right = right(judged[source.id])
    losses = {one.id: loss(right(judged[one.id]), was_right, delta=rule.loss_delta, among=among) for one in new}
    figures = {
        model.id: _figures(model, accuracy(judged[model.id]), costs, proofs.get(model.id), losses.get(model.id))
        for model in models
    }
    verdicts = _verdicts(manifest, source, figures, new, costs=costs, rule=rule)
    return Compression(
        source,
        target,
        rule,
        tuple(figures[model.id] for model in manifest.models),
        {model.id: costs.unknown[model.id] for model in manifest.models if model.id in costs.unknown},
        tuple(_with_verdict(one, figures, verdicts, costs) for one in made),
        {one.id: proofs[one.id] for one in new},
        (len(parts.make), len(parts.judge), len(parts.certify)),
        rows_checked,
        {name: accuracy(evidence) for name, evidence in certified.items()},
        max((cost.waited_share for cost in costs.known.values()), default=0.0),
    )


def _figures(
    model: Model, accuracy: float, costs: Costs, certification: Certification | None, lost: Loss | None
) -> Figures:
    cost = costs.known.get(model.id)
    figures = Figures(
        model.id,
        accuracy,
        None,
        model.artefact.size_bytes,
        kept=certification.result.kept if certification else None,
        loss=lost,
    )
    return replace(figures, **asdict(cost)) if cost is not None else figures


def _verdicts(
    manifest: Manifest,
    source: Model,
    figures: Mapping[str, Figures],
    new: Sequence[Model],
    *,
    costs: Costs,
    rule: Rule,
) -> dict[str, Verdict]:
    """Verdicts by the candidates' ids; accepted ones that another dominates are refused."""
    promised = any(valid_certificate(manifest, model) is not None for model in manifest.edge)
    rivals = [figures[model.id] for model in manifest.models if model.id in costs.known]
    proved = rule.confidence is not None
    verdicts = {
        one.id: judge(figures[one.id], figures[source.id], rivals, rule.max_loss, promised=promised, proved=proved)
        for one in new
    }
    for name, why in outdone([figures[name] for name, verdict in verdicts.items() if verdict.accepted]).items():
        verdicts[name] = Verdict(False, (why,), verdicts[name].times_better)
    return verdicts


def _with_verdict(
    one: Candidate, figures: Mapping[str, Figures], verdicts: Mapping[str, Verdict], costs: Costs
) -> Candidate:
    if one.model is None:
        return one
    if one.model.id in costs.unknown:
        return replace(one, failed=costs.unknown[one.model.id])
    return replace(one, figures=figures[one.model.id], verdict=verdicts[one.model.id])


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


def _with_candidates(bundle: Bundle, models: Sequence[Model]) -> Bundle:
    """The bundle with the candidates as edge variants, readable by the processes that measure."""
    full = bundle.manifest.full
    manifest = replace(bundle.manifest, edge=tuple(model for model in models if model != full))
    (bundle.path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return Bundle(bundle.path, manifest)
