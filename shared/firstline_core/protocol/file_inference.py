"""Inference by file, for callers without tensors: an image or JSON is the body, and the answer has labels.

`POST /firstline/v1/models/{model}/infer?route=&privacy=&wait=&timeout=&priority=&id=`, the same on both tiers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from firstline_core.errors import InferenceError, InvalidTensorError, PayloadTooLargeError
from firstline_core.ids import new_request_id
from firstline_core.protocol import answer as answers
from firstline_core.protocol import parameters as params
from firstline_core.protocol import tensors
from firstline_core.protocol.http import CONTENT_TYPE, decompressed, header, run_decoder
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.oip import checked_id, parse_json
from firstline_core.protocol.tensors import shown
from firstline_core.types import (
    Array,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Tensor,
    TensorSpec,
    TraceContext,
    all_finite,
)


async def read_request(
    model: str,
    metadata: ModelMetadata,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    body: bytes,
    *,
    principal: str,
    limits: Limits,
    arrived_s: float,
    trace: TraceContext | None = None,
) -> InferRequest:
    """Reads the request of an HTTP call.

    Args:
        model: name in the path, unquoted.
        metadata: metadata of the model.
        headers: headers of the request.
        query: query parameters of the request, unquoted.
        body: body of the request, as received.
        principal: the authenticated caller.
        limits: limits of the tier.
        arrived_s: monotonic time when the head of the request arrived; `timeout` counts from here.
        trace: trace context of the request.

    Raises:
        RequestError: see `request_from_file`.
    """

    def decode() -> InferRequest:
        return request_from_file(
            model,
            metadata,
            decompressed(headers, body, limits),
            header(headers, CONTENT_TYPE) or "",
            query,
            now_s=arrived_s,
            principal=principal,
            limits=limits,
        )

    json_bytes = 0 if _takes_file(metadata) else len(body)
    request = await run_decoder(decode, json_bytes, compressed=header(headers, "Content-Encoding") is not None)
    return request if trace is None else replace(request, trace=trace)


def request_from_file(
    model: str,
    metadata: ModelMetadata,
    body: bytes,
    content_type: str,
    query: Mapping[str, str],
    *,
    now_s: float = 0.0,
    principal: str = "",
    limits: Limits = DEFAULT_LIMITS,
) -> InferRequest:
    """Builds the request of a plain body for a model.

    If the model has one input of BYTES, the body is its only element. Otherwise, and for a model with several inputs if
    the body begins with `{`, it is JSON: an array of numbers or texts, with or without the axis of rows, or an object
    with such arrays by input.

    Args:
        model: the bundle's name.
        metadata: with its inputs.
        body: with any Content-Encoding undone.
        content_type: only multipart matters, because curl and tritonclient send none or a wrong one.
        query: `route`, `privacy`, `wait`, `timeout` in microseconds, `priority`, and the caller's `id`.
        now_s: on this tier's monotonic clock; `timeout` counts from here.
        principal: the caller.
        limits: as for V2.

    Raises:
        InvalidTensorError: the body is invalid.
        RequestError: the query is invalid.
        PayloadTooLargeError: the body is over `limits`.
    """
    limits.check_body(len(body))
    if not body:
        raise InvalidTensorError("The body is empty; send the file itself as the body.")
    if content_type.lower().startswith("multipart/"):
        raise InvalidTensorError(
            "The body is a multipart form; send the file itself as the body, as `curl --data-binary @FILE` does."
        )
    preferences = params.preferences(params.from_query(query), now_s)
    is_object = len(metadata.inputs) > 1 and body.lstrip()[:1] == b"{"
    if _takes_file(metadata) and not is_object:
        inputs: tuple[Tensor, ...] = (_file_tensor(metadata, body),)
    elif len(metadata.inputs) > 1 and not is_object:
        names = ", ".join(spec.name for spec in metadata.inputs)
        raise InvalidTensorError(
            f"Model '{metadata.name}' takes several inputs ({names}); send a JSON object with an array for each."
        )
    else:
        inputs = _json_tensors(metadata, body, limits)
    return InferRequest(
        model=model,
        inputs=inputs,
        request_id=new_request_id(),
        id=checked_id(query.get("id", ""), limits),
        route=preferences.route,
        privacy=preferences.privacy,
        wait=preferences.wait,
        deadline_s=preferences.deadline_s,
        priority=preferences.priority,
        principal=principal,
    )


def answer_json(response: InferResponse, results: Sequence[dict[str, Any]] | None) -> dict[str, Any]:
    """Returns the answer for people, as JSON values.

    Args:
        response: the answer.
        results: each row in the form of the model's task; None if the outputs are not those of a known task.

    Returns:
        The answer's metadata, `model`, `version`, the caller's `id` if it sent one, and one of: the result of one row;
        `results` of several rows; `outputs` by name.

    Raises:
        InferenceError: JSON cannot represent an output that is not finite or not UTF-8.
    """
    reply: dict[str, Any] = {"model": response.model, "version": response.version}
    if response.answer is not None:
        reply = answers.to_dict(response.answer) | reply
    if response.id:
        reply["id"] = response.id
    if results is None:
        return reply | {"outputs": {tensor.name: _plain(tensor) for tensor in response.outputs}}
    for tensor in response.outputs:
        if tensor.array.dtype.kind == "f" and not all_finite(tensor.array):
            raise InferenceError(f"Model '{response.model}' gave NaN or infinity in '{tensor.name}'.")
    return reply | (results[0] if len(results) == 1 else {"results": list(results)})


def _takes_file(metadata: ModelMetadata) -> bool:
    """Returns whether one input of the model can be a file: an image, audio or text."""
    return sum(spec.datatype == "BYTES" for spec in metadata.inputs) == 1


def _file_tensor(metadata: ModelMetadata, body: bytes) -> Tensor:
    first = next(spec for spec in metadata.inputs if spec.datatype == "BYTES")
    shape = tuple(1 if size == -1 else size for size in first.shape) or (1,)
    if math.prod(shape) != 1:
        raise InvalidTensorError(
            f"Input '{first.name}' takes {math.prod(shape)} elements a row and the body is one; use "
            f"/v2/models/{metadata.name}/infer."
        )
    array = np.empty(shape, dtype=np.object_)
    array.reshape(-1)[0] = body
    return Tensor(first.name, array)


def _json_tensors(metadata: ModelMetadata, body: bytes, limits: Limits) -> tuple[Tensor, ...]:
    names = [spec.name for spec in metadata.inputs]
    parsed = parse_json(body, limits)
    values = parsed if isinstance(parsed, dict) else {names[0]: parsed}
    # A model that needs fewer of them checks which are missing.
    unknown, given = [name for name in values if name not in names], [name for name in names if name in values]
    if unknown or not given:
        fault = f"has no input {shown(unknown[0])}" if unknown else f"needs input '{names[0]}'"
        raise InvalidTensorError(f"Model '{metadata.name}' {fault}; its inputs: {', '.join(names)}.")
    inputs = tuple(
        Tensor(spec.name, _json_array(spec, values[spec.name], limits))
        for spec in metadata.inputs
        if spec.name in given
    )
    rows = {tensor.shape[0] for tensor in inputs}
    if len(rows) > 1:
        raise InvalidTensorError(f"The inputs have {sorted(rows)} rows; all share the first axis.")
    return inputs


def _json_array(spec: TensorSpec, data: object, limits: Limits) -> Array:
    where = f"Input '{spec.name}'"
    sizes: list[int] = []
    level = data
    while isinstance(level, list):
        sizes.append(len(level))
        level = level[0] if level else None
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
            f"{where} has shape {actual_shape}; a row takes shape {list(expected)}, rows {list(spec.shape)} "
            "(-1 is any size)."
        )
    shape = tensors.parse_shape(where, sizes, limits)
    if shape[0] > limits.rows:
        raise PayloadTooLargeError(f"{where} has {shape[0]} rows; at most {limits.rows} are accepted.")
    return tensors.from_json(where, spec.datatype, shape, data)


def _plain(tensor: Tensor) -> object:
    """Returns the output as nested lists."""
    try:
        flat = tensors.to_json("Output", tensor)
    except InvalidTensorError as error:
        raise InferenceError(f"{error.message} The V2 address offers that.") from error
    return np.asarray(flat, dtype=None if tensor.datatype != "BYTES" else np.object_).reshape(tensor.shape).tolist()
