"""Inference by file, for callers without tensors: a file, a form or JSON is the body, and the answer has labels.

`POST /firstline/v1/models/{model}/infer?route=&privacy=&wait=&timeout=&priority=&source=&id=`, the same on both tiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from firstline_core.errors import InferenceError, InvalidTensorError
from firstline_core.ids import new_request_id
from firstline_core.protocol import answer as answers
from firstline_core.protocol import file_body, tensors
from firstline_core.protocol import parameters as params
from firstline_core.protocol.http import CONTENT_TYPE, header, run_decoder
from firstline_core.protocol.oip import UNKNOWN, Origin, checked_id
from firstline_core.types import InferRequest, InferResponse, ModelMetadata, Tensor, all_finite


async def read_request(
    model: str,
    metadata: ModelMetadata,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    body: bytes,
    *,
    origin: Origin,
) -> InferRequest:
    """Reads the request of an HTTP call.

    Args:
        model: name in the path, unquoted.
        metadata: metadata of the model.
        headers: headers of the request.
        query: query parameters of the request, unquoted.
        body: body of the request, without its Content-Encoding.
        origin: of the request; it came when its head came.

    Raises:
        RequestError: see `request_from_file`.
    """
    content_type = header(headers, CONTENT_TYPE) or ""
    decode = partial(request_from_file, model, metadata, body, content_type, query, origin=origin)
    return await run_decoder(decode, 0 if file_body.is_file(metadata, content_type) else len(body))


def request_from_file(
    model: str,
    metadata: ModelMetadata,
    body: bytes,
    content_type: str,
    query: Mapping[str, str],
    *,
    origin: Origin = UNKNOWN,
) -> InferRequest:
    """Builds the request of a body for a model; see `file_body.read_body` for its forms.

    Args:
        model: the bundle's name.
        metadata: with its inputs.
        body: with any Content-Encoding undone.
        content_type: the header; "" for a plain file.
        query: `route`, `privacy`, `wait`, `timeout` in microseconds, `priority`, `source`, and the caller's `id`.
        origin: of the request.

    Raises:
        InvalidTensorError: the body is invalid.
        RequestError: the query is invalid.
        PayloadTooLargeError: the body is over the limits.
    """
    origin.limits.check_body(len(body))
    if not body:
        raise InvalidTensorError("The body is empty; send the file itself as the body.")
    preferences = params.preferences(params.from_query(query), origin.now_s)  # before the file is read
    return InferRequest(
        model=model,
        inputs=file_body.read_body(metadata, body, content_type, origin.limits),
        request_id=new_request_id(),
        id=checked_id(query.get("id", ""), origin.limits),
        principal=origin.principal,
        trace=origin.trace,
        **preferences,
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


def _plain(tensor: Tensor) -> object:
    """Returns the output as nested lists."""
    try:
        flat = tensors.to_json("Output", tensor)
    except InvalidTensorError as error:
        raise InferenceError(f"{error.message} The V2 address offers that.") from error
    return np.asarray(flat, dtype=None if tensor.datatype != "BYTES" else np.object_).reshape(tensor.shape).tolist()
