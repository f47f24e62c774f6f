"""From a bundle and labelled images to candidates: made on one part, judged on another, certified on the third."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import Struct

from firstline.workbench.certify import Certification
from firstline.workbench.compress.judge import Figures, Verdict, judge, outdone
from firstline.workbench.compress.loss import loss
from firstline.workbench.compress.making import Candidate, Make, Told, Work, made_of
from firstline.workbench.compress.parts import Parts, parted
from firstline.workbench.compress.student import Lesson
from firstline.workbench.compress.target import Costs, Target, measured_costs, read_costs, target_of
from firstline.workbench.compress.trial import accuracy, gathered, in_turns, proved, right
from firstline.workbench.dataset import Dataset
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, encode_manifest, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.tree import Tree
from firstline_core.profile.profile import Profile
from firstline_core.routing.certificate import Contract
from firstline_core.runtime.select import RuntimeOptions

LOSS_DELTA = 0.05
"""Of the bounds of what is lost, where nobody asks for a confidence."""


class Promise(Struct, frozen=True):
    """What is certified of every model."""

    epsilon: float
    delta: float
    contract: Contract


@dataclass(frozen=True, slots=True)
class Compression:
    """What was found.

    Attributes:
        source: what the candidates were made of.
        max_loss: share of accuracy that may be lost.
        loss_delta: of the candidates' bounds of what is lost, all together.
        proved: whether these bounds decide, or what was seen.
        target: the machine that latency and energy are of; None for this one, as the options say.
        there: figures of all models of the bundle, the source among them.
        unmeasured: those of them that did not run on the target, by id, and why; they are nobody's rivals.
        certifications: by id, of the candidates; the promise holds for all of them together.
        rows: images of each part: make, judge, certify.
        certified_accuracy: of every model, by id, on the rows that certify, which chose nothing.
        waited_share: of a measurement that counts, in which other work had its core: the most; 0 where nobody counted.
    """

    source: Model
    target: Target | None
    promise: Promise
    max_loss: float
    loss_delta: float
    proved: bool
    there: tuple[Figures, ...]
    unmeasured: dict[str, str]
    candidates: tuple[Candidate, ...]
    certifications: dict[str, Certification]
    rows: tuple[int, int, int]
    certified_accuracy: dict[str, float]
    waited_share: float


def source_of(manifest: Manifest, wanted: str = "") -> Model:
    """The model to compress: the one named, else the first edge variant in FP32, else such a full model.

    Raises:
        ConfigError: no such model, or none that these techniques take.
    """
    known = {model.id: model for model in manifest.models}
    if wanted and wanted not in known:
        raise ConfigError(f"Bundle '{manifest.name}' has no model '{wanted}'; it has: {', '.join(known)}.")
    fit = [model for model in manifest.models if model.precision == "fp32"]
    if wanted and known[wanted] not in fit:
        raise ConfigError(f"'{wanted}' is {known[wanted].precision}; models in fp32 are compressed.")
    if not fit:
        said = ", ".join(f"{model.id} {model.precision}" for model in manifest.models)
        raise ConfigError(
            f"Bundle '{manifest.name}' says of no model that it is in fp32, and only such are compressed: {said}. "
            "Where one is, say so by precision in the recipe (docs/bundles.md), and create the bundle anew."
        )
    return known[wanted] if wanted else fit[0]


def promise_of(manifest: Manifest, epsilon: float | None, delta: float | None) -> Promise:
    """What the first certified variant promises of its kept answers; 5 % at 95 % where none does, or what is named.

    Raises:
        ConfigError: it promises something of the stream, or of each class, which is not proved of candidates, so that
            nobody is given less than was promised without having said so.
    """
    first = next((model for model in manifest.edge if model.certificate is not None), None)
    carried = first.certificate if first is not None else None
    if first is None or carried is None:
        return Promise(0.05 if epsilon is None else epsilon, 0.05 if delta is None else delta, "disagreement")
    if carried.contract == "stream" or carried.by:
        if epsilon is None or delta is None:
            of_what = f"each {carried.by}" if carried.by else "the stream of all answers"
            raise ConfigError(
                f"The certificate of '{first.id}' promises something of {of_what}; candidates are certified on all "
                "kept answers together, so say with --epsilon and --delta what is to be promised of those."
            )
        return Promise(epsilon, delta, "disagreement" if carried.contract == "stream" else carried.contract)
    return Promise(
        carried.epsilon if epsilon is None else epsilon, carried.delta if delta is None else delta, carried.contract
    )


def compress(
    bundle: Bundle,
    dataset: Dataset,
    folder: Path,
    *,
    source: Model,
    promise: Promise,
    max_loss: float = 0.02,
    confidence: float | None = None,
    lesson: Lesson | None = None,
    profile: Profile | None = None,
    others: Mapping[str, Make] = MappingProxyType({}),
    seed: int = 0,
    checkpoints: Path | None = None,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    told: Told = lambda words: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Compression:
    """Makes, measures, certifies and judges a candidate by each technique.

    Args:
        bundle: with edge and full model.
        dataset: labelled images, drawn from what will be asked, that no model was trained on.
        folder: empty; becomes a copy of the bundle's files with the candidates' beside them.
        source: one of its models, see `source_of`.
        promise: see `promise_of`.
        max_loss: share of accuracy that may be lost.
        confidence: with which no greater loss has to be proved, of all candidates together; None where what is seen
            on the judging rows counts.
        lesson: how a pruned student is taught; None for no student.
        profile: of the machine that they are for, see `target.py`; None for this one, as the options say.
        others: techniques beside ours, by name.
        seed: of the parts.
        checkpoints: where a training that was ended goes on from, see `checkpoint.py`; None for nowhere.
        options: how all of them run, but for what a profile says.
        told: what is being done.
        progress: how much of it.

    Raises:
        ConfigError: the bundle has not both tiers, or not all of its files; data that does not fit or is too little;
            a profile of another machine, on which no candidate can have run.
        ModelLoadError: a model of the bundle does not load here.
        OSError: the folder cannot be written.
    """
    manifest = bundle.manifest
    if manifest.full is None or not manifest.edge:
        raise ConfigError("A candidate is certified against the full model; the bundle needs edge and full model.")
    dataset.check_labels(manifest.labels)
    target = target_of(profile, manifest, Tree()) if profile is not None else None
    told("Reading the data")
    parts = parted(dataset, seed)
    with_all = _copied(bundle, folder)
    for model in manifest.models:
        load_model(with_all, model, options).close()  # one that does not run here says so now, not after minutes
    data = {
        "seed": str(seed),
        "data_sha256": dataset.digest(),
        "make_rows": str(len(parts.make)),
        "judge_rows": str(len(parts.judge)),
        "certify_rows": str(len(parts.certify)),
    }
    work = Work(with_all, source, data, options, told, progress, checkpoints)
    made = made_of(work, parts, lesson, others)
    models = [*manifest.models, *(one.model for one in made if one.model is not None)]
    told("Timing")
    if profile is None or target is None:
        costs = in_turns(with_all, models, parts.judge, options)
    elif target.here:
        costs = measured_costs(_whole(with_all, models), models, profile, progress=progress)
    else:
        costs = read_costs(models, profile)
    return _judged(work, parts, made, costs, target=target, promise=promise, max_loss=max_loss, confidence=confidence)


def _judged(
    work: Work,
    parts: Parts,
    made: Sequence[Candidate],
    costs: Costs,
    *,
    target: Target | None,
    promise: Promise,
    max_loss: float,
    confidence: float | None,
) -> Compression:
    """Verdicts and certificates of what was made and can be measured."""
    bundle, source, options = work.bundle, work.source, work.options
    manifest = bundle.manifest
    loss_delta = LOSS_DELTA if confidence is None else 1 - confidence
    new = [one.model for one in made if one.model is not None and one.model.id in costs.known]
    models = [*manifest.models, *new]
    work.told("Judging")
    judged = gathered(bundle, models, parts.judge, options, work.progress)
    work.told("Certifying")
    rows = gathered(bundle, models, parts.certify, options, work.progress)
    among, full = max(len(new), 1), manifest.full
    prove = partial(
        proved, bundle, epsilon=promise.epsilon, delta=promise.delta, contract=promise.contract, among=among
    )
    proofs = {model.id: prove(rows[model.id]) for model in models if full is None or model.id != full.id}
    was_right = right(judged[source.id])
    losses = {one.id: loss(right(judged[one.id]), was_right, delta=loss_delta, among=among) for one in new}

    def figures(model: Model) -> Figures:
        cost, proof = costs.known.get(model.id), proofs.get(model.id)
        return Figures(
            id=model.id,
            accuracy=accuracy(judged[model.id]),
            latency_ms=cost.latency_ms if cost else None,
            size_bytes=model.artefact.size_bytes,
            kept=proof.proof.kept if proof else None,
            energy_mj=cost.energy_mj if cost else None,
            ran=cost.ran if cost else "",
            loss=losses.get(model.id),
            waited_share=cost.waited_share if cost else 0.0,
        )

    there = tuple(figures(model) for model in manifest.models)
    promised = any(valid_certificate(manifest, model) is not None for model in manifest.edge)
    against = next(one for one in there if one.id == source.id)
    rivals = [one for one in there if one.id in costs.known]
    verdicts = {
        one.id: (
            mine := figures(one),
            judge(mine, against, rivals, max_loss, promised=promised, proved=confidence is not None),
        )
        for one in new
    }
    worse = outdone([mine for mine, verdict in verdicts.values() if verdict.accepted])
    candidates = []
    for one in made:
        if one.model is not None and one.model.id in costs.unknown:
            one = msgspec.structs.replace(one, failed=costs.unknown[one.model.id])  # noqa: PLW2901
        elif one.model is not None:
            mine, verdict = verdicts[one.model.id]
            if why := worse.get(mine.id):
                verdict = Verdict(False, (why,), verdict.times_better)
            one = msgspec.structs.replace(one, figures=mine, verdict=verdict)  # noqa: PLW2901
        candidates.append(one)
    ids = {model.id for model in new}
    return Compression(
        source,
        target,
        promise,
        max_loss,
        loss_delta,
        confidence is not None,
        there,
        {model.id: costs.unknown[model.id] for model in manifest.models if model.id in costs.unknown},
        tuple(candidates),
        {name: proof for name, proof in proofs.items() if name in ids},
        (len(parts.make), len(parts.judge), len(parts.certify)),
        {name: accuracy(evidence) for name, evidence in rows.items()},
        max((cost.waited_share for cost in costs.known.values()), default=0.0),
    )


def _copied(bundle: Bundle, folder: Path) -> Bundle:
    """All of its files, so that candidates can lie beside them."""
    for artefact in bundle.manifest.artefacts:
        if not bundle.file(artefact).is_file():
            raise ConfigError(
                f"{bundle.path} has no {artefact.file}, which its manifest names; compressing needs all of a bundle's "
                "files, so fetch it."
            )
        (folder / artefact.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.file(artefact), folder / artefact.file)
    return Bundle(folder, bundle.manifest)


def _whole(bundle: Bundle, models: Sequence[Model]) -> Bundle:
    """The bundle with the candidates among its edge variants, as a process of its own finds it."""
    full = bundle.manifest.full
    edge = tuple(model for model in models if full is None or model.id != full.id)
    manifest = msgspec.structs.replace(bundle.manifest, edge=edge)
    (bundle.path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return Bundle(bundle.path, manifest)
