"""Bodies of the file route as tensors: the file itself, a multipart form, or JSON with files in base64.

Only the declared inputs of the model and the Content-Type decide how a body is read. Inputs of images and recordings
take files, inputs of text take UTF-8, and all others take JSON numbers.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Mapping, Sequence
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError, listed
from firstline_core.protocol import tensors
from firstline_core.protocol.http import JSON_TYPE
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import parse_json
from firstline_core.protocol.tensors import shown
from firstline_core.types import Array, ModelMetadata, Tensor, TensorSpec, object_array

_FORM_TYPE = "multipart/form-data"
# Of one part. The standard library's parser takes quadratic time.
_HEAD_LIMIT_BYTES = 1024
_HEAD_LINES = 8
_HEAD_PARAMETERS = 8


def media_type(content_type: str) -> str:
    """Returns the type of a Content-Type header without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_file(metadata: ModelMetadata, content_type: str) -> bool:
    """Returns whether a body is one file, which nothing has to parse."""
    return _file_input(metadata) is not None and media_type(content_type) not in {JSON_TYPE, _FORM_TYPE}


def read_body(metadata: ModelMetadata, body: bytes, content_type: str, limits: Limits) -> tuple[Tensor, ...]:
    """Returns the tensors of a body.

    - A multipart form has a field for each input; fields of the same name are rows. A model with one input takes its
      field under any name.
    - JSON is an object of values by input, or the value of the only input: an array of numbers or texts, with or
      without the axis of rows; images and recordings are in base64. A body of numbers is JSON whatever its
      Content-Type is, and so is a body for a model with several inputs that begins with `{`.
    - Any other body is the one element of the input of files or text.

    Args:
        metadata: with the inputs.
        body: with any Content-Encoding undone; not empty.
        content_type: the header; curl and tritonclient send none or a wrong one for plain bodies.
        limits: as for V2.

    Raises:
        InvalidTensorError: the body does not fit the inputs.
        PayloadTooLargeError: it has too many rows.
    """
    kind = media_type(content_type)
    if kind == _FORM_TYPE:
        return _of_form(metadata, form_fields(body, content_type, limits), limits)
    if kind.startswith("multipart/"):
        raise InvalidTensorError(f"The body has the type {kind}; send a form as {_FORM_TYPE}, or the file itself.")
    is_object = len(metadata.inputs) > 1 and body.lstrip()[:1] == b"{"
    if kind != JSON_TYPE and not is_object and (spec := _file_input(metadata)) is not None:
        return (_files(spec, [body], metadata, limits),)
    if len(metadata.inputs) > 1 and not is_object:
        raise InvalidTensorError(
            f"Model '{metadata.name}' takes several inputs ({_names(metadata)}); send a JSON object with an array for "
            "each, or a form."
        )
    return _of_json(metadata, body, limits)


def form_fields(body: bytes, content_type: str, limits: Limits) -> list[tuple[str, bytes]]:
    """Returns the names and contents of a form's fields, in order (RFC 7578).

    Raises:
        InvalidTensorError: the body is not a form with this boundary.
        PayloadTooLargeError: it has too many fields.
    """
    if len(content_type) > _HEAD_LIMIT_BYTES:
        raise InvalidTensorError(
            "The Content-Type of the form has more than 1 KiB; let your HTTP client write the header."
        )
    header = Message()
    header["Content-Type"] = content_type
    try:
        boundary = header.get_boundary()
    except ValueError:  # `boundary*=` is in an encoding that cannot decode it, such as "idna"
        boundary = None
    if not boundary:
        raise InvalidTensorError("The Content-Type of the form has no boundary; let your HTTP client write the header.")
    most = limits.rows + 1
    _preamble, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("utf-8", "replace"), most + 1)
    if len(parts) > most:
        raise PayloadTooLargeError(f"The form has more than {limits.rows} fields; at most {limits.rows} are accepted.")
    if not parts or not parts[-1].startswith(b"--"):
        raise InvalidTensorError("The form does not end with its boundary; it was cut off, or the boundary is wrong.")
    return [_field(part, number) for number, part in enumerate(parts[:-1])]


def _field(part: bytes, number: int) -> tuple[str, bytes]:
    """Returns the name and the content of one part of a form, which begins after its boundary."""
    head, found, content = part.partition(b"\r\n\r\n")
    lines = head.count(b"\n") + head.count(b"\r") - head.count(b"\r\n")  # the part begins after a line break
    if not found or len(head) > _HEAD_LIMIT_BYTES or lines > _HEAD_LINES or head.count(b";") > _HEAD_PARAMETERS:
        raise InvalidTensorError(
            f"Part {number} of the form has no headers that end, or more than 1 KiB, {_HEAD_LINES} lines or "
            f"{_HEAD_PARAMETERS} parameters of them."
        )
    name = BytesHeaderParser().parsebytes(head.lstrip(b"\r\n \t")).get_param("name", header="content-disposition")
    if not isinstance(name, str) or not name:
        raise InvalidTensorError(f"Part {number} of the form has no name in its Content-Disposition.")
    if not content:
        raise InvalidTensorError(f"The field {shown(name)} of the form is empty.")
    return name, content


def _of_form(metadata: ModelMetadata, fields: Sequence[tuple[str, bytes]], limits: Limits) -> tuple[Tensor, ...]:
    by_name: dict[str, list[bytes]] = {}
    for name, content in fields:
        by_name.setdefault(name, []).append(content)
    if len(metadata.inputs) == 1:
        if len(by_name) != 1:
            names = ", ".join(map(shown, by_name)) or "none"
            raise InvalidTensorError(
                f"Model '{metadata.name}' takes one input, and the form has these fields: {names}. Send one field, and "
                "parameters in the query."
            )
        by_name = {metadata.inputs[0].name: next(iter(by_name.values()))}
    specs = _known(metadata, by_name)
    return _of_equal_rows([_of_field(spec, by_name[spec.name], metadata, limits) for spec in specs])


