"""One run of a model file on one image, before anything about the model is known."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition import image_input
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.types import DATATYPES, Arrays


def trial_outputs(file: Path, described: ModelFile, image: Image.Image) -> Arrays | None:
    """Returns the outputs of a model for an image, stretched to its size and scaled to its range or to 0..1.

    Args:
        file: of the model.
        described: the same file.
        image: upright.

    Returns:
        By name, of one row; None for models of other inputs.

    Raises:
        ModelLoadError, InferenceError, InvalidTensorError: the model does not run.
    """
    found = image_input(described)
    if found is None:
        return None
    spec = described.inputs[0]
    pixels = np.asarray(image.convert("L" if found.mode == "L" else "RGB").resize(found.size), np.float32)
    if found.mode == "L":
        pixels = pixels[..., None]
    low, high = described.ranges.get(spec.name, (0, 255 if spec.datatype == "UINT8" else 1))
    row = (pixels / 255 * (high - low) + low).astype(DATATYPES[spec.datatype])[None]
    with closing(load_runtime(file, described.runtime, RuntimeOptions())) as loaded:
        return loaded.run({spec.name: np.ascontiguousarray(row.transpose(0, 3, 1, 2) if found.channels_first else row)})
