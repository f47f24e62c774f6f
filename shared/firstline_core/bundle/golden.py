"""Golden answers: outputs of each edge variant for some inputs, which a device must reproduce in its self-test.

They are stored in a file of the bundle. Their inputs are visible to everyone who has the bundle.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import IntegrityError
from firstline_core.processing.steps import InputSpec
from firstline_core.storage.artefact import Artefact
from firstline_core.storage.files import read_limited
from firstline_core.tasks.base import Prediction, Task
from firstline_core.types import DATATYPES, Array, Arrays, object_array

GOLDEN_NAME = "golden.json"
LIMIT_BYTES = 8 << 20
ROWS_LIMIT = 64


class GoldenInput(Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of one of the bundle's inputs.

    Attributes:
        rows: the elements of BYTES, such as encoded images; otherwise little-endian bytes in C order.
        shape: of a row; () for BYTES and for single numbers.
    """

    rows: Annotated[tuple[bytes, ...], Meta(min_length=1, max_length=ROWS_LIMIT)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=8)] = ()


class GoldenAnswers(Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content.

    Attributes:
        inputs: by name; at least those that the edge variants read, with equal numbers of rows.
        outputs: by variant and name, see `to_compare`: nested lists, one entry for each row; BYTES in Base64.
    """

    inputs: Annotated[dict[str, GoldenInput], Meta(min_length=1)]
    outputs: dict[str, dict[str, list[Any]]]


def read_golden(bundle: Bundle, artefact: Artefact) -> GoldenAnswers:
    """Reads the bundle's golden answers.

    Raises:
        IntegrityError: the file is absent or has other content.
    """
    path = bundle.file(artefact)
    try:
        return msgspec.json.decode(read_limited(path, LIMIT_BYTES), type=GoldenAnswers)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"{path} holds no golden answers: {error}.") from error


def encode_golden(answers: GoldenAnswers) -> bytes:
    """Returns the content of the file."""
    return msgspec.json.encode(answers) + b"\n"


def inputs_of(answers: GoldenAnswers, manifest: Manifest) -> Arrays:
    """Returns the inputs by name, as a request has them.

    Raises:
        IntegrityError: they do not fit the bundle's inputs.
    """
    specs = {spec.name: spec for spec in manifest.inputs}
    if unknown := sorted(set(answers.inputs) - set(specs)):
        raise IntegrityError(f"The golden inputs have '{unknown[0]}', which the bundle does not take.")
    if len({len(given.rows) for given in answers.inputs.values()}) > 1:
        raise IntegrityError("The golden inputs have different numbers of rows.")
    return {name: _rows_of(specs[name], given) for name, given in answers.inputs.items()}


def _rows_of(spec: InputSpec, given: GoldenInput) -> Array:
    if spec.datatype == "BYTES":
        return object_array(given.rows)
    try:
        rows = [np.frombuffer(row, DATATYPES[spec.datatype]).reshape(given.shape) for row in given.rows]
        return np.ascontiguousarray(np.stack(rows))
    except ValueError as error:
        raise IntegrityError(f"The golden inputs are none of shape {list(given.shape)}: {error}.") from error


def golden_input(array: Array) -> GoldenInput:
    """Returns the rows of one input, for the file."""
    if array.dtype.hasobject:
        return GoldenInput(tuple(array.ravel().tolist()))
    return GoldenInput(tuple(row.tobytes() for row in array), tuple(array.shape[1:]))


def to_compare(prediction: Prediction, task: Task) -> Arrays:
    """Returns the outputs, with the evidence if the task compares it."""
    return {**prediction.outputs, **prediction.evidence} if task.compares_evidence else prediction.outputs


def deviation(answers: GoldenAnswers, variant: str, actual: Arrays, task: Task) -> float | None:
    """Returns the largest difference, see `Task.difference`; None for an unknown variant, infinite for another shape.

    Args:
        answers: of the bundle.
        variant: its id.
        actual: on this device, see `to_compare`.
        task: of the bundle.
    """
    stored = answers.outputs.get(variant)
    if stored is None:
        return None
    try:
        expected = {name: _array_of(stored[name], array.dtype) for name, array in actual.items()}
    except (KeyError, ValueError, TypeError, OverflowError):
        return float("inf")
    if any(array.shape != actual[name].shape for name, array in expected.items()):
        return float("inf")
    return task.difference(expected, actual)


def _array_of(values: list[Any], dtype: np.dtype[Any]) -> Array:
    array = np.array(values, dtype)
    if not dtype.hasobject:
        return array
    decoded: Array = np.frompyfunc(base64.b64decode, 1, 1)(array)
    return decoded
