"""Runs models over a data set, sample by sample as requests come to a device: answers and latencies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.data.dataset import Dataset
from firstline.workbench.data.sample import Sample
from firstline.workbench.infer import of_file
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import Scorer, load_model
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InferenceError, RequestError
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import Prediction
from firstline_core.tasks.classification import Probabilities
from firstline_core.types import PROBABILITIES, Array, Arrays, payload_bytes, row_count, slice_rows

Progress = Callable[[int, int], None]
"""Called with the number of samples that are done, and of all."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """One model's answers to a data set, in its order.

    Attributes:
        model: that answered.
        provider: that ran it.
        outputs: the task's outputs, n rows.
        evidence: see `Prediction`; empty if it was not stored.
        seconds: (n,) for each sample, decoding and processing included.
    """

    model: Model
    provider: str
    outputs: dict[str, Array]
    evidence: dict[str, Array]
    seconds: NDArray[np.float64]

    @property
    def probabilities(self) -> Probabilities:
        """Returns the probabilities of a classifier, (n, classes) FP32."""
        return self.outputs[PROBABILITIES]

    @property
    def labels(self) -> NDArray[np.int64]:
        """Returns the likeliest classes, (n,)."""
        labels: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return labels

    def scores(self, score: Scorer) -> NDArray[np.float64]:
        """Returns (n,) scores, of one row at a time as on a device: other batches may change the last digits."""
        scores = np.empty(row_count(self.outputs))
        for row in range(len(scores)):
            scores[row] = score(slice_rows(self.outputs, row, row + 1), slice_rows(self.evidence, row, row + 1))[0]
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """The answers of several models to a data set.

    Attributes:
        sizes: (n,) sizes of the inputs in bytes: encoded images and recordings, text, or numbers.
        answers: of each model, in the order of the models.
    """

    sizes: NDArray[np.int64]
    answers: tuple[Answers, ...]


def observe_here(
    bundle: Bundle,
    models: Sequence[Model],
    dataset: Dataset,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
    *,
    with_evidence: Collection[Model] = (),
) -> Observations:
    """Loads some models of a bundle, and runs them over all samples; see `observe`.

    Raises:
        ModelLoadError: a model does not load here.
    """
    with ExitStack() as stack:
        loaded = [stack.enter_context(closing(load_model(bundle, model, options))) for model in models]
        stored = [each for each in loaded if each.model in with_evidence]
        return observe(loaded, bundle.manifest.inputs, dataset, progress, with_evidence=stored)


def observe(
    models: Sequence[LoadedModel],
    inputs: Sequence[InputSpec],
    dataset: Dataset,
    progress: Progress = lambda done, total: None,
    *,
    with_evidence: Collection[LoadedModel] = (),
) -> Observations:
    """Runs models over all samples, in order.

    Args:
        models: of one bundle.
        inputs: of the bundle.
        dataset: whose samples run.
        progress: receives the number of samples that are done, and of all.
        with_evidence: those of the models whose evidence is stored, if they give any. It may take as much memory as the
            outputs.

    Raises:
        ConfigError: the data set lacks an input, or a sample does not fit it.
        InferenceError: a model failed, or its outputs change their shape.
    """
    count = len(dataset)
    sizes = np.empty(count, np.int64)
    answers = tuple(Answers(model.model, model.runtime.provider, {}, {}, np.empty(count)) for model in models)
    stored = [model in with_evidence for model in models]
    for position, (sample, row) in enumerate(dataset.rows(inputs)):  # one at a time: callers see the latency of one
        with naming_sample(sample, dataset):
            if position == 0:  # the first sample pays for what decoders and caches do lazily
                for model in models:
                    model.predict(row)
            predictions = [_timed(model, row) for model in models]
        sizes[position] = payload_bytes(row.values())
        for of_model, (prediction, took_s), with_more in zip(answers, predictions, stored, strict=True):
            of_model.seconds[position] = took_s
            _store(of_model.outputs, prediction.outputs, position, count)
            if with_more:
                _store(of_model.evidence, prediction.evidence, position, count)
        progress(position + 1, count)
    return Observations(sizes, answers)


def _store(into: dict[str, Array], row: Arrays, position: int, count: int) -> None:
    """Stores one row in arrays of all rows: a list of rows would take twice the memory when it becomes an array."""
    for name, array in row.items():
        if position == 0:
            into[name] = np.empty((count, *array.shape[1:]), array.dtype)
        if into[name].shape[1:] != array.shape[1:]:
            raise InferenceError(
                f"'{name}' has shape {list(array.shape[1:])} in one row and {list(into[name].shape[1:])} in others."
            )
        into[name][position] = array[0]


def _timed(model: LoadedModel, row: Arrays) -> tuple[Prediction, float]:
    start_s = time.perf_counter()
    prediction = model.predict(row)
    return prediction, time.perf_counter() - start_s


@contextmanager
def naming_sample(sample: Sample, dataset: Dataset) -> Iterator[None]:
    """Raises a ConfigError that names the sample that the bundle does not accept."""
    try:
        yield
    except RequestError as error:
        raise ConfigError(f"{dataset.place_of(sample)} does not fit the bundle: {of_file(error.message)}") from error
