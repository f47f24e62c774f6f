"""Candidates beside what is there: what each says of the same images, what that certifies, and how long each takes."""

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
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model, load_scorer
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


def rows_of(
    model: LoadedModel, dataset: Dataset, spec: InputSpec, limit: int | None = None, place: Path | None = None
) -> Array:
    """(n, ...) the images as the model takes them, at most `limit` of them, spread evenly.

    Args:
        model: whose preprocessing counts.
        dataset: at least one image.
        spec: the bundle's input.
        limit: None for all.
        place: a file to hold them in instead of memory; the system reads from it what is looked at.

    Raises:
        ConfigError: the bundle takes no encoded images, one of these does not fit it, or they become rows of several
            sizes.
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
    """Written and then mapped: a mapping that is written to ends the process where the disk is full."""
    count = 0
    with place.open("wb") as stream:
        for row in rows:
            stream.write(np.ascontiguousarray(row).data)
            count += 1
    return np.memmap(place, row.dtype, "r", shape=(count, *row.shape)).view(np.ndarray)


def gathered(
    bundle: Bundle,
    models: Sequence[Model],
    dataset: Dataset,
    options: RuntimeOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Evidence]:
    """Evidence of every model, by its id, in one pass over the images; the full model is what they are compared with.

    Args:
        bundle: with a full model; holds the files of all of `models`.
        models: the full model may be one of them.
        dataset: labelled images.
        options: how they run.
        progress: told how many images are done, of how many.
    """
    manifest, full = bundle.manifest, bundle.manifest.full
    assert full is not None  # noqa: S101 (the caller's to check)
    score = load_scorer(bundle, options)
    run = [*(model for model in models if model.id != full.id), full]
    count, classes = len(dataset), len(manifest.labels)
    said = np.empty((len(run), count, classes), np.float32)
    logits, scores = np.empty_like(said), np.empty((len(run), count), np.float64)
    truth = np.empty(count, np.int64)
    with ExitStack() as stack:
        loaded = []
        for model in run:
            loaded.append(load_model(bundle, model, options))
            stack.callback(loaded[-1].close)
        for i, seen in enumerate(observe(loaded, manifest.input, dataset)):
            truth[i] = seen.label
            for at, (answer, shown) in enumerate(zip(seen.answers, seen.logits, strict=True)):
                said[at, i] = answer[0]
                if shown is not None:
                    logits[at, i] = shown[0]
                scores[at, i] = score(answer, shown)[0]
            progress(i + 1, count)
    labels: NDArray[np.int64] = said[-1].argmax(axis=1)
    return {
        model.id: Evidence(model, said[at], logits[at] if model.shows_logits else None, scores[at], labels, truth)
        for at, model in enumerate(run)
    }


def right(evidence: Evidence) -> NDArray[np.bool_]:
    """(n,) whether the model names the class that the data does."""
    found: NDArray[np.bool_] = evidence.edge == evidence.truth
    return found


def accuracy(evidence: Evidence) -> float:
    return float(right(evidence).mean())


def proved(
    bundle: Bundle, evidence: Evidence, *, epsilon: float, delta: float, contract: Contract, among: int = 1
) -> Certification:
    """What all rows prove of one variant, by the bundle's own score, which they do not choose.

    What they do choose is the variant: of several, the same rows say which keeps the most, and that one goes first.
    Chosen so, a false certificate is likelier than any one of them says; so delta is shared out evenly, and holds for
    all of them together (Bonferroni).

    Args:
        bundle: whose score and full model count.
        evidence: of the variant, on rows that certify.
        epsilon: see `certify_bundle`.
        delta: that none of the `among` promises is wrong; it is what the certificate says.
        contract: what counts as a loss.
        among: how many variants are certified on these rows, to be shipped or not.
    """
    found = certify_bundle(
        bundle, evidence, epsilon=epsilon, delta=delta / among, contract=contract, score="bundle", select_fraction=0.0
    )
    if found.certificate is None:
        return found
    return replace(found, certificate=msgspec.structs.replace(found.certificate, delta=delta))


def in_turns(bundle: Bundle, models: Sequence[Model], dataset: Dataset, options: RuntimeOptions) -> Costs:
    """The median of one row through each model, its processing left out, which is the same for all made of one.

    In turns, in one process, so that whatever else the machine does meets all of them alike; each warm, because a
    model of some microseconds takes up to twice as long where another runtime's code has filled the caches.

    Args:
        bundle: holds the files.
        models: by id, each once.
        dataset: of which a few images are taken.
        options: how they run.
    """
    with ExitStack() as stack:
        ready: list[tuple[str, LoadedModel, Array]] = []
        for model in models:
            loaded = load_model(bundle, model, options)
            stack.callback(loaded.close)
            ready.append((model.id, loaded, rows_of(loaded, dataset, bundle.manifest.input, 1)))
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
    """A few runs: one where that takes a millisecond, to which caches are nothing."""
    began_s = time.perf_counter()
    for _ in range(WARM_RUNS):
        loaded.runtime.run(feed)
        if time.perf_counter() - began_s > WARM_S:
            break