def _of_field(spec: TensorSpec, contents: list[bytes], metadata: ModelMetadata, limits: Limits) -> Tensor:
    if spec.datatype == "BYTES":
        return _files(spec, contents, metadata, limits)
    if len(contents) > 1:
        raise InvalidTensorError(f"The form has several fields '{spec.name}'; send one with a JSON array of rows.")
    return Tensor(spec.name, _array(spec, parse_json(contents[0], limits, _wanted(metadata)), limits))


def _of_json(metadata: ModelMetadata, body: bytes, limits: Limits) -> tuple[Tensor, ...]:
    parsed = parse_json(body, limits, _wanted(metadata))
    values = parsed if isinstance(parsed, dict) else {metadata.inputs[0].name: parsed}
    found: list[Tensor] = []
    for spec in _known(metadata, values):
        array = _array(spec, values[spec.name], limits)
        if spec.name in metadata.files:
            flat = [_decoded(f"Element {at} of input '{spec.name}'", text) for at, text in enumerate(array.flat)]
            array = object_array(flat).reshape(array.shape)
        found.append(Tensor(spec.name, array))
    return _of_equal_rows(found)


def _known(metadata: ModelMetadata, values: Mapping[str, Any]) -> list[TensorSpec]:
    """Returns the inputs that have values; a model that needs more of them says which are missing."""
    unknown = [name for name in values if name not in [spec.name for spec in metadata.inputs]]
    given = [spec for spec in metadata.inputs if spec.name in values]
    if unknown or not given:
        if not unknown:
            raise InvalidTensorError(f"Model '{metadata.name}' gets no input; give its inputs: {_names(metadata)}.")
        choices = listed(unknown[0], [spec.name for spec in metadata.inputs], "remove it, or rename it to one of")
        raise InvalidTensorError(f"Model '{metadata.name}' has no input {shown(unknown[0])}{choices}")
    return given


def _of_equal_rows(found: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rows = {tensor.shape[0] for tensor in found}
    if len(rows) > 1:
        raise InvalidTensorError(f"The inputs have {sorted(rows)} rows; all share the first axis.")
    return tuple(found)


def _decoded(where: str, text: bytes) -> bytes:
    """Returns the content of base64, or of a data URL."""
    if text.startswith(b"data:"):
        text = text.partition(b",")[2]
    try:
        return b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise InvalidTensorError(
            f"{where} is not base64; JSON carries files in base64, and a plain body is the file itself."
        ) from error


def _file_input(metadata: ModelMetadata) -> TensorSpec | None:
    """Returns the input that can be a file: an image, a recording or text; None if there is none, or several."""
    found = [spec for spec in metadata.inputs if spec.datatype == "BYTES"]
    return found[0] if len(found) == 1 else None


def _wanted(metadata: ModelMetadata) -> str:
    inputs = (f"{spec.name} ({spec.datatype} {tensors.sizes(spec.shape[1:])})" for spec in metadata.inputs)
    return f"the values of {', '.join(inputs)} as JSON"


def _names(metadata: ModelMetadata) -> str:
    return ", ".join(spec.name for spec in metadata.inputs)


def _files(spec: TensorSpec, contents: Sequence[bytes], metadata: ModelMetadata, limits: Limits) -> Tensor:
    """Returns files as rows of one element each."""
    elements = math.prod([size for size in spec.shape[1:] if size != -1])
    if elements != 1 or (spec.shape and spec.shape[0] not in (-1, len(contents))):
        raise InvalidTensorError(
            f"Input '{spec.name}' takes {abs(math.prod(spec.shape))} elements a row and the body is one; use "
            f"/v2/models/{metadata.name}/infer."
        )
    shape = tensors.parse_shape(f"Input '{spec.name}'", [len(contents), *(1 for _ in spec.shape[1:])], limits)
    return Tensor(spec.name, object_array(contents).reshape(shape))


def _array(spec: TensorSpec, data: object, limits: Limits) -> Array:
    where = f"Input '{spec.name}'"
    sizes: list[int] = []
    level = data
    while isinstance(level, list):
        sizes.append(len(level))
        level = level[0] if level else None
    if not sizes and (data is None or isinstance(data, dict)):
        kind = "null" if data is None else "an object"
        raise InvalidTensorError(f"{where} is {kind}; a row takes shape {list(spec.shape[1:])}, as a JSON array.")
    actual_shape = list(sizes)
    if len(sizes) == len(spec.shape) - 1:  # one row, without the axis of rows
        sizes, data = [1, *sizes], [data]
    expected = spec.shape[1:]
    if (
        not sizes
        or len(sizes) != len(spec.shape)
        or sizes[0] == 0
        or any(expected_size not in (-1, size) for expected_size, size in zip(expected, sizes[1:], strict=True))
    ):
        raise InvalidTensorError(
            f"{where} has shape {actual_shape}; a row takes shape {tensors.sizes(expected)}, several rows "
            f"{tensors.sizes(spec.shape)}."
        )
    shape = tensors.parse_shape(where, sizes, limits)
    if shape[0] > limits.rows:
        raise PayloadTooLargeError(f"{where} has {shape[0]} rows; at most {limits.rows} are accepted.")
    return tensors.from_json(where, spec.datatype, shape, data)
