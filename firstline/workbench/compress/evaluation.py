"""Runs candidates and existing models on the same images: answers, certificates and latencies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstline.workbench.certify import Certification, certify_bundle
from firstline.workbench.compress.target import Cost, Costs
from firstline.workbench.dataset import Dataset, spread
from firstline.workbench.evidence import Evidence
from firstline.workbench.observe import fitting, images, observe
from firstline_core.bundle.loading import LoadedModel, load_model, load_scorer
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.routing.certificate import Contract
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Array

ROUNDS = 300
SECONDS = 20.0
LEAST_ROUNDS = 15
WARM_RUNS = 5
WARM_S = 0.001


def preprocessed_rows(
    model: LoadedModel, dataset: Dataset, spec: InputSpec, limit: int | None = None, place: Path | None = None
) -> Array:
    """Returns the preprocessed images, (n, ...), at most `limit` of them, spread evenly.

    Args:
        model: whose preprocessing is used.
        dataset: at least one image.
        spec: the bundle's input.
        limit: None for all.
        place: file that is mapped instead of holding the rows in memory.

    Raises:
        ConfigError: the bundle takes no encoded images, an image does not fit, or the rows have different sizes.
    """
    some = replace(dataset, samples=tuple(spread(dataset.samples, limit)))
    rows = _prepared(model, some, spec)
    return np.stack(list(rows)) if place is None else _held(rows, place)


def _prepared(model: LoadedModel, dataset: Dataset, spec: InputSpec) -> Iterator[Array]:
    shape: tuple[int, ...] | None = None
    for sample, tensor in images(spec, dataset):
        with fitting(sample, dataset):
            (row,) = model.prepare(tensor)
        if row.shape != (shape := shape or row.shape):
            raise ConfigError(
                f"'{sample.file}' of {dataset.folder} becomes a row of shape {list(row.shape)}, and the first "
                f"{list(shape)}; give the bundle a preprocessing that resizes."
            )
        yield row


def _held(rows: Iterable[Array], place: Path) -> Array:
    """Writes the rows and then maps the file: writing to a mapping ends the process if the disk is full."""
    count = 0
    with place.open("wb") as stream:
        for row in rows:
            stream.write(np.ascontiguousarray(row).data)
            count += 1
    return np.memmap(place, row.dtype, "r", shape=(count, *row.shape)).view(np.ndarray)


def gather_evidence(
    bundle: Bundle,
    models: Sequence[Model],
    dataset: Dataset,
    options: RuntimeOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Evidence]:
    """Returns the evidence of every model against the full model, by id, in one pass over the images.

    Args:
        bundle: with a full model, and the files of all `models`.
        models: may include the full model.
        dataset: labelled images.
        options: how the models run.
        progress: receives the number of processed images and their total.
    """
    manifest, full = bundle.manifest, bundle.manifest.full
    assert full is not None  # noqa: S101 (the caller's to check)
    score = load_scorer(bundle, options)
    run = [*(model for model in models if model.id != full.id), full]
    count, classes = len(dataset), len(manifest.labels)
    answers = np.empty((len(run), count, classes), np.float32)
    logits, scores = np.empty_like(answers), np.empty((len(run), count), np.float64)
    truth = np.empty(count, np.int64)
    with ExitStack() as stack:
        loaded = []
        for model in run:
            loaded.append(load_model(bundle, model, options))
            stack.callback(loaded[-1].close)
        for i, seen in enumerate(observe(loaded, manifest.input, dataset)):
            truth[i] = seen.label
            for at, (answer, shown) in enumerate(zip(seen.answers, seen.logits, strict=True)):
                answers[at, i] = answer[0]
                if shown is not None:
                    logits[at, i] = shown[0]
                scores[at, i] = score(answer, shown)[0]
            progress(i + 1, count)
    labels: NDArray[np.int64] = answers[-1].argmax(axis=1)
    return {
        model.id: Evidence(model, answers[at], logits[at] if model.shows_logits else None, scores[at], labels, truth)
        for at, model in enumerate(run)
    }


def right(evidence: Evidence) -> NDArray[np.bool_]:
    """Returns (n,) whether the model's class is the label."""
    found: NDArray[np.bool_] = evidence.edge == evidence.truth
    return found


def accuracy(evidence: Evidence) -> float:
    return float(right(evidence).mean())


def proved(
    bundle: Bundle, evidence: Evidence, *, epsilon: float, delta: float, contract: Contract, among: int = 1
) -> Certification:
    """Certifies one variant by the bundle's own score, on all rows.

    The same rows choose which of several variants is first, which makes a false certificate more likely than each one
    says. Delta is therefore split evenly, and holds for all of them together (Bonferroni).

    Args:
        bundle: with score and full model.
        evidence: of the variant, on the certifying rows.
        epsilon: see `certify_bundle`.
        delta: probability that any of the `among` promises is wrong; stated in the certificate.
        contract: defines the loss.
        among: number of variants that are certified on these rows.
    """
    found = certify_bundle(
        bundle, evidence, epsilon=epsilon, delta=delta / among, contract=contract, score="bundle", select_fraction=0.0
    )
    if found.certificate is None:
        return found
    return replace(found, certificate=msgspec.structs.replace(found.certificate, delta=delta))


def measure_in_turns(bundle: Bundle, models: Sequence[Model], dataset: Dataset, options: RuntimeOptions) -> Costs:
    """Returns the median time of one row through each model, without its processing.

    The models run in turns in one process, so that other work affects all of them alike, and each is warmed, because a
    model of some microseconds takes up to twice as long after another runtime has filled the caches.

    Args:
        bundle: has the files.
        models: each once.
        dataset: source of a few images.
        options: how the models run.
    """
    with ExitStack() as stack:
        ready: list[tuple[str, LoadedModel, Array]] = []
        for model in models:
            loaded = load_model(bundle, model, options)
            stack.callback(loaded.close)
            ready.append((model.id, loaded, preprocessed_rows(loaded, dataset, bundle.manifest.input, 1)))
        taken: dict[str, list[float]] = {name: [] for name, _, _ in ready}
        start_s = time.perf_counter()
        for done in range(ROUNDS):
            if done >= LEAST_ROUNDS and time.perf_counter() - start_s > SECONDS:
                break
            for name, loaded, rows in ready:
                feed = {loaded.input.name: rows}
                _warmed(loaded, feed)
                began_s = time.perf_counter()
                loaded.runtime.run(feed)
                taken[name].append(time.perf_counter() - began_s)
    return Costs({name: Cost(float(np.median(seconds)) * 1000) for name, seconds in taken.items()})


def _warmed(loaded: LoadedModel, feed: dict[str, Array]) -> None:
    """A few runs; one if it takes a millisecond, for which caches do not matter."""
    began_s = time.perf_counter()
    for _ in range(WARM_RUNS):
        loaded.runtime.run(feed)
        if time.perf_counter() - began_s > WARM_S:
            break
