"""Runs models over a data set, image by image as requests come to a device: answers and latencies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.dataset import Dataset, Sample, require_classifier
from firstline_core.bundle.loading import LoadedModel, Scorer
from firstline_core.bundle.manifest import Model
from firstline_core.errors import ConfigError, RequestError
from firstline_core.processing.steps import InputSpec
from firstline_core.tasks.base import Prediction
from firstline_core.tasks.classification import LOGITS, Probabilities
from firstline_core.types import DATATYPES, PROBABILITIES, Arrays, Tensor, row_count, slice_rows

Progress = Callable[[int, int], None]
"""Called with the number of images that are done, and of all."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """One model's answers to a data set, in its order.

    Attributes:
        model: that answered.
        provider: that ran it.
        outputs: the task's outputs, n rows.
        evidence: see `Prediction`; empty if it was not stored.
        seconds: (n,) for each image, decoding and processing included.
    """

    model: Model
    provider: str
    outputs: Arrays
    evidence: Arrays
    seconds: NDArray[np.float64]

    @property
    def probabilities(self) -> Probabilities:
        """Returns the probabilities of a classifier, (n, classes) FP32."""
        return self.outputs[PROBABILITIES]

    @property
    def logits(self) -> Probabilities | None:
        """Returns (n, classes) FP32; None if they were not stored, or the model shows none (`Model.shows_logits`)."""
        return self.evidence.get(LOGITS)

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
        truth: (n,) labels of the data; `UNLABELLED` (-1) for images without one.
        sizes: (n,) sizes of the encoded images in bytes.
        answers: of each model, in the order of the models.
    """

    truth: NDArray[np.int64]
    sizes: NDArray[np.int64]
    answers: tuple[Answers, ...]


def observe(
    models: Sequence[LoadedModel],
    spec: InputSpec,
    dataset: Dataset,
    progress: Progress = lambda done, total: None,
    *,
    with_logits: Collection[LoadedModel] = (),
) -> Observations:
    """Runs models over all samples, in order.

    Args:
        models: of one bundle.
        spec: the bundle's input.
        dataset: encoded images.
        progress: receives the number of images that are done, and of all.
        with_logits: those of the models whose logits are stored, if they show any. They take as much memory as the
            probabilities.

    Raises:
        ConfigError: the bundle takes no encoded images, or an image of the data set does not fit it.
        InferenceError: a model failed.
    """
    count = len(dataset)
    truth, sizes = np.empty((2, count), np.int64)
    answers = tuple(_reserve(model, count, with_logits=model in with_logits) for model in models)
    for position, (sample, size_bytes, predictions) in enumerate(predict_each(models, spec, dataset, progress)):
        truth[position], sizes[position] = sample.label, size_bytes
        for of_model, (prediction, took_s) in zip(answers, predictions, strict=True):
            of_model.seconds[position] = took_s
            for name, array in of_model.outputs.items():
                array[position] = prediction.outputs[name][0]
            for name, array in of_model.evidence.items():
                array[position] = prediction.evidence[name][0]
    return Observations(truth, sizes, answers)


def _reserve(model: LoadedModel, count: int, *, with_logits: bool) -> Answers:
    """Returns answers to be filled in: a list of rows would take twice the memory when it becomes an array."""
    outputs = {spec.name: np.empty((count, *spec.shape[1:]), DATATYPES[spec.datatype]) for spec in model.task.outputs}
    shows_logits = with_logits and model.model.shows_logits
    evidence = {LOGITS: np.empty((count, len(model.task.labels)), np.float32)} if shows_logits else {}
    return Answers(model.model, model.runtime.provider, outputs, evidence, np.empty(count))


def predict_each(
    models: Sequence[LoadedModel], spec: InputSpec, dataset: Dataset, progress: Progress
) -> Iterator[tuple[Sample, int, list[tuple[Prediction, float]]]]:
    """Yields every sample with the bytes of its image, and each model's prediction with its seconds.

    Images are run one at a time, because callers see the latency of one image.

    Raises:
        ConfigError: the models are not classifiers, the bundle takes no encoded images, or an image of the data set
            does not fit it.
        InferenceError: a model failed.
    """
    for model in models:
        require_classifier(model.task)
    for done, (sample, tensor) in enumerate(images(spec, dataset)):
        with naming_image(sample, dataset):
            if done == 0:  # the first image pays for what decoders and caches do lazily
                for model in models:
                    model.predict(tensor)
            predictions = [_timed(model, tensor) for model in models]
        yield sample, len(tensor.array[0]), predictions
        progress(done + 1, len(dataset))


def _timed(model: LoadedModel, tensor: Tensor) -> tuple[Prediction, float]:
    start_s = time.perf_counter()
    prediction = model.predict(tensor)
    return prediction, time.perf_counter() - start_s


def images(spec: InputSpec, dataset: Dataset) -> Iterator[tuple[Sample, Tensor]]:
    """Yields every sample with its encoded image as the bundle's input, one row each.

    Raises:
        ConfigError: the bundle takes no encoded images, or one cannot be read.
    """
    if spec.datatype != "BYTES":
        raise ConfigError(
            f"The bundle's input '{spec.name}' is {spec.datatype}, and data folders hold encoded images; give the "
            "bundle a preprocessing that starts with decode."
        )
    for sample, (encoded, _) in zip(dataset.samples, dataset.read(), strict=True):
        yield sample, image_tensor(spec, encoded)


def image_tensor(spec: InputSpec, encoded: bytes) -> Tensor:
    """Returns an encoded image as the bundle's input, of one row."""
    element = np.empty(1, object)
    element[0] = encoded
    return Tensor(spec.name, element)


@contextmanager
def naming_image(sample: Sample, dataset: Dataset) -> Iterator[None]:
    """Raises a ConfigError that names the image that the bundle does not accept."""
    try:
        yield
    except RequestError as error:
        raise ConfigError(f"'{sample.file}' of {dataset.folder} does not fit the bundle: {error.message}") from error
