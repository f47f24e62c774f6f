"""Inputs that mean nothing, with which a model can be tried, or measured, before anyone relies on it."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import numpy as np

from firstline_core.processing.steps import CHANNELS, CenterCrop, Decode, InputSpec, Layout, PreStep, Resize
from firstline_core.types import DATATYPES, Tensor


def trial_input(spec: InputSpec, steps: Sequence[PreStep], model_shape: tuple[int, ...]) -> Tensor | None:
    """One row of zeros that the steps turn into what the model takes; None where sizes are free.

    Args:
        spec: the bundle's input.
        steps: the model's preprocessing.
        model_shape: of the model's own input, -1 where a size is free.
    """
    if spec.datatype != "BYTES":
        shape = (1, *spec.shape[1:])
        return Tensor(spec.name, np.zeros(shape, DATATYPES[spec.datatype])) if min(shape) > 0 else None
    size = _image_size(steps, model_shape)
    if size is None or min(size) <= 0:
        return None
    channels = next((CHANNELS[step.mode] for step in steps if isinstance(step, Decode)), 3)
    return Tensor(spec.name, np.zeros((1, *size, channels), np.uint8))


def typical_row(spec: InputSpec, steps: Sequence[PreStep], model_shape: tuple[int, ...]) -> Tensor | None:
    """One row as clients send it; None where the sizes are free, so that no size is typical.

    An image is a PNG of noise in the size that the model works on: decoding it costs what a photograph costs.

    Args:
        spec: the bundle's input.
        steps: the model's preprocessing.
        model_shape: of the model's own input, -1 where a size is free.
    """
    trial = trial_input(spec, steps, model_shape)
    if trial is None or spec.datatype != "BYTES":
        return trial
    from PIL import Image

    # Not numpy.random: it is 3 MB of memory, for one picture.
    pixels = np.frombuffer(os.urandom(trial.array.size), np.uint8).reshape(trial.shape[1:])
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, format="PNG")
    row = np.empty((1,), dtype=np.object_)
    row[0] = stream.getvalue()
    return Tensor(spec.name, row)


def _image_size(steps: Sequence[PreStep], model_shape: tuple[int, ...]) -> tuple[int, int] | None:
    """(height, width) that suits: any size before a resize, else what the model takes where no crop changes it."""
    for step in steps:
        if isinstance(step, Resize):
            return step.height, step.width
    if any(isinstance(step, CenterCrop) for step in steps) or len(model_shape) != 4:
        return None
    channels_first = any(isinstance(step, Layout) and step.to == "NCHW" for step in steps)
    height, width = model_shape[2:] if channels_first else model_shape[1:3]
    return height, width
