"""Families of models that answer with classes, numbers, decisions or a class for each pixel, whatever they take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition.inputs import Start, windows_of
from firstline.workbench.recognition.outputs import Output
from firstline.workbench.recognition.reading import GUESS, LIKELY, SURE, Choice, Reading, escaped

_KINDS = {"image": "", "audio": "audio ", "text": "text ", "tensor": "table "}
_SPREAD = r"(?<!log)(?<!log_)(spread|scale|sigma|std|deviation|uncertainty|error)"
_CLASSES = r"logit|prob|class|softmax|predict"
_SCORE = r"anomal|outlier|novel|score"
_REGRESSORS = {"LinearRegressor", "TreeEnsembleRegressor", "SVMRegressor"}
_SIGMOIDS = {"sigmoid", "logistic"}
_LAYERS = {"matmul", "gemm", "conv", "conv_2d", "fully_connected", "mul"}  # a sigmoid before them is of a hidden layer
_MOST_VALUES = 4096
_UNLABELLED = 0.7  # an anomaly model without labelled data
_OF_PIXELS = (
    Choice("scaling", ("unit", "symmetric", "imagenet", "bytes", "centred"), known=False),
    Choice("mode", ("RGB", "BGR")),
    Choice("geometry", ("squash", "corner", "center")),
)


def classifier(file: ModelFile, start: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields classifiers: one number for each class."""
    of_images = start.inputs.size is not None
    counts = {len(file.labels), *start.near.label_counts, *((10, 100, 1000, 1001) if of_images else ())} - {0}
    many = [output for output in _flat(outputs) if math.prod(output.shape) >= 2]
    for clue in (
        lambda output: output.probable,
        lambda output: bool({math.prod(output.shape), math.prod(output.shape) - 1} & counts),
        lambda output: re.search(_CLASSES, output.name.lower()) is not None,
    ):
        many = (many if len(many) == 1 else [output for output in many if clue(output)]) or many
    if len(many) != 1 or any(len(output.shape) > 1 and math.prod(output.shape) > _MOST_VALUES for output in outputs):
        return
    output = many[0]
    classes = math.prod(output.shape)
    if output.percentages or (ends_in_sigmoid(file) and not output.sums_to_one):  # labels do not exclude each other
        return
    activation, sure, why = _activation(file, output)
    if activation and not {classes, classes - 1} & counts:
        sure, why = GUESS, f"{why}; nothing shows that they are classes: no list of labels has {classes}"
    imagenet = classes in (1000, 1001)
    scalings = ("imagenet", "symmetric", "unit", "bytes", "caffe", "centred")
    if not start.inputs.channels_first:
        scalings = ("symmetric", "unit", "bytes", "imagenet", "caffe", "centred")
    yield start.reading(
        f"{'softmax' if not activation else 'logits'} classifier" if of_images else f"{_kind(start)}classifier",
        "classification",
        sure,
        decoder=activation,
        output=output.name,
        classes=classes,
        choices=(
            *_sizes(start),
            Choice("scaling", scalings, known=False),
            Choice("mode", ("RGB", "BGR"), known=bool(start.inputs.quantised)),
            Choice("geometry", ("crop", "squash") if imagenet else ("squash", "crop")),
        ),
        assumptions=(why,),
    )


def _sizes(start: Start) -> tuple[Choice, ...]:
    """Returns the open size of a model that takes any: that of the data's images, if all have one, or the usual one."""
    usual, own = start.inputs.size, start.near.image_size
    if not start.inputs.any_size or usual is None or own is None or max(own) >= min(usual):
        return ()
    return (Choice("size", tuple(f"{width}x{height}" for width, height in (own, usual)), known=False),)


def _kind(start: Start) -> str:
    """Returns what the model takes, before the name of a family: "" for images."""
    kinds = {feed.spec.name: feed.spec.kind for feed in start.inputs.feeds}
    return _KINDS[next(iter(kinds.values())) if len(kinds) == 1 else "tensor"]


def _flat(outputs: Sequence[Output]) -> list[Output]:
    """Returns the outputs of real numbers with at most one axis after the rows'."""
    return [output for output in outputs if output.real and sum(size != 1 for size in output.shape) <= 1]


def _activation(file: ModelFile, output: Output) -> tuple[str, float, str]:
    """Returns the step that makes probabilities, how sure it is, and why."""
    last = file.operators[-4:]
    inside = any(kind.lower() in ("softmax", "qlinearsoftmax") for kind in last)
    if output.values is not None:
        flat = output.values.reshape(-1).astype(np.float64)
        # Logits of few classes often sum to about 1 too.
        if output.sums_to_one or (inside and output.probable):
            return "", SURE, "the outputs are probabilities: a trial run gives numbers from 0 to 1 that sum to 1"
        return "softmax", SURE, f"the outputs are logits: a trial run gives {flat.min():.3g} to {flat.max():.3g}"
    if inside:
        return "", SURE, "a softmax ends the graph"
    return "softmax", LIKELY, "no softmax ends the graph, so the outputs are taken as logits"


