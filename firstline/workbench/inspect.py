"""Summarises a bundle, and verifies it on this machine: `firstline bundle get` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from firstline.workbench.model_checks import misfit, no_probabilities, trial_rows
from firstline.workbench.row_checks import find_dependence, refusal
from firstline.workbench.step_syntax import spell
from firstline_core.bundle.loading import load_model, load_scorer
from firstline_core.bundle.manifest import Model, Policy, certificate_problem
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import FirstlineError
from firstline_core.processing.steps import InputSpec
from firstline_core.routing.certificate import Certificate
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES

Outcome = Literal["ok", "absent", "failed"]


class ModelSummary(Struct, frozen=True):
    """One model; `digest` covers its bytes, its processing and `batch`, `sha256` its bytes.

    `uncertified` says why an edge variant has no valid certificate; "" if it has one, and for the full model.
    """

    id: str
    tier: Literal["edge", "full"]
    file: str
    present: bool
    size_bytes: int
    sha256: str
    digest: str
    runtime: str
    precision: str
    batch: int | None
    preprocess: str
    postprocess: str
    measured: Mapping[str, float]
    certificate: Certificate | None
    uncertified: str


class Summary(Struct, frozen=True):
    """A summary of a bundle."""

    name: str
    version: int
    task: str
    inputs: tuple[InputSpec, ...]
    labels: tuple[str, ...]
    policy: Policy
    models: tuple[ModelSummary, ...]


class Check(Struct, frozen=True):
    """The result of one check; `detail` describes it.

    `rows_checked` is the number of rows whose independence was checked; None if no rows ran.
    """

    what: str
    outcome: Outcome
    detail: str
    rows_checked: int | None = None


def summarise(bundle: Bundle) -> Summary:
    manifest = bundle.manifest

    def model(entry: Model) -> ModelSummary:
        return ModelSummary(
            id=entry.id,
            tier="full" if entry is manifest.full else "edge",
            file=entry.artefact.file,
            present=bundle.has(entry),
            size_bytes=entry.artefact.size_bytes,
            sha256=entry.artefact.sha256,
            digest=entry.digest,
            runtime=entry.runtime,
            precision=entry.precision,
            batch=entry.batch,
            preprocess=_preprocess(entry),
            postprocess=spell(entry.postprocess),
            measured=entry.measured,
            certificate=entry.certificate,
            uncertified="" if entry is manifest.full else certificate_problem(manifest, entry),
        )

    return Summary(
        name=manifest.name,
        version=manifest.version,
        task=manifest.task.kind,
        inputs=manifest.inputs,
        labels=manifest.labels,
        policy=manifest.policy,
        models=tuple(model(entry) for entry in manifest.models),
    )


def _preprocess(model: Model) -> str:
    if len(model.inputs) == 1:
        return spell(model.inputs[0].preprocess)
    parts: list[str] = []
    for each in model.inputs:
        fed = each.tensor if each.tensor == each.name else f"{each.tensor} = {each.name}"
        parts.append(": ".join(filter(None, [fed, spell(each.preprocess)])))
    return "; ".join(parts)


def verify(path: Path, options: RuntimeOptions = RuntimeOptions()) -> tuple[Check, ...]:  # noqa: B008 (frozen)
    """Checks the size and SHA-256 of every file, and loads and runs every model that is present.

    Args:
        path: the bundle.
        options: how the models run.

    Returns:
        A check of the files, of each model and of the score. A missing file is "absent", which is not a failure,
        because a device receives only the files that it needs.
    """
    try:
        bundle = open_bundle(path)
    except FirstlineError as error:
        return (Check("files", "failed", error.message),)
    artefacts = bundle.manifest.artefacts
    here = sum(bundle.file(artefact).is_file() for artefact in artefacts)
    checks = [Check("files", "ok", f"{here} of {len(artefacts)} here, each with its size and sha256")]
    checks += [_verified(bundle, model, options) for model in bundle.manifest.models]
    checks.append(_verified_score(bundle, options))
    return tuple(checks)


def _verified(bundle: Bundle, model: Model, options: RuntimeOptions) -> Check:
    what = f"model {model.id}"
    if missing := bundle.missing(model):
        return Check(what, "absent", f"{', '.join(missing)} is not here")
    try:
        with closing(load_model(bundle, model, options)) as loaded:
            dependence = find_dependence(bundle, loaded)
            checked = dependence.rows if dependence is not None else None
            if dependence is not None and dependence.depends_on != "nothing":
                return Check(what, "failed", refusal(dependence, model), checked)
            inputs = trial_rows(loaded)
            if inputs is None:
                result = f"loads on {loaded.runtime.provider}; its input's sizes are free, so not run"
                return Check(what, "ok", result, checked)
            rows = loaded.prepare(inputs)
            outputs = loaded.compute(rows).outputs
            range_error = misfit(loaded, inputs, rows)
    except FirstlineError as error:
        return Check(what, "failed", error.message)
    first = bundle.manifest.task.outputs[0].name
    if not np.isfinite(outputs[first]).all():
        return Check(what, "failed", "gives NaN or infinity for noise", checked)
    if range_error is not None and range_error.hopeless:
        return Check(what, "failed", range_error.sentence, checked)
    shape = f"{list(outputs[first].shape)} on {loaded.runtime.provider}"
    noted = f"; {checked} rows are independent" if checked is not None else ""
    noted += f"; {range_error.sentence}" if range_error is not None else ""
    if problem := no_probabilities(outputs, loaded):
        return Check(what, "failed", problem, checked)
    if problem := loaded.declared.fault(outputs):
        return Check(what, "ok", f"gives {shape}; for noise, {problem}{noted}", checked)
    return Check(what, "ok", f"gives {first} {shape}{noted}", checked)


def _verified_score(bundle: Bundle, options: RuntimeOptions) -> Check:
    kind, graph = bundle.manifest.policy.score.kind, bundle.manifest.policy.score.graph
    if graph is not None and not bundle.file(graph).is_file():
        return Check("score", "absent", f"{graph.file} is not here")
    try:
        score = load_scorer(bundle, options)
        if kind == "energy":
            return Check("score", "ok", "energy of the logits, which the softmax step is given")
        if PROBABILITIES not in {spec.name for spec in bundle.manifest.task.outputs}:
            return Check("score", "ok", f"{kind}, of the task {bundle.manifest.task.kind}")
        classes = len(bundle.manifest.labels)
        probabilities = np.stack([np.eye(1, classes)[0], np.full(classes, 1 / classes)]).astype(np.float32)
        sure, unsure = score({PROBABILITIES: probabilities}, {})
    except FirstlineError as error:
        return Check("score", "failed", error.message)
    return Check("score", "ok", f"{kind} gives {sure:.4g} for one certain class, {unsure:.4g} for a uniform answer")
