"""An input to measure a model with: of the right form, with no meaning."""

from __future__ import annotations

import io
import os

import numpy as np

from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.bundle.trial import trial_input
from firstline_core.types import Tensor


def sample_input(manifest: Manifest, loaded: LoadedModel) -> Tensor | None:
    """One row as clients send it; None where the sizes are free, so that no size is typical.

    An image is a PNG of noise in the size that the model works on: decoding it costs what a photograph costs.
    """
    trial = trial_input(manifest.input, loaded.model.preprocess, loaded.input.shape)
    if trial is None or manifest.input.datatype != "BYTES":
        return trial
    from PIL import Image

    # Not numpy.random: it is 3 MB of memory, for one picture.
    pixels = np.frombuffer(os.urandom(trial.array.size), np.uint8).reshape(trial.shape[1:])
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, format="PNG")
    row = np.empty((1,), dtype=np.object_)
    row[0] = stream.getvalue()
    return Tensor(manifest.input.name, row)
