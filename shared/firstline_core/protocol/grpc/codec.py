"""Inferences to and from gRPC's messages. No I/O.

A message is looked through before protobuf parses it: raw tensors stay views of the bytes that came, and what is left
is small. (Parsed messages take up to fifty times their bytes, so their size is bounded as JSON's is.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.protocol import answer as answers
from firstline_core.protocol import framing, outputs, tensors
from firstline_core.protocol.framing import Described
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import request_of
from firstline_core.protocol.protobuf import spans
from firstline_core.types import DATATYPES, Array, InferRequest, InferResponse, Tensor

_RAW_INPUTS = message("ModelInferRequest").DESCRIPTOR.fields_by_name["raw_input_contents"].number
# Fields of the outermost message: inputs, outputs, parameters and raw tensors together.
_FIELDS_LIMIT = 1024

# Where InferTensorContents has the elements of each datatype; FP16 travels raw alone.
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
    """A ModelInferRequest's bytes without its raw tensors, and those.

    Raises:
        InvalidTensorError: the bytes are no message.
        PayloadTooLargeError: over `limits`; `json_bytes` holds for what is not raw.
    """
    if len(sent) > limits.body_bytes:
        raise PayloadTooLargeError(f"The message is {len(sent)} bytes; at most {limits.body_bytes} are accepted.")
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
                    f"The message has more than {_FIELDS_LIMIT} fields, or more than {limits.json_bytes} bytes beside "
                    "'raw_input_contents'; send tensors there."
                )
    except ValueError as error:
        raise InvalidTensorError(f"The message is no ModelInferRequest: {error}.") from error
    return b"".join(rest), raw


def decode_request(
    head: bytes,
    raw: Sequence[memoryview],
    *,
    now_s: float = 0.0,
    principal: str = "",
    trust_request_id: bool = False,
    limits: Limits,
) -> InferRequest:
    """The request that a ModelInferRequest describes. Raw numeric inputs are read-only views of the bytes that came.

    Args:
        head: from `split`, as `raw` is; see `oip.decode_request` for the rest.
        raw: one for each input, or none.
        now_s: on this tier's monotonic clock; the parameter `timeout` counts from here.
        principal: who asks, as the transport authenticated them.
        trust_request_id: for devices, whose escalations keep their id.
        limits: held against sizes before anything is allocated.

    Raises:
        InvalidTensorError: the message does not say what V2 says that it must.
        RequestError: a parameter has a value that it cannot take.
        PayloadTooLargeError: it asks for more than `limits` allow.
    """
    try:
        found = message("ModelInferRequest").FromString(head)
    except DecodeError as error:
        raise InvalidTensorError(f"The message is no ModelInferRequest: {error}.") from error
    described: dict[str, Any] = {
        "id": found.id,
        "parameters": read_parameters(found.parameters),
        "outputs": [
            {"name": output.name, "parameters": read_parameters(output.parameters)} for output in found.outputs
        ],
    }
    return request_of(
        found.model_name,
        described,
        _inputs(found, raw, limits),
        version=found.model_version,
        now_s=now_s,
        principal=principal,
        trust_request_id=trust_request_id,
        limits=limits,
    )


def encode_response(request: InferRequest, response: InferResponse, labels: Sequence[str] = ()) -> Any:
    """The ModelInferResponse, with the outputs that the request named, all of them raw.

    Args:
        request: what was asked.
        response: what is answered.
        labels: of the model's classes, for outputs that are asked for as classes.

    Raises:
        InvalidTensorError: the request names an output that there is not, or that has no classes.
    """
    made = message("ModelInferResponse")(model_name=response.model, model_version=response.version, id=response.id)
    if response.answer is not None:
        write_parameters(made.parameters, answers.to_parameters(response.answer))
    for tensor, _ in outputs.chosen(request, response, labels):
        made.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        made.raw_output_contents.append(bytes(tensors.to_binary(f"Output '{tensor.name}'", tensor)))
    return made


def read_parameters(parameters: Mapping[str, Any]) -> dict[str, object]:
    """V2 parameters; one without a value counts as absent."""
    found: dict[str, object] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            found[key] = getattr(parameter, choice)
    return found


def write_parameters(parameters: Any, values: Mapping[str, str | float | bool]) -> None:
    """Puts values into a message's parameters."""
    for key, value in values.items():
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, int):
            parameters[key].int64_param = value
        elif isinstance(value, float):
            parameters[key].double_param = value
        else:
            parameters[key].string_param = value


def _inputs(found: Any, raw: Sequence[memoryview], limits: Limits) -> tuple[Tensor, ...]:
    if raw and len(raw) != len(found.inputs):
        raise InvalidTensorError(
            f"The request has {len(found.inputs)} inputs and {len(raw)} raw_input_contents; send one for each input, "
            "in their order, or none."
        )
    entries = [
        {
            "name": each.name,
            "datatype": each.datatype,
            "shape": list(each.shape),
            "parameters": read_parameters(each.parameters),
        }
        for each in found.inputs[: limits.tensors + 1]
    ]
    inputs = []
    for position, described in enumerate(framing.described_tensors("Input", "inputs", entries, limits)):
        framing.input_parameters(described.where, described.entry)
        each = found.inputs[position]
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


def _from_contents(described: Described, contents: Any) -> Array:
    """The array that typed contents, one element after the other, spell out."""
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
    if datatype not in ("FP32", "FP64"):  # which may be infinite, or no number, unlike JSON's
        if datatype != "BYTES":
            return tensors.from_json(where, datatype, shape, list(elements))
        array = np.empty(len(elements), np.object_)
        array[:] = list(elements)
        return array.reshape(shape)
    return np.array(elements, DATATYPES[datatype]).reshape(shape)
