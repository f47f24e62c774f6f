"""Encodes a checkpoint, the tensor that crosses a cut, in fewer bits and compressed."""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

import numpy as np

from firstline_core.planning.split import FormName
from firstline_core.types import Array

_STEPS = 255
_LEVEL = 1
_HALF_MOST = float(np.finfo(np.float16).max)
_FLOATS: dict[str, type[np.floating]] = {"fp32": np.float32, "fp16": np.float16}
_EACH_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}
_SCALE_BYTES = 8  # the least value and the step, FP32 each


class Checkpoint(NamedTuple):
    """The encoding of one tensor, on which head and tail have to agree.

    Attributes:
        form: see `FormName`.
        shape: of the tensor, with its one row.
        channel: axis of the channels with a scale each; None for one scale.
    """

    form: FormName
    shape: tuple[int, ...]
    channel: int | None = None

    @property
    def raw_bytes(self) -> int:
        """Bytes before compression."""
        scales = math.prod(self._scales) if self.form == "int8" else 0
        return math.prod(self.shape) * _EACH_BYTES[self.form] + scales * _SCALE_BYTES

    def pack(self, values: Array) -> bytes:
        """Encodes an FP32 tensor."""
        values = np.ascontiguousarray(values, np.float32)
        if self.form in _FLOATS:
            bounded = np.clip(values, -_HALF_MOST, _HALF_MOST) if self.form == "fp16" else values
            parts = [bounded.astype(_FLOATS[self.form])]
        else:
            others = tuple(axis for axis in range(values.ndim) if axis != self.channel)
            low = values.min(axis=others, keepdims=True)
            step = (values.max(axis=others, keepdims=True) - low) / np.float32(_STEPS)
            codes = np.rint((values - low) / np.where(step > 0, step, np.float32(1)))
            parts = [np.clip(codes, 0, _STEPS).astype(np.uint8), low, step]
        return zlib.compress(b"".join(part.tobytes() for part in parts), _LEVEL)

    def unpack(self, content: bytes) -> Array:
        """Decodes the FP32 tensor of `pack`."""
        raw, count = zlib.decompress(content), math.prod(self.shape)
        if self.form in _FLOATS:
            return np.frombuffer(raw, _FLOATS[self.form]).astype(np.float32).reshape(self.shape)
        codes = np.frombuffer(raw, np.uint8, count).astype(np.float32).reshape(self.shape)
        low, step = np.frombuffer(raw, np.float32, offset=count).reshape(2, *self._scales)
        codes *= step
        codes += low
        return codes

    @property
    def _scales(self) -> tuple[int, ...]:
        return tuple(size if axis == self.channel else 1 for axis, size in enumerate(self.shape))
