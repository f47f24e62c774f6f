"""A loaded model with its processing, from the bundle's input to probabilities. Synchronous and thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.errors import InferenceError, InvalidTensorError
from firstline_core.processing.compile import Step
from firstline_core.processing.steps import Decode
from firstline_core.runtime.base import Runtime, all_finite, fits, pick_port
from firstline_core.types import DATATYPES, Array, Tensor

Probabilities = NDArray[np.float32]


class Prediction(NamedTuple):
    """The outputs of a model, (n, classes) float32; `logits` is None unless `Model.shows_logits`."""

    probabilities: Probabilities
    logits: Probabilities | None


class LoadedModel:
    """One model of a bundle, ready to run. `load_model` makes it.

    Attributes:
        digest: of the model, see `Model.digest`.
        labels: of the bundle, in the order of the probabilities' columns.
        input: of the model, for which `prepare` makes rows.
        output_name: of the model's output that `run` reads.
        passed_over: of an edge variant: the preferred variants that do not load here, each with the reason.
        batch_s: measured seconds of batches by number of rows; empty without measurements.
    """

    passed_over: tuple[str, ...] = ()
    batch_s: Mapping[int, float] = MappingProxyType({})

    def __init__(
        self,
        *,
        model: Model,
        manifest: Manifest,
        runtime: Runtime,
        pre: Callable[[Tensor], Array],
        post: Step,
        to_logits: Step | None,
        resources: ExitStack[None],
    ) -> None:
        self.model = model
        self.digest = model.digest
        self.labels = manifest.labels
        self.runtime = runtime
        self._spec = manifest.input
        self._dtype = DATATYPES[manifest.input.datatype]
        self._floats = self._dtype.kind == "f"
        self._pixels_pass = any(isinstance(step, Decode) for step in model.preprocess)
        self._pre, self._post, self._to_logits = pre, post, to_logits
        self.input = pick_port(runtime.inputs, model.input, f"Model '{model.id}'", "input", only=True)
        self.output_name = pick_port(runtime.outputs, model.output, f"Model '{model.id}'", "output").name
        self._resources = resources

    def prepare(self, tensor: Tensor) -> Array:
        """Preprocesses a bundle input into rows for `run`.

        Args:
            tensor: as declared in the manifest; encoded images may also be pixels, UINT8 [rows, height, width,
                channels].

        Raises:
            InvalidTensorError: not this bundle's input; the message names the row if possible.
            PayloadTooLargeError: an image with too many pixels.
        """
        self._check(tensor)
        rows = self._pre(tensor)
        if not fits(rows.shape, self.input.shape):
            raise InvalidTensorError(
                f"Input '{tensor.name}' becomes rows of shape {list(rows.shape[1:])}, but model '{self.model.id}' "
                f"takes {_sizes(self.input.shape[1:])}."
            )
        return rows

    def run(self, rows: Array) -> Probabilities:
        """Runs the model.

        Args:
            rows: from `prepare`; those of several requests may be concatenated.

        Returns:
            (n, classes) float32.

        Raises:
            InvalidTensorError: rows that are not from `prepare`.
            InferenceError: the runtime failed, or did not return one finite probability per label and row.
        """
        return self._run(rows).probabilities

    def predict(self, tensor: Tensor) -> Probabilities:
        """Returns `run(prepare(tensor))`: (n, classes) float32."""
        return self.run(self.prepare(tensor))

    def predict_with_logits(self, tensor: Tensor) -> Prediction:
        """Like `predict`, with the logits before the softmax step, if there is one."""
        return self._run(self.prepare(tensor))

    def finish(self, output: Array, rows: int) -> Probabilities:
        """Postprocesses the output of a model that ran elsewhere, like `run`.

        Args:
            output: of the model.
            rows: number of input rows.

        Raises:
            InferenceError: see `run`.
        """
        return self._finite(self._post_processed(output, rows)).probabilities

    def _run(self, rows: Array) -> Prediction:
        return self._finite(self.compute(rows))

    def _finite(self, found: Prediction) -> Prediction:
        if not all_finite(found.probabilities):
            finite = np.isfinite(found.probabilities)
            raise InferenceError(
                f"Model '{self.model.id}' gave NaN or infinity for {len(finite) - int(finite.all(axis=1).sum())} of "
                f"{len(finite)} rows; such an input is outside of what it computes."
            )
        return found

    def compute(self, rows: Array) -> Prediction:
        """Like `run`, without the check for finite numbers, for inputs of zeros."""
        return self._post_processed(self.runtime.run({self.input.name: rows})[self.output_name], len(rows))

    def _post_processed(self, found: Array, rows: int) -> Prediction:
        probabilities: Probabilities = self._post(found)
        if probabilities.shape != (rows, len(self.labels)):
            raise InferenceError(
                f"Model '{self.model.id}' gave {list(probabilities.shape)} for {rows} rows, but the bundle has "
                f"{len(self.labels)} labels; correct the labels, the output's name or the label offset."
            )
        return Prediction(probabilities, self._to_logits(found) if self._to_logits is not None else None)

    def close(self) -> None:
        """Frees the model and its graphs; calling it twice is harmless."""
        self._resources.close()

    def _check(self, tensor: Tensor) -> None:
        spec = self._spec
        if tensor.name != spec.name:
            raise InvalidTensorError(f"The model's input is '{spec.name}', not '{tensor.name}'.")
        if tensor.array.ndim == 0 or tensor.array.shape[0] == 0:
            raise InvalidTensorError(f"Input '{spec.name}' has no rows; send at least one.")
        if self._pixels_pass and spec.datatype == "BYTES" and tensor.datatype == "UINT8":
            return  # pixels of any size: preprocessing checks their axes
        if tensor.datatype != spec.datatype:
            alternative = " (encoded images) or UINT8 pixels" if self._pixels_pass else ""
            raise InvalidTensorError(
                f"Input '{spec.name}' is {spec.datatype}{alternative}, but was sent as {tensor.datatype}."
            )
        if not fits(tensor.shape, spec.shape):
            raise InvalidTensorError(
                f"Input '{spec.name}' has shape {list(tensor.shape)}, but the model takes {_sizes(spec.shape)}."
            )
        if self._floats and not all_finite(tensor.array):
            raise self._not_finite(tensor)

    def _not_finite(self, tensor: Tensor) -> InvalidTensorError:
        finite = np.isfinite(tensor.array)
        row = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
        return InvalidTensorError(f"Row {row} of input '{tensor.name}' has NaN or infinity; send finite numbers.")


def _sizes(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if size < 0 else str(size) for size in shape)}]"
