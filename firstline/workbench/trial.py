"""One run of a model file on one image or row, before anything about the model is known."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition import ImageInput, image_input
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.types import DATATYPES, Array, Arrays, TensorSpec


def trial_outputs(file: Path, described: ModelFile, image: Image.Image | None) -> Arrays:
    """Returns the outputs of a model for an image, stretched to its size and scaled to its range or to 0..1.

    A model of other inputs runs on zeros and empty texts.

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
    with closing(load_runtime(file, described.runtime, RuntimeOptions())) as loaded:
        if found is None or image is None:
            return loaded.run({spec.name: _nothing(spec) for spec in described.inputs})
        return loaded.run({described.inputs[0].name: _pixels(described, found, image)})


def _nothing(spec: TensorSpec) -> Array:
    shape = (1, *(max(size, 1) for size in spec.shape[1:]))
    return np.full(shape, b"", object) if spec.datatype == "BYTES" else np.zeros(shape, DATATYPES[spec.datatype])


def _pixels(described: ModelFile, found: ImageInput, image: Image.Image) -> Array:
    spec = described.inputs[0]
    pixels = np.asarray(image.convert("L" if found.mode == "L" else "RGB").resize(found.size), np.float32)
    if found.mode == "L":
        pixels = pixels[..., None]
    low, high = described.ranges.get(spec.name, (0, 255 if spec.datatype == "UINT8" else 1))
    row = (pixels / 255 * (high - low) + low).astype(DATATYPES[spec.datatype])[None]
    return np.ascontiguousarray(row.transpose(0, 3, 1, 2) if found.channels_first else row)
