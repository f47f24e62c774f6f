"""Synthetic inputs for trial runs and measurements of a model."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import numpy as np

from firstline_core.processing.steps import CHANNELS, CenterCrop, Decode, InputSpec, Layout, PreStep, Resize
from firstline_core.types import DATATYPES, Tensor


def trial_input(spec: InputSpec, steps: Sequence[PreStep], model_shape: tuple[int, ...]) -> Tensor | None:
    """Returns one row of zeros that fits the model after the steps; None for free sizes.

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
    """Returns one row in the form that clients send; None for free sizes.

    An image is a PNG of noise in the model's input size: decoding it costs as much as a photograph.

    Args:
        spec: the bundle's input.
        steps: the model's preprocessing.
        model_shape: of the model's own input, -1 where a size is free.
    """
    trial = trial_input(spec, steps, model_shape)
    if trial is None or spec.datatype != "BYTES":
        return trial
    from PIL import Image

    # Not numpy.random, which takes 3 MB of memory.
    pixels = np.frombuffer(os.urandom(trial.array.size), np.uint8).reshape(trial.shape[1:])
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, format="PNG")
    row = np.empty((1,), dtype=np.object_)
    row[0] = stream.getvalue()
    return Tensor(spec.name, row)


def _image_size(steps: Sequence[PreStep], model_shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns a fitting (height, width): any size before a resize, or the model's input size without a crop."""
    for step in steps:
        if isinstance(step, Resize):
            return step.height, step.width
    if any(isinstance(step, CenterCrop) for step in steps) or len(model_shape) != 4:
        return None
    channels_first = any(isinstance(step, Layout) and step.to == "NCHW" for step in steps)
    height, width = model_shape[2:] if channels_first else model_shape[1:3]
    return height, width
