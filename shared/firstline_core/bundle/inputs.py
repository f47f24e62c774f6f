"""Checks the inputs of requests against the declarations of a bundle's manifest, without a loaded model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from firstline_core.bundle.manifest import Manifest
from firstline_core.errors import InvalidTensorError, listed
from firstline_core.processing import audio_header, image_header, text
from firstline_core.processing.steps import Decode, InputSpec
from firstline_core.protocol.tensors import shown, sizes
from firstline_core.runtime.base import cast_feed, fits
from firstline_core.types import DATATYPES, Array, Arrays, InferRequest, Tensor, all_finite

_NAMES_SHOWN = 20
# Kinds of numbers by the kind that they may become; see `cast_feed`.
_CONVERTED_FROM = {"f": "fiu", "i": "iu", "u": "iu"}
_CHECK_FORMAT = {"image": image_header.check_format, "audio": audio_header.check_format, "text": text.check_encoding}


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
    given: dict[str, Array] = {}  # loops, because comprehensions are calls before Python 3.12
    inputs: dict[str, Array] = {}
    for tensor in request.inputs:
        given[tensor.name] = tensor.array
    for spec in manifest.inputs:
        if spec.name in given:
            inputs[spec.name] = given[spec.name]
    if len(inputs) != len(request.inputs) or not inputs.keys() >= {*needed}:
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
    known = [spec.name for spec in manifest.inputs]
    sent = ", ".join([shown(tensor.name) for tensor in request.inputs[:_NAMES_SHOWN]])
    if len(known) == 1:
        return InvalidTensorError(
            f"Model '{manifest.name}' takes one input, '{known[0]}'; the request has: {sent}. Rename or remove it."
        )
    enough = "" if len(needed) == len(known) else f" ({', '.join(map(repr, needed))} at least)"
    return InvalidTensorError(
        f"Model '{manifest.name}' takes the inputs {', '.join(map(repr, known))}{enough}, each once; the request has: "
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
        tensor = check_input(spec, array, takes_pixels=any(isinstance(step, Decode) for step in steps))
        if tensor.array.dtype.hasobject:
            for row, element in enumerate(tensor.array):
                _CHECK_FORMAT[spec.kind](element, f"Row {row} of input '{name}'")


def check_input(spec: InputSpec, array: Array, *, takes_pixels: bool) -> Tensor:
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


def _converted(spec: InputSpec, tensor: Tensor, dtype: np.dtype[Any], *, takes_pixels: bool) -> Tensor:
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
