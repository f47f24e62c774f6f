"""Loads models from a bundle with their processing, with one trial run; selects the first edge variant that loads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import numpy as np
from numpy.typing import NDArray

from firstline_core.bundle.loaded_model import LoadedModel, Probabilities
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.scorer import Scorer, scorer
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError, RequestError
from firstline_core.processing.compile import Step, compile_postprocess, compile_preprocess
from firstline_core.processing.steps import Graph, InputSpec, Softmax
from firstline_core.processing.trial import trial_input
from firstline_core.routing import confidence
from firstline_core.runtime.base import Runtime, pick_port
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.telemetry.logs import logger
from firstline_core.types import Array

_HIGHEST = np.finfo(np.float32).max

log = logger(__name__)


def load_model(bundle: Bundle, model: Model, options: RuntimeOptions) -> LoadedModel:
    """Loads one model of the bundle with its processing, and runs it once to detect a wrong declaration.

    Raises:
        ModelLoadError: a file is absent or does not load, the steps do not fit, or the output is not one probability
            per label.
    """
    if missing := bundle.missing(model):
        raise ModelLoadError(f"Model '{model.id}' cannot be loaded: {bundle.path} has no {', '.join(missing)}.")
    runtime = load_runtime(bundle.file(model.artefact), model.runtime, options)
    loaded = load_around(runtime, bundle, model, options)
    try:
        _warm_up(loaded, bundle.manifest.input)
    except ModelLoadError:
        loaded.close()
        raise
    return loaded


def load_around(runtime: Runtime, bundle: Bundle, model: Model, options: RuntimeOptions) -> LoadedModel:
    """Combines a runtime with the model's processing. The runtime is closed with the result, or if this fails.

    Raises:
        ModelLoadError: a graph is absent or does not load, or the steps do not fit.
    """
    undo: ExitStack[None] = ExitStack()
    with undo:
        resources: ExitStack[None] = undo.enter_context(ExitStack())
        resources.callback(runtime.close)

        def load_graph(step: Graph) -> Step:
            graph = load_runtime(bundle.file(step.artefact), "onnx", options)
            resources.callback(graph.close)
            return _graph_step(graph, step.artefact.file)

        loaded = LoadedModel(
            model=model,
            manifest=bundle.manifest,
            runtime=runtime,
            pre=compile_preprocess(model.preprocess, bundle.manifest.input, load_graph),
            post=compile_postprocess(model.postprocess, load_graph),
            to_logits=compile_postprocess(
                [step for step in model.postprocess if not isinstance(step, Softmax)], load_graph
            )
            if model.shows_logits
            else None,
            resources=resources,
        )
        undo.pop_all()  # no failure: the model now owns the resources
    return loaded


def load_edge(
    bundle: Bundle, options: RuntimeOptions, way: Callable[[Model], RuntimeOptions] | None = None
) -> LoadedModel:
    """Loads the first edge variant, in the manifest's order of preference, that is present and loads.

    Skipped variants are logged, and listed in the model's `passed_over`.

    Args:
        bundle: has the variants.
        options: for the runtimes.
        way: options per variant; None for the same options.

    Raises:
        ModelLoadError: none loads; the message has the reason for each.
    """
    name = bundle.manifest.name
    reasons: list[str] = []
    for model in bundle.manifest.edge:
        try:
            loaded = load_model(bundle, model, options if way is None else way(model))
        except ModelLoadError as error:
            reasons.append(f"{model.id}: {error.message}")
            continue
        for reason in reasons:
            log.warning("edge variant skipped", model=name, taken=model.id, reason=reason)
        loaded.passed_over = tuple(reasons)
        return loaded
    if not reasons:
        raise ModelLoadError(f"Bundle '{name}' declares no edge variant.")
    raise ModelLoadError(f"No edge variant of bundle '{name}' can be loaded. " + " ".join(reasons))


def load_scorer(bundle: Bundle, options: RuntimeOptions) -> Scorer:
    """Loads the bundle's score.

    Raises:
        ModelLoadError: a score graph is absent, does not load, or does not return one score per row.
    """
    declared = bundle.manifest.policy.score
    if declared.graph is None:
        return scorer(declared)
    file = bundle.file(declared.graph)
    if not file.is_file():
        raise ModelLoadError(f"The bundle's score graph is absent: {file}.")
    graph = OnnxRuntime(file, providers=options.providers, threads=options.threads)
    step = _graph_step(graph, declared.graph.file)

    def score(probabilities: Probabilities, logits: Probabilities | None = None, /) -> NDArray[np.float32]:
        if declared.temperature != 1.0:
            probabilities = confidence.temper(probabilities, declared.temperature)
        found = step(probabilities)
        if found.size != len(probabilities):
            raise InferenceError(f"Score graph {file.name} gave {found.size} scores for {len(probabilities)} rows.")
        # JSON cannot represent infinity, the log-odds of a probability of 1, as score or threshold.
        return np.clip(found.reshape(-1).astype(np.float32, copy=False), -_HIGHEST, _HIGHEST)

    classes = len(bundle.manifest.labels)
    try:
        score(np.full((2, classes), 1 / classes, np.float32))
    except (InferenceError, InvalidTensorError) as error:
        graph.close()
        raise ModelLoadError(f"Score graph {file} does not score {classes} classes: {error}") from error
    return score


def _graph_step(graph: Runtime, file: str) -> Step:
    feed = pick_port(graph.inputs, "", f"Graph {file}", "input", only=True).name
    output = pick_port(graph.outputs, "", f"Graph {file}", "output", only=True).name
    return partial(_run_graph, graph, feed, output)


def _run_graph(graph: Runtime, feed: str, output: str, array: Array) -> Array:
    return graph.run({feed: array})[output]


def _warm_up(loaded: LoadedModel, spec: InputSpec) -> None:
    """Runs zeros through processing and model. The first run also includes the runtimes' lazy initialisation."""
    trial = trial_input(spec, loaded.model.preprocess, loaded.input.shape)
    try:
        if trial is not None:
            loaded.compute(loaded.prepare(trial))
    except (InferenceError, RequestError) as error:
        raise ModelLoadError(f"Model '{loaded.model.id}' fails on a trial run: {error}") from error
