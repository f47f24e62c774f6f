"""What every runtime offers: named arrays in, named arrays out, in real values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from firstline_core.types import Array, TensorSpec


class Runtime(Protocol):
    """A loaded model. Safe to call from several threads.

    Quantised inputs and outputs are scaled here: callers give and get real values (FP32), and see FP32 specs. Only an
    array of a quantised input's own integer dtype passes as it is: pixels as UINT8 are what a UINT8 model was made for.
    A model of a fixed batch size is run row by row or padded here: callers may pass any number of rows.

    Attributes:
        provider: what really executes the model, e.g. "CPUExecutionProvider" or "tflite/litert".
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
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
