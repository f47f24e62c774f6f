"""The requested outputs of a V2 request: decoding, encoding, selection from a response, and classes as strings.

Classes are Triton's classification extension:
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError, listed
from firstline_core.protocol import parameters as params
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.tensors import shown
from firstline_core.types import InferRequest, InferResponse, RequestedOutput, Tensor

_Count = Annotated[int, Meta(ge=1)]
_INSTEAD = "remove this parameter, and take the data from the body"


def requested(head: dict[str, Any], limits: Limits) -> tuple[RequestedOutput, ...]:
    """Returns the outputs that a header names; () for the server's choice.

    Raises:
        InvalidTensorError: they are not valid V2.
        PayloadTooLargeError: they exceed `limits`.
    """
    entries = head.get("outputs")
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise InvalidTensorError(f"'outputs' is {shown(entries)}; give an array of names, or leave it out.")
    if len(entries) > limits.tensors:
        raise PayloadTooLargeError(f"'outputs' has {len(entries)} names; at most {limits.tensors} are accepted.")
    outputs: dict[str, RequestedOutput] = {}
    for position, entry in enumerate(entries):
        name = params.name_of(entry, f"Requested output {position}")
        where = f"Requested output {shown(name)}"
        if name in outputs:
            raise InvalidTensorError(f"{where} appears twice; name each output once.")
        parameters = params.parameters_of_tensor(entry, where, _INSTEAD)
        classes = params.value_of(parameters, "classification", _Count, "a whole number from 1 on", 0)
        outputs[name] = RequestedOutput(name, params.flag(parameters, "binary_data"), classes)
    return tuple(outputs.values())


def entry(output: RequestedOutput) -> dict[str, Any]:
    """Returns the entry of one output in a header."""
    parameters: dict[str, Any] = {} if output.binary is None else {"binary_data": output.binary}
    if output.classification:
        parameters["classification"] = output.classification
    return {"name": output.name} | ({"parameters": parameters} if parameters else {})


def chosen(request: InferRequest, response: InferResponse, labels: Sequence[str] = ()) -> list[tuple[Tensor, bool]]:
    """Returns the requested outputs in order and form of the request, and whether each travels as binary data.

    Raises:
        InvalidTensorError: an output does not exist, or has no classes.
    """
    if not request.outputs:
        return [(tensor, request.binary_output) for tensor in response.outputs]
    by_name: dict[str, Tensor] = {}
    for tensor in response.outputs:  # a loop, because a comprehension is a call before Python 3.12
        by_name[tensor.name] = tensor
    selected: list[tuple[Tensor, bool]] = []
    for output in request.outputs:
        if output.name not in by_name:
            raise InvalidTensorError(
                f"Model '{request.model}' has no output {shown(output.name)}{listed(output.name, by_name, 'it has:')}"
            )
        tensor = by_name[output.name]
        if output.classification:
            tensor = classified(tensor, output.classification, labels)
        selected.append((tensor, request.binary_output if output.binary is None else output.binary))
    return selected


def classified(tensor: Tensor, count: int, labels: Sequence[str]) -> Tensor:
    """Returns the `count` most likely classes of each row, most likely first, as "VALUE:INDEX:LABEL".

    Args:
        tensor: numbers, (rows, classes).
        count: at least 1; limited to the number of classes.
        labels: names of the classes by index; a class without label is "VALUE:INDEX".

    Returns:
        BYTES, (rows, at most `count`).

    Raises:
        InvalidTensorError: the output has no classes.
    """
    if tensor.array.ndim != 2 or tensor.array.dtype.kind not in "iuf":
        raise InvalidTensorError(
            f"Output {shown(tensor.name)} is {tensor.datatype} of shape {list(tensor.shape)}, so it has no classes; "
            "ask for it without 'classification'."
        )
    likeliest = np.argsort(-tensor.array.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = np.empty(likeliest.shape, np.object_)
    for row, classes in enumerate(likeliest):
        texts[row] = [_text(float(tensor.array[row, index]), int(index), labels) for index in classes]
    return Tensor(tensor.name, texts)


def _text(value: float, index: int, labels: Sequence[str]) -> bytes:
    text = f"{value:.6f}:{index}"  # formatted like C++'s std::to_string, which Triton uses
    return (f"{text}:{labels[index]}" if index < len(labels) else text).encode()
