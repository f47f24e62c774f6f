"""A model that is ready to run, and the checks of the inputs that requests send for it.

A loaded model computes the task's outputs from the bundle's input. It is synchronous and thread-safe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.errors import InferenceError, InvalidTensorError, listed
from firstline_core.processing import audio_header, image_header, text
from firstline_core.processing import steps as ops
from firstline_core.processing.compile import Preprocess
from firstline_core.processing.cost import LIGHT_BYTES, DecodingCost, MeasuredFile, MeasuredInputs, PreparedRows
from firstline_core.processing.text import Shared
from firstline_core.processing.trial import made_up_row
from firstline_core.processing.windows import WINDOWS
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.protocol.tensors import shown, sizes
from firstline_core.runtime.base import Runtime, cast_feed, fits
from firstline_core.tasks.base import Postprocess, Prediction
from firstline_core.types import DATATYPES, Array, Arrays, InferRequest, Tensor, TensorSpec, all_finite

_NAMES_SHOWN = 20
# Kinds of numbers by the kind that they may become; see `cast_feed`.
_CONVERTED_FROM = {"f": "fiu", "i": "iu", "u": "iu"}
_CHECK_FORMAT = {"image": image_header.check_format, "audio": audio_header.check_format, "text": text.check_encoding}


class LoadedInput(Struct, frozen=True, eq=False):
    """An input of a loaded model.

    Attributes:
        spec: the bundle's input that feeds it.
        port: the model's input.
        pre: from one to the other.
        takes_pixels: whether encoded images may also be sent as pixels, UINT8 [rows, height, width, channels].
        side: names of the arrays for the postprocessing that this input gives, see `processing/compile.py`.
    """

    spec: ops.InputSpec
    port: TensorSpec
    pre: Preprocess
    takes_pixels: bool
    side: tuple[str, ...]

    def check(self, inputs: Arrays) -> Tensor:
        """Returns the bundle's input in its declared datatype.

        Raises:
            InvalidTensorError: it is absent, or not as declared.
        """
        spec = self.spec
        array = inputs.get(spec.name)
        if array is None:
            raise InvalidTensorError(f"The model needs input '{spec.name}'; it was given: {', '.join(inputs)}.")
        return check_input(spec, array, takes_pixels=self.takes_pixels)

    def measure(self, inputs: Arrays) -> tuple[MeasuredFile, ...]:
        """Returns the cost of each image or recording, from its header; () of other inputs, or pixels without steps.

        Raises:
            InvalidTensorError, PayloadTooLargeError: see `LoadedModel.prepare`, as far as the headers tell.
        """
        decoder = self.pre.decoder
        return () if decoder is None else decoder.check_and_measure(self.check(inputs))

    def prepare(self, tensor: Tensor, costs: tuple[MeasuredFile, ...], model: str, shared: Shared) -> Arrays:
        """Returns the rows of the model's input, and the side arrays, by name.

        Args:
            tensor: from `check`.
            costs: from `measure`.
            model: id, for messages.
            shared: with the other inputs, of this request.

        Raises:
            InvalidTensorError: the rows do not fit the model.
        """
        (rows, side), port = self.pre.run(tensor, costs, self.side, shared), self.port
        if port.datatype == "BYTES":
            rows = rows.reshape(len(rows), *(1,) * (len(port.shape) - 1))  # [n] or [n, 1] strings
        shape = rows.shape if self.pre.windows is None else rows.shape[1:]
        if not fits(shape, port.shape):
            raise InvalidTensorError(
                f"Input '{tensor.name}' becomes rows of shape {list(shape[1:])}, but model '{model}' takes "
                f"{sizes(port.shape[1:])}; change the steps before it"
                f"{': decode sets the channels, resize the height and width.' if self.takes_pixels else '.'}"
            )
        return {port.name: rows, **side}


def _computes_much(loaded: LoadedInput) -> bool:
    """Returns whether the steps of an input of numbers may hold more memory than is left uncounted."""
    rows = (DEFAULT_LIMITS.rows, *loaded.spec.shape[1:])
    return bool(loaded.pre.steps) and (-1 in rows or loaded.pre.steps_bytes(rows) > LIGHT_BYTES)


class LoadedModel:
    """One model of a bundle, ready to run. `load_model` creates it.

    Attributes:
        digest: of the model, see `Model.digest`.
        decodes_images: whether its preprocessing has image or audio steps.
        has_costs: whether `decoding_cost` matters: it reads files, or has steps on many numbers.
        batch: of the model, see `Model.batch`; `run` obeys it.
        by_row: whether rows gain nothing by being joined, because the model runs one at a time.
        task: of the bundle.
        declared: the declaration that the outputs satisfy.
        inputs: of the model, for which `prepare` makes rows.
        input_names: of the bundle's inputs that the model reads.
        output_names: of the model's outputs that `run` reads.
        passed_over: of an edge variant: the preferred variants that do not load here, each with the reason.
        batch_s: measured seconds of batches by number of rows; empty without measurements.
        row_s: measured seconds of a run of one prepared row, of a model of images in threads; 0 without a measurement.
    """

    passed_over: tuple[str, ...] = ()
    batch_s: Mapping[int, float] = MappingProxyType({})
    row_s: float = 0.0

    def __init__(
        self,
        *,
        model: Model,
        manifest: Manifest,
        runtime: Runtime,
        inputs: tuple[LoadedInput, ...],
        post: Postprocess,
        resources: ExitStack[None],
    ) -> None:
        self.model = model
        self.digest = model.digest
        self.batch = model.batch
        self.by_row = model.batch is not None or any(spec.shape[0] == 1 for spec in runtime.inputs)
        self.task = manifest.task
        self.runtime = runtime
        self.declared = manifest.outputs_of(model)
        self.inputs = inputs
        self.input_names = model.input_names
        self.decodes_images = any(each.pre.decoder is not None for each in inputs)
        self._computing = tuple([each for each in inputs if _computes_much(each)])
        self.has_costs = bool(self.decodes_images or self._computing)
        self._post = post
        self.output_names = post.reads
        self._resources = resources

    def prepare(self, inputs: Arrays) -> Arrays:
        """Preprocesses the bundle's inputs into rows for `run`.

        Numbers are converted to the declared datatype if they keep their values within rounding: floats of another
        width, whole numbers of another width or as floats.

        Args:
            inputs: by name, as declared in the manifest; others than those that the model reads are ignored. Encoded
                images may also be pixels, UINT8 [rows, height, width, channels]. The headers of files are read
                unless these are `MeasuredInputs`.

        Returns:
            The model's inputs by name, and the arrays that its postprocessing needs, such as `GEOMETRY`. If clips are
            cut into windows, the input is (rows, windows, ...).

        Raises:
            InvalidTensorError: not this bundle's inputs; the message names the row if possible.
            PayloadTooLargeError: an image over a limit.
        """
        if isinstance(inputs, PreparedRows):
            if not [each for each in self.inputs if each.port.name not in inputs]:
                return inputs
            if inputs.sent is None:
                raise InvalidTensorError(
                    f"These rows were prepared for a model without an input '{self.inputs[0].port.name}'."
                )
            inputs = inputs.sent  # the same model on another executor may name its inputs otherwise
        files: Sequence[tuple[MeasuredFile, ...]] = [()] * len(self.inputs)
        if self.decodes_images:
            files = (inputs.cost if isinstance(inputs, MeasuredInputs) else self.decoding_cost(inputs)).files
        rows: dict[str, Array] = {}
        shared: Shared = {}
        for each, costs in zip(self.inputs, files, strict=True):
            rows |= each.prepare(each.check(inputs), costs, self.model.id, shared)
        return rows

    def decoding_cost(self, inputs: Arrays) -> DecodingCost:
        """Returns what preparing the rows of a request costs, from the headers of files and the shapes of numbers.

        Raises:
            InvalidTensorError, PayloadTooLargeError: see `prepare`, as far as the headers tell.
        """
        given = [each for each in self._computing if each.spec.name in inputs]
        numbers_bytes = sum([each.pre.steps_bytes(inputs[each.spec.name].shape) for each in given])
        return DecodingCost(tuple([each.measure(inputs) for each in self.inputs]), numbers_bytes)

    def made_up_inputs(self, *, typical: bool) -> Arrays | None:
        """Returns one row of each of the bundle's inputs that the model reads; None for free sizes.

        Args:
            typical: whether the row has the form that clients send; otherwise it is of zeros, see `made_up_row`.
        """
        made: dict[str, Array] = {}
        for each, declared in zip(self.inputs, self.model.inputs, strict=True):
            if each.spec.name not in made:
                row = made_up_row(each.spec, declared.preprocess, each.port.shape, typical=typical)
                if row is None:
                    return None
                made[each.spec.name] = row
        return made

    def run(self, rows: Arrays) -> Arrays:
        """Runs the model.

        Args:
            rows: from `prepare`; those of several requests may be joined.

        Returns:
            The canonical outputs of the task.

        Raises:
            InvalidTensorError: rows that are not from `prepare`.
            InferenceError: the runtime failed, or the output is not as the bundle declares it.
        """
        return self._checked(self.compute(rows)).outputs

    def predict(self, inputs: Arrays) -> Prediction:
        """Prepares and runs, see `prepare` and `run`; with the evidence for scores."""
        return self._checked(self.compute(self.prepare(inputs)))

    def finish(self, raw: Arrays, rows: Arrays) -> Arrays:
        """Postprocesses the outputs of a model that ran elsewhere, like `run`.

        Args:
            raw: the model's outputs by name.
            rows: from `prepare`.

        Raises:
            InferenceError: see `run`.
        """
        return self._checked(self._post.run(raw, rows)).outputs

    def _checked(self, prediction: Prediction) -> Prediction:
        if problem := self.declared.fault(prediction.outputs):
            raise InferenceError(
                f"Model '{self.model.id}' gave {problem}; such an input is outside of what it computes, "
                "or the bundle's postprocessing does not fit the model."
            )
        return prediction

    def compute(self, rows: Arrays) -> Prediction:
        """Like `run`, without the check of the values, for made-up inputs."""
        return self._post.run(self.runtime.run(self.feeds(rows)), rows)

    def feeds(self, rows: Arrays) -> Arrays:
        """Returns the part of the rows from `prepare` that the model itself takes."""
        feeds: dict[str, Array] = {}
        for each in self.inputs:
            feed = rows[each.port.name]
            feeds[each.port.name] = feed.reshape(-1, *feed.shape[2:]) if WINDOWS in rows else feed
        return feeds

    def close(self) -> None:
        """Frees the model and its graphs; calling it twice is harmless."""
        self._resources.close()


def declared_inputs(
    request: InferRequest, manifest: Manifest, needed: Sequence[str], *, checked_later: Collection[str] | None = None
) -> Arrays:
    """Returns the request's inputs by name, in the manifest's order.

    Args:
        request: from a client.
        manifest: of its bundle.
        needed: names of the inputs without which no answer is possible.
        checked_later: names of the inputs that `LoadedModel.prepare` checks; None for those that are needed. All others
            are checked here against their declaration, because they are for a model that runs elsewhere.

    Raises:
        InvalidTensorError: an input is missing, unknown, repeated, not as declared, or has another number of rows than
            the others, or the request names an output that the bundle does not have.
    """
    arrays: dict[str, Array] = {}  # loops, because comprehensions are calls before Python 3.12
    inputs: dict[str, Array] = {}
    for tensor in request.inputs:
        arrays[tensor.name] = tensor.array
    for spec in manifest.inputs:
        if spec.name in arrays:
            inputs[spec.name] = arrays[spec.name]
    has_all = len(inputs) == len(manifest.inputs) or inputs.keys() >= {*needed}
    if len(inputs) != len(request.inputs) or not has_all:
        raise _other_inputs(request, manifest, needed)
    if len(inputs) > 1:
        _check_rows(inputs)
    checked = needed if checked_later is None else checked_later
    if len(inputs) > len(checked):
        _check_unread(manifest, {name: array for name, array in inputs.items() if name not in checked})
    for output in request.outputs:
        if output.name not in manifest.output_names:
            raise InvalidTensorError(
                f"Model '{manifest.name}' has no output {shown(output.name)}"
                f"{listed(output.name, manifest.output_names, 'it has:')}"
            )
    return inputs


def _other_inputs(request: InferRequest, manifest: Manifest, needed: Sequence[str]) -> InvalidTensorError:
    names = [spec.name for spec in manifest.inputs]
    sent = ", ".join([shown(tensor.name) for tensor in request.inputs[:_NAMES_SHOWN]])
    if len(names) == 1:
        return InvalidTensorError(
            f"Model '{manifest.name}' takes one input, '{names[0]}'; the request has: {sent}. Rename or remove it."
        )
    enough = "" if len(needed) == len(names) else f" ({', '.join(map(repr, needed))} at least)"
    return InvalidTensorError(
        f"Model '{manifest.name}' takes the inputs {', '.join(map(repr, names))}{enough}, each once; the request has: "
        f"{sent}."
    )


def _check_rows(inputs: Arrays) -> None:
    first, *others = inputs
    rows = inputs[first].shape[:1]
    for name in others:
        if inputs[name].shape[:1] != rows:
            raise InvalidTensorError(
                f"Input '{first}' has shape {list(inputs[first].shape)} and input '{name}' {list(inputs[name].shape)}; "
                "all inputs of a request have the same number of rows, their first axis."
            )


def _check_unread(manifest: Manifest, inputs: Arrays) -> None:
    """Checks the inputs that no model of this tier reads: the declaration, and the format of each file or text."""
    for name, array in inputs.items():
        spec = manifest.input(name)
        steps = [
            step for model in manifest.models for each in model.inputs if each.name == name for step in each.preprocess
        ]
        tensor = check_input(spec, array, takes_pixels=any(isinstance(step, ops.Decode) for step in steps))
        if tensor.array.dtype.hasobject:
            for row, element in enumerate(tensor.array):
                _CHECK_FORMAT[spec.kind](element, f"Row {row} of input '{name}'")


def check_input(spec: ops.InputSpec, array: Array, *, takes_pixels: bool) -> Tensor:
    """Returns an input in its declared datatype.

    Args:
        spec: the declaration.
        array: as sent.
        takes_pixels: whether encoded images may also be sent as pixels, UINT8 [rows, height, width, channels].

    Raises:
        InvalidTensorError: it is not as declared.
    """
    if array.ndim == 0 or array.shape[0] == 0:
        raise InvalidTensorError(f"Input '{spec.name}' has no rows; send at least one.")
    tensor = Tensor(spec.name, array)
    if takes_pixels and spec.kind == "image" and array.dtype == np.uint8:
        return tensor  # pixels of any size: preprocessing checks their axes
    if array.dtype != (dtype := DATATYPES[spec.datatype]):
        tensor = _converted(spec, tensor, dtype, takes_pixels=takes_pixels)
    if not fits(array.shape, spec.shape):
        raise InvalidTensorError(
            f"Input '{spec.name}' has shape {list(array.shape)}, but the model takes {sizes(spec.shape)}; send "
            "values in that shape."
        )
    if dtype.kind == "f" and not all_finite(tensor.array):
        raise _not_finite(tensor)
    return tensor


def _converted(spec: ops.InputSpec, tensor: Tensor, dtype: np.dtype[Any], *, takes_pixels: bool) -> Tensor:
    """Returns numbers in the declared datatype: floats of another width, whole numbers as wider ones or floats."""
    target = DATATYPES[spec.datatype].kind
    if target not in _CONVERTED_FROM or tensor.array.dtype.kind not in _CONVERTED_FROM[target]:
        alternative = " (encoded images) or UINT8 pixels" if takes_pixels and spec.kind == "image" else ""
        raise InvalidTensorError(
            f"Input '{spec.name}' is {spec.datatype}{alternative}, but was sent as {tensor.datatype}; convert it."
        )
    if target == "f" and tensor.array.dtype.kind == "f" and not all_finite(tensor.array):
        raise _not_finite(tensor)
    return Tensor(spec.name, cast_feed(spec.name, tensor.array, dtype, "Input"))


def _not_finite(tensor: Tensor) -> InvalidTensorError:
    finite = np.isfinite(tensor.array)
    row = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
    return InvalidTensorError(f"Row {row} of input '{tensor.name}' has NaN or infinity; send finite numbers.")
