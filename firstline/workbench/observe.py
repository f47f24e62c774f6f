"""Runs models over a data set, image by image as requests come to a device: answers, latencies and accuracy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from firstline.workbench.dataset import Dataset, Sample
from firstline_core.bundle.loading import LoadedModel, Prediction, load_model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError, RequestError
from firstline_core.processing.steps import InputSpec
from firstline_core.routing.policy import Probabilities
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Sha256, Tensor

Progress = Callable[[int, int], None]
"""Called with the number of images that are done, and of all."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One image and each model's answer, in the order of the models.

    Args:
        size_bytes: of the encoded image.
        answers: (1, classes) each.
        logits: likewise, None of a model that shows none: see `Model.shows_logits`.
        seconds: decoding and processing included.
    """

    label: int
    size_bytes: int
    answers: tuple[Probabilities, ...]
    logits: tuple[Probabilities | None, ...]
    seconds: tuple[float, ...]


def observe(models: Sequence[LoadedModel], spec: InputSpec, dataset: Dataset) -> Iterator[Observation]:
    """Observes every sample, in order.

    One image at a time, because that is the latency that a caller sees; and batches win nothing on one thread.

    Args:
        models: of one bundle.
        spec: the bundle's input.
        dataset: encoded images.

    Raises:
        ConfigError: the bundle takes no encoded images, or an image of the data set does not fit it.
    """
    warm = False
    for sample, tensor in images(spec, dataset):
        with fitting(sample, dataset):
            if not warm:  # the first image pays for what decoders and caches do lazily
                for model in models:
                    model.predict(tensor)
                warm = True
            timed = [_timed(model, tensor) for model in models]
        answers, logits = zip(*(prediction for prediction, _ in timed), strict=True)
        size_bytes, seconds = len(tensor.array[0]), tuple(seconds for _, seconds in timed)
        yield Observation(sample.label, size_bytes, answers, logits, seconds)


def images(spec: InputSpec, dataset: Dataset) -> Iterator[tuple[Sample, Tensor]]:
    """Every sample with its encoded image as the bundle's input, of one row.

    Raises:
        ConfigError: the bundle takes no encoded images, or one cannot be read.
    """
    if spec.datatype != "BYTES":
        raise ConfigError(
            f"The bundle's input '{spec.name}' is {spec.datatype}, and data folders hold encoded images; give the "
            "bundle a preprocessing that starts with decode."
        )
    for sample, (encoded, _) in zip(dataset.samples, dataset.read(), strict=True):
        element = np.empty(1, object)
        element[0] = encoded
        yield sample, Tensor(spec.name, element)


@contextmanager
def fitting(sample: Sample, dataset: Dataset) -> Iterator[None]:
    """Raises a ConfigError that names the image that the bundle does not accept."""
    try:
        yield
    except RequestError as error:
        raise ConfigError(f"'{sample.file}' of {dataset.folder} does not fit the bundle: {error.message}") from error


def _timed(model: LoadedModel, tensor: Tensor) -> tuple[Prediction, float]:
    start_s = time.perf_counter()
    answer = model.predict_with_logits(tensor)
    return answer, time.perf_counter() - start_s


def accuracies_on(
    bundle: Bundle,
    dataset: Dataset,
    variants: Sequence[str] = (),
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> dict[Sha256, float]:
    """Shares of right answers by `Model.digest`; without the models that do not load here.

    Args:
        bundle: whose models run.
        dataset: labelled images that no model was trained on.
        variants: ids of models; none for all, the full model among them.
        options: how the models run.
        progress: told how many images are done, of how many.

    Raises:
        ConfigError: data that does not fit the bundle, or no model loads.
    """
    manifest = bundle.manifest
    dataset.check_labels(manifest.labels)
    models: list[LoadedModel] = []
    why = ""
    with ExitStack() as stack:
        for model in manifest.models:
            if variants and model.id not in variants:
                continue
            try:
                models.append(load_model(bundle, model, options))
            except FirstlineError as error:
                why = error.message
                continue
            stack.callback(models[-1].close)
        if not models:
            raise ConfigError(f"No model of {bundle.path} loads here, so that none has an accuracy: {why}")
        right = np.zeros(len(models), np.int64)
        for done, observation in enumerate(observe(models, manifest.input, dataset), 1):
            right += [int(rows.argmax()) == observation.label for rows in observation.answers]
            progress(done, len(dataset))
    return {
        loaded.model.digest: float(count) / len(dataset) for loaded, count in zip(models, right.tolist(), strict=True)
    }