def binary(file: ModelFile, start: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields classifiers of two labels with one output, the probability of the second."""
    single = [output for output in _flat(outputs) if math.prod(output.shape) == 1]
    if len(single) != 1 or len(_flat(outputs)) > 1 or not ends_in_sigmoid(file):
        return
    yield start.reading(
        "binary classifier",
        "classification",
        LIKELY if 2 in {len(file.labels), *start.near.label_counts} else GUESS,
        decoder="binary",
        output=single[0].name,
        classes=2,
        choices=_OF_PIXELS,
        assumptions=(f"a sigmoid ends the graph, so '{single[0].name}' is the probability of the second label",),
    )


def ends_in_sigmoid(file: ModelFile) -> bool:
    """Returns whether the last operators give each output a probability of its own."""
    *_, before, last = ("", "", *map(str.lower, file.operators))
    return last in _SIGMOIDS or (before in _SIGMOIDS and last not in _LAYERS)


def regression(file: ModelFile, start: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields regressions and forecasts: one value or a horizon, and perhaps the error that the model expects of it."""
    found = [output for output in _flat(outputs) if math.prod(output.shape) <= _MOST_VALUES]
    spreads = [output for output in found if len(found) > 1 and re.search(_SPREAD, output.name.lower())]
    values = [output for output in found if output not in spreads]
    if len(values) != 1 or len(spreads) > 1 or start.near.truth.kind == "classes" or file.labels:
        return
    output, count = values[0], math.prod(values[0].shape)
    by_kind = _REGRESSORS & set(file.operators)
    reasons = {
        f"{', '.join(sorted(by_kind))} computes it": bool(by_kind),
        f"'{spreads[0].name if spreads else ''}' holds the error that the model expects": bool(spreads),
        "the labels are real numbers": start.near.truth.values == count,
    }
    why = [reason for reason, holds in reasons.items() if holds]
    if not why and (count > 1 or ends_in_sigmoid(file)):
        return
    column = start.near.label_column
    own = column if column in start.near.columns else output.name
    windows = windows_of(start.inputs) and not by_kind
    yield start.reading(
        "regression with a spread" if spreads else "regression",
        "regression",
        SURE if why else LIKELY,
        names=(own,) if count == 1 else tuple(f"{own}_{number}" for number in range(1, count + 1)),
        classes=count,
        decoder=f"spread:{escaped(spreads[0].name)}" if spreads else "",
        output=output.name,
        choices=(*_OF_PIXELS, *((Choice("standardized", ("raw", "standardize"), known=False),) if windows else ())),
        assumptions=(f"'{output.name}' is {'a number' if count == 1 else f'{count} numbers'} for each row", *why),
    )


def anomaly(file: ModelFile, start: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields anomaly models: a score for each row, or a reconstruction of the input."""
    real = [output for output in outputs if output.real]
    rebuilt = [output for output in real if start.shapes == [output.shape] and math.prod(output.shape) > 1]
    single = [output for output in _flat(real) if math.prod(output.shape) == 1]
    scores = [output for output in single if re.search(_SCORE, output.name.lower())]
    found = rebuilt or scores or (single if start.near.truth.kind == "classes" else [])
    if len(found) != 1 or file.labels or start.near.truth.kind == "numbers":
        return
    name = found[0].name
    yield start.reading(
        "autoencoder" if rebuilt else "anomaly score",
        "anomaly",
        LIKELY if start.near.truth.kind == "classes" else _UNLABELLED,
        decoder="reconstruction" if rebuilt else "",
        output=name,
        choices=_OF_PIXELS,
        assumptions=(
            f"'{name}' has the shape of the input, so it is taken as its reconstruction"
            if rebuilt
            else f"'{name}' is one number for each row, taken as how unusual the row is",
        ),
    )


def segmentation(file: ModelFile, start: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields models that give each pixel a class: as a map of classes, or as scores of the classes."""
    if start.inputs.size is None:
        return
    least = min(start.inputs.size) // 8
    maps = [output for output in outputs if not output.real and len(output.shape) == 2 and min(output.shape) >= least]
    scores = [output for output in outputs if output.real and len(output.shape) == 3]
    if len(maps) > 1 or len(scores) > 1 or not maps + scores:
        return
    decoder, classes, output = "", 0, maps[0].name if maps else ""
    sure = SURE if maps else LIKELY
    if scores:
        first = scores[0].shape[0] <= min(scores[0].shape[1:])
        classes = scores[0].shape[0 if first else 2]
        if maps:
            decoder = f"class_scores:{escaped(scores[0].name)}"
        elif classes < 2 or min(scores[0].shape[1:] if first else scores[0].shape[:2]) < least:
            return
        else:
            output = scores[0].name
            summed = None if scores[0].values is None else scores[0].values.sum(axis=0 if first else -1)
            probable = summed is not None and bool(np.allclose(summed, 1, atol=0.1))
            decoder = f"{'' if probable else 'softmax,'}argmax{':NCHW' if first else ''}"
            if start.shapes == [scores[0].shape] and not probable and classes not in start.near.label_counts:
                sure = GUESS  # an autoencoder's output is alike
    tensorflow = file.runtime == "tflite"
    geometries = ("corner", "squash", "center") if tensorflow else ("squash", "corner", "center")
    scalings = ("symmetric", "unit", "bytes", "imagenet") if tensorflow else ("imagenet", "unit", "symmetric", "bytes")
    yield start.reading(
        "segmentation",
        "segmentation",
        SURE if classes == len(file.labels) or classes in (19, 21) else sure,
        decoder=decoder,
        output=output,
        classes=classes,
        padding="pad=128:rounding=nearest",
        choices=(
            Choice("scaling", scalings, known=False),
            Choice("mode", ("RGB", "BGR")),
            Choice("geometry", geometries),
        ),
        assumptions=(
            f"a class for each pixel{f' of {classes}' if classes else ''}, "
            f"{'with' if scores else 'without'} scores for the confidence",
        ),
    )
