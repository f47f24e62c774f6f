"""Converts inferences to and from gRPC messages. No I/O.

Raw tensors are split off before protobuf parses a message: they stay views of the received bytes, and the rest is
small. (Parsed messages take up to fifty times their bytes, so their size is limited like that of JSON.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.protocol import answer as answers
from firstline_core.protocol import oip, outputs, tensors
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import DescribedTensor, Origin, request_head, request_of
from firstline_core.protocol.protobuf import spans
from firstline_core.types import DATATYPES, Array, InferRequest, InferResponse, Tensor, object_array

_RAW_INPUTS = message("ModelInferRequest").DESCRIPTOR.fields_by_name["raw_input_contents"].number
# Fields of the outermost message: inputs, outputs, parameters and raw tensors together.
_FIELDS_LIMIT = 1024

# The field of InferTensorContents for each datatype; FP16 travels only as raw data.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def split(sent: bytes, limits: Limits) -> tuple[bytes, list[memoryview]]:
    """Returns the bytes of a ModelInferRequest without its raw tensors, and the raw tensors.

    Raises:
        InvalidTensorError: the bytes are not a message.
        PayloadTooLargeError: over `limits`; `json_bytes` applies to everything but raw tensors.
    """
    limits.check_body(len(sent))
    raw: list[memoryview] = []
    rest: list[memoryview] = []
    rest_bytes = 0
    try:
        for number, value, span in spans(memoryview(sent)):
            if number == _RAW_INPUTS and isinstance(value, memoryview):
                raw.append(value)
            else:
                rest.append(span)
                rest_bytes += len(span)
            if len(raw) + len(rest) > _FIELDS_LIMIT or rest_bytes > limits.json_bytes:
                raise PayloadTooLargeError(
                    f"The message has more than {_FIELDS_LIMIT} fields, or more than {limits.json_bytes} bytes besides "
                    "'raw_input_contents'; send tensors there."
                )
    except ValueError as error:
        raise InvalidTensorError(
            f"The message is not a ModelInferRequest: {error}; serialize it by inference.proto."
        ) from error
    return b"".join(rest), raw


def parse(kind: str, sent: bytes) -> Any:
    """Parses a message of a kind of the service.

    Raises:
        InvalidTensorError: the bytes are another message, or none.
    """
    try:
        return message(kind).FromString(sent)
    except DecodeError as error:
        raise InvalidTensorError(f"The message is not a {kind}: {error}; serialize it by inference.proto.") from error


def decode_request(head: bytes, raw: Sequence[memoryview], origin: Origin) -> InferRequest:
    """Decodes a ModelInferRequest. Raw numeric inputs are read-only views of the received bytes.

    Args:
        head: see `split`, like `raw`.
        raw: one for each input, or none.
        origin: of the request.

    Raises:
        InvalidTensorError: the message is not valid V2.
        RequestError: a parameter has an invalid value.
        PayloadTooLargeError: it exceeds the limits.
    """
    parsed = parse("ModelInferRequest", head)
    described: dict[str, Any] = {
        "id": parsed.id,
        "parameters": read_parameters(parsed.parameters),
        "outputs": [
            {"name": output.name, "parameters": read_parameters(output.parameters)} for output in parsed.outputs
        ],
    }
    checked, inputs = request_head(described, origin.limits), _inputs(parsed, raw, origin.limits)
    return request_of(parsed.model_name, parsed.model_version, checked, inputs, origin)


def encode_response(request: InferRequest, response: InferResponse, labels: Sequence[str] = ()) -> Any:
    """Encodes a ModelInferResponse with the requested outputs as raw data.

    Args:
        request: the answered request.
        response: to encode.
        labels: names of the model's classes, for outputs requested as classes.

    Raises:
        InvalidTensorError: a requested output does not exist, or has no classes.
    """
    made = message("ModelInferResponse")(model_name=response.model, model_version=response.version, id=response.id)
    if response.answer is not None:
        write_parameters(made.parameters, answers.to_parameters(response.answer))
    for tensor, _ in outputs.chosen(request, response, labels):
        made.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        made.raw_output_contents.append(bytes(tensors.to_binary("Output", tensor)))
    return made


def read_parameters(parameters: Mapping[str, Any]) -> dict[str, object]:
    """Returns V2 parameters; one without a value counts as absent."""
    decoded: dict[str, object] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            decoded[key] = getattr(parameter, choice)
    return decoded


def write_parameters(parameters: Any, values: Mapping[str, str | float | bool]) -> None:
    """Writes values to the parameters of a message."""
    for key, value in values.items():
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, int):
            parameters[key].int64_param = value
        elif isinstance(value, float):
            parameters[key].double_param = value
        else:
            parameters[key].string_param = value


def _inputs(parsed: Any, raw: Sequence[memoryview], limits: Limits) -> tuple[Tensor, ...]:
    if raw and len(raw) != len(parsed.inputs):
        raise InvalidTensorError(
            f"The request has {len(parsed.inputs)} inputs and {len(raw)} raw_input_contents; send one for each input, "
            "in their order, or none."
        )
    entries = [
        {
            "name": each.name,
            "datatype": each.datatype,
            "shape": list(each.shape),
            "parameters": read_parameters(each.parameters),
        }
        for each in parsed.inputs[: limits.tensors + 1]
    ]
    listed = tuple(oip.described_tensors("Input", "inputs", entries, limits))
    oip.check_rows(listed, limits)
    inputs = []
    for position, described in enumerate(listed):
        each = parsed.inputs[position]
        if raw and each.HasField("contents"):
            raise InvalidTensorError(
                f"{described.where} has both 'contents' and 'raw_input_contents'; give only one of them."
            )
        array = (
            tensors.from_binary(described.where, described.datatype, described.shape, raw[position])
            if raw
            else _from_contents(described, each.contents)
        )
        inputs.append(Tensor(described.name, array))
    return tuple(inputs)


def _from_contents(described: DescribedTensor, contents: Any) -> Array:
    """Returns the array of typed contents."""
    where, datatype, shape = described.where, described.datatype, described.shape
    field = CONTENTS.get(datatype)
    if field is None:
        raise InvalidTensorError(f"{where} is {datatype}, which has no typed contents; send 'raw_input_contents'.")
    elements = getattr(contents, field)
    if len(elements) != math.prod(shape):
        raise InvalidTensorError(
            f"{where} has {len(elements)} elements in '{field}'; shape {list(shape)} of {datatype} needs "
            f"{math.prod(shape)}."
        )
    if datatype not in ("FP32", "FP64"):  # which may be infinite or NaN, unlike in JSON
        if datatype != "BYTES":
            return tensors.from_json(where, datatype, shape, list(elements))
        return object_array(list(elements)).reshape(shape)
    return np.array(elements, DATATYPES[datatype]).reshape(shape)
