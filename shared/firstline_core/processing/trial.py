"""Synthetic inputs for trial runs and measurements of a model."""

from __future__ import annotations

import io
import os
import wave
from collections.abc import Sequence

import numpy as np

from firstline_core.processing import steps as ops
from firstline_core.types import DATATYPES, Array, object_array

_WORDS = b"please book a table for two at the old harbour tonight"
_ADDED_TOKENS = 8  # more than a tokenizer puts around a text
_MAGNITUDES = np.array([1.0, 0.5, 0.1])


def made_up_row(
    spec: ops.InputSpec, steps: Sequence[ops.PreStep], model_shape: tuple[int, ...], *, typical: bool
) -> Array | None:
    """Returns one row that fits the model after the steps; None for free sizes.

    Args:
        spec: the bundle's input.
        steps: the model's preprocessing.
        model_shape: of the model's own input, -1 where a size is free.
        typical: whether the row has the form that clients send: a PNG of noise in the model's input size, because
            decoding it costs as much as a photograph, or a WAV file of noise. Otherwise it is of zeros, and an image is
            pixels. A text is the same, and has at most as many tokens as the model takes.
    """
    if spec.kind == "audio":
        return object_array([_clip(steps, model_shape, os.urandom(1 << 16) if typical else b"\0")])
    if spec.kind == "text":
        lengths = [step.length for step in steps if isinstance(step, ops.Tokenize)]
        # A token has a byte or more.
        return object_array([_WORDS[: max(1, min(lengths) - _ADDED_TOKENS)] if lengths else _WORDS])
    if spec.kind == "tensor":
        shape = (1, *spec.shape[1:])
        return np.zeros(shape, DATATYPES[spec.datatype]) if min(shape) > 0 else None
    size = _image_size(steps, model_shape)
    if size is None or min(size) <= 0:
        return None
    channels = next((ops.CHANNELS[step.mode] for step in steps if isinstance(step, ops.Decode)), 3)
    return object_array([_png(*size, channels)]) if typical else np.zeros((1, *size, channels), np.uint8)


def _png(height: int, width: int, channels: int) -> bytes:
    """Returns a picture of noise."""
    from PIL import Image  # Pillow takes 3 MB: import it only for images

    # Not numpy.random, which takes 3 MB of memory.
    pixels = np.frombuffer(os.urandom(height * width * channels), np.uint8).reshape(height, width, channels)
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, format="PNG")
    return stream.getvalue()


def made_up_files(encoded: bytes, rows: int) -> list[bytes]:
    """Returns made-up rows, the same on every call: texts of different lengths, or WAV files of noise.

    Args:
        encoded: a row of zeros of `made_up_row`, a text or a WAV file, whose form is kept.
        rows: number of rows.
    """
    rng = np.random.default_rng(0)
    if not encoded.startswith(b"RIFF"):
        words = encoded.split()
        return [b" ".join(rng.choice(words, 1 + row % len(words))) for row in range(rows)]
    with wave.open(io.BytesIO(encoded)) as clip:
        samples, channels, rate_hz = clip.getnframes(), clip.getnchannels(), clip.getframerate()
    noise = [rng.uniform(-32767, 32767, samples * channels) * factor for factor in np.resize(_MAGNITUDES, rows)]
    return [_wav(each.astype("<i2").tobytes(), channels, rate_hz) for each in noise]


def _clip(steps: Sequence[ops.PreStep], model_shape: tuple[int, ...], noise: bytes) -> bytes:
    """Returns a WAV file at the model's sample rate that is as long as the model takes, or a second.

    Args:
        steps: the model's preprocessing.
        model_shape: of the model's own input.
        noise: repeated as the samples.
    """
    rate_hz = next((step.rate_hz for step in steps if isinstance(step, ops.Resample)), 16_000)
    lengths = [step.samples for step in steps if isinstance(step, ops.Crop | ops.Pad)]
    lengths += [2 * step.samples for step in steps if isinstance(step, ops.Windows)]
    samples = min(lengths) if lengths else model_shape[1] if len(model_shape) > 1 and model_shape[1] > 0 else rate_hz
    mono = len(model_shape) < 3 or any(isinstance(step, ops.Mono) for step in steps)
    channels = 1 if mono else max(1, model_shape[2])
    size_bytes = 2 * samples * channels
    return _wav((noise * (size_bytes // len(noise) + 1))[:size_bytes], channels, rate_hz)


def _wav(samples: bytes, channels: int, rate_hz: int) -> bytes:
    """Returns a WAV file of 16 bits."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples)
    return stream.getvalue()


def _image_size(steps: Sequence[ops.PreStep], model_shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns a fitting (height, width): any size before a resize, or the model's input size without a crop."""
    for step in steps:
        if isinstance(step, ops.Resize):
            return step.height, step.width
    if any(isinstance(step, ops.CenterCrop) for step in steps) or len(model_shape) != 4:
        return None
    channels_first = any(isinstance(step, ops.Layout) and step.to == "NCHW" for step in steps)
    height, width = model_shape[2:] if channels_first else model_shape[1:3]
    return height, width
