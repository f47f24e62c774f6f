"""The interface of all runtimes: named arrays in, named arrays out, in real values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from firstline_core.types import Array, TensorSpec


class Runtime(Protocol):
    """A loaded model. Thread-safe.

    Runtimes scale quantised inputs and outputs: callers pass and get real values of any dtype, and see FP32 specs. A
    model with a fixed batch size is run row by row or padded: callers may pass any number of rows.

    Attributes:
        ranges: smallest and largest real value of each quantised input, by name; other values are clipped.
        provider: that really executes the model, e.g. "CPUExecutionProvider" or "tflite/litert".
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, tuple[float, float]]
    provider: str

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model once over a batch.

        Args:
            feeds: one array for each input, rows on the first axis.

        Returns:
            One array for each output, rows on the first axis, in the order of the feeds.

        Raises:
            InvalidTensorError: a feed's name, dtype or shape is not the model's.
            InferenceError: the runtime failed on valid input.
        """
        ...

    def close(self) -> None:
        """Frees the model; calling it twice is harmless."""
        ...
