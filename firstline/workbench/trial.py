"""Runs of a model file on one image, recording or row, before anything about the model is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition.inputs import image_input, token_inputs
from firstline_core.errors import FirstlineError, InferenceError
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS
from firstline_core.runtime.base import RowByRow
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.types import DATATYPES, Array, Arrays, TensorSpec

_TOKENS = (16, 32, 64, 128, 256, 512)
_SAMPLES = 16_000


def trial_outputs(file: Path, described: ModelFile, image: Image.Image | None) -> Arrays:
    """Returns the outputs of a model for an image, stretched to its size and scaled to its range or to 0..1.

    A model of other inputs runs on noise, tokens of number 1 and empty texts.

    Args:
        file: of the model.
        described: the same file.
        image: upright; None if the data are no images.

    Returns:
        By name, of one row.

    Raises:
        ModelLoadError, InferenceError, InvalidTensorError: the model does not run.
    """
    found = image_input(described)
    with closing(RowByRow(load_runtime(file, described.runtime, RuntimeOptions()), described.without_rows)) as loaded:
        if found is None or found.size is None or image is None:
            try:
                return loaded.run(_made_up(described))
            except MemoryError as error:
                raise InferenceError(
                    f"This machine has too little memory for one row of {described.name}; export it with smaller "
                    "inputs."
                ) from error
        limit = DEFAULT_DECODING_LIMITS.pixels
        if math.prod(found.size) > limit:
            width, height = found.size
            raise InferenceError(
                f"{described.name} needs images of {width}x{height}; at most {limit:,} pixels are used. Export it with "
                "smaller inputs."
            )
        resized = image.convert(found.mode).resize(found.size)
        return loaded.run({described.inputs[0].name: _pixels(described, resized, channels_first=found.channels_first)})


def most_tokens(file: Path, described: ModelFile, limit: int) -> int:
    """Returns the most tokens that a model takes in each row, at most `limit` or 512.

    Args:
        file: of the model.
        described: the same file, of a model of tokens.
        limit: that the tokenizer's file names; 0 for none.

    Raises:
        InferenceError: it runs with no number of tokens.
    """
    fixed = [spec.shape[1] for spec in described.inputs if spec.shape[1] > 0]
    if fixed:
        return min(fixed)
    with closing(load_runtime(file, described.runtime, RuntimeOptions())) as loaded:
        fits = 0
        for count in sorted({*_TOKENS, min(limit, _TOKENS[-1])} - {0}):
            try:
                loaded.run({spec.name: np.ones((1, count), DATATYPES[spec.datatype]) for spec in described.inputs})
            except FirstlineError as error:
                if not fits:
                    raise InferenceError(
                        f"{described.name} does not run with {count} tokens: {error.message}"
                    ) from error
                break
            fits = count
    return min(fits, limit or fits)


def _made_up(described: ModelFile) -> Mapping[str, Array]:
    rng = np.random.default_rng(0)
    return {spec.name: _row(spec, rng, tokens=bool(token_inputs(described))) for spec in described.inputs}


def _row(spec: TensorSpec, rng: np.random.Generator, *, tokens: bool) -> Array:
    free = _TOKENS[0] if tokens else _SAMPLES if len(spec.shape) == 2 else 1
    shape = (1, *(size if size > 0 else free for size in spec.shape[1:]))
    if spec.datatype == "BYTES":
        return np.full(shape, b"", object)
    dtype = DATATYPES[spec.datatype]
    return rng.normal(0, 0.1, shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)


def _pixels(described: ModelFile, image: Image.Image, *, channels_first: bool) -> Array:
    spec = described.inputs[0]
    pixels = np.asarray(image, np.float32).reshape(image.height, image.width, -1)
    low, high = described.ranges.get(spec.name, (0, 255 if spec.datatype == "UINT8" else 1))
    row = (pixels / 255 * (high - low) + low).astype(DATATYPES[spec.datatype])[None]
    return np.ascontiguousarray(row.transpose(0, 3, 1, 2) if channels_first else row)
