"""Encodes and decodes the answer's metadata in V2 response `parameters`.

V2 parameters are strings, numbers and booleans only, so `attempts` and `rows` travel as JSON in a string, and each
field of the contract's notice is a separate parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import to_builtins

from firstline_core.errors import InvalidTensorError
from firstline_core.protocol.parameters import convert_parameters
from firstline_core.protocol.tensors import shown
from firstline_core.types import Answer, ContractNotice

_NOTICE = ContractNotice.__struct_encode_fields__
_NESTED = ("attempts", "rows")
_UNKNOWN: dict[str, Any] = {"confidence": None}


def to_dict(answer: Answer) -> dict[str, Any]:
    """Returns the answer as JSON values, without unknown or empty fields."""
    record: dict[str, Any] = to_builtins(answer)  # `Answer` omits fields with their default
    if answer.confidence is None:
        del record["confidence"]
    record["attempts"] = list(record.get("attempts", ()))
    if answer.rows:
        record["rows"] = [{key: value for key, value in row.items() if value is not None} for row in record["rows"]]
    if answer.contract is not None:
        record |= record.pop("contract")
    return record


def to_parameters(answer: Answer) -> dict[str, str | float | bool]:
    """Returns the answer as V2 `parameters`."""
    record = to_dict(answer)
    for key in _NESTED:
        if key in record:
            record[key] = orjson.dumps(record[key]).decode()
    return record


def from_parameters(parameters: Mapping[str, object]) -> Answer | None:
    """Returns the answer in `parameters`, or None if they are not Firstline's.

    Raises:
        InvalidTensorError: they are Firstline's, but a value is missing or of the wrong kind.
    """
    if "request_id" not in parameters or "tier" not in parameters:
        return None
    return from_dict(dict(parameters) | {key: _parsed(parameters, key) for key in _NESTED})


def from_dict(parameters: Mapping[str, object]) -> Answer:
    """Decodes the output of `to_dict`; a null value of an optional field counts as absent.

    Raises:
        InvalidTensorError: a value is missing or of the wrong kind.
    """
    notice = {name: value for name in _NOTICE if (value := parameters.get(name)) is not None}
    values = _UNKNOWN | dict(parameters) | {"contract": notice or None}
    for key in _NESTED:
        if values.get(key) is None:
            values[key] = []
    if isinstance(rows := values["rows"], list):
        values["rows"] = [_UNKNOWN | row if isinstance(row, dict) else row for row in rows]
    return convert_parameters(values, Answer, "The answer's", InvalidTensorError)


def _parsed(parameters: Mapping[str, object], key: str) -> object:
    """Returns the parsed JSON of a string parameter; None if absent."""
    value = parameters.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return orjson.loads(value)
    except orjson.JSONDecodeError:
        pass
    raise InvalidTensorError(f"The answer's '{key}' is {shown(value)}; it must be JSON in a string.")
