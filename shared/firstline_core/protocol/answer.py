"""Encodes and decodes the answer's metadata in V2 response `parameters`.

V2 parameters are strings, numbers and booleans only, so `attempts` and `rows` travel as JSON in a string.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import orjson

from firstline_core.errors import InvalidTensorError
from firstline_core.protocol.parameters import notice_values, read_notice
from firstline_core.protocol.tensors import shown
from firstline_core.types import Answer, Attempt, Reason, RowAnswer, Status, Tier

_Choice = TypeVar("_Choice", bound=StrEnum)


def to_dict(answer: Answer) -> dict[str, Any]:
    """Returns the answer as JSON values, without unknown (`confidence`, `changed`) or empty (`rows`) fields."""
    record: dict[str, Any] = {
        "request_id": answer.request_id,
        "status": answer.status.value,
        "certified": answer.certified,
        "durable": answer.durable,
        "tier": answer.tier.value,
        "reason": answer.reason.value,
        "model_digest": answer.model_digest,
        "attempts": [
            {"tier": attempt.tier.value, "outcome": attempt.outcome, "ms": attempt.ms} for attempt in answer.attempts
        ],
    }
    if answer.confidence is not None:
        record["confidence"] = answer.confidence
    if answer.changed is not None:
        record["changed"] = answer.changed
    if answer.rows:
        record["rows"] = [_row_to_dict(row) for row in answer.rows]
    return record | notice_values(answer.contract)


def to_parameters(answer: Answer) -> dict[str, str | float | bool]:
    """Returns the answer as V2 `parameters`."""
    record = to_dict(answer)
    for key in ("attempts", "rows"):
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
    return from_dict(dict(parameters) | {key: _parsed(parameters, key) for key in ("attempts", "rows")})


def from_dict(parameters: Mapping[str, object]) -> Answer:
    """Decodes the output of `to_dict`.

    Raises:
        InvalidTensorError: a value is missing or of the wrong kind.
    """
    return Answer(
        request_id=_typed(parameters, "request_id", str),
        status=_member(parameters, "status", Status),
        certified=_typed(parameters, "certified", bool),
        durable=_typed(parameters, "durable", bool),
        tier=_member(parameters, "tier", Tier),
        reason=_member(parameters, "reason", Reason),
        confidence=_confidence(parameters),
        model_digest=_typed(parameters, "model_digest", str),
        attempts=tuple(
            Attempt(
                tier=_member(record, "tier", Tier),
                outcome=_typed(record, "outcome", str),
                ms=_number(record, "ms"),
            )
            for record in _records(parameters, "attempts")
        ),
        rows=tuple(
            RowAnswer(
                tier=_member(record, "tier", Tier),
                reason=_member(record, "reason", Reason),
                status=_member(record, "status", Status),
                certified=_typed(record, "certified", bool),
                confidence=_confidence(record),
                model_digest=_typed(record, "model_digest", str),
            )
            for record in _records(parameters, "rows")
        ),
        changed=None if parameters.get("changed") is None else _typed(parameters, "changed", bool),
        contract=read_notice(parameters),
    )


def _row_to_dict(row: RowAnswer) -> dict[str, Any]:
    record: dict[str, Any] = {
        "tier": row.tier.value,
        "reason": row.reason.value,
        "status": row.status.value,
        "certified": row.certified,
        "model_digest": row.model_digest,
    }
    if row.confidence is not None:
        record["confidence"] = row.confidence
    return record


_Plain = TypeVar("_Plain", str, bool)


def _typed(record: Mapping[str, object], key: str, kind: type[_Plain]) -> _Plain:
    value = record.get(key)
    if not isinstance(value, kind):
        raise InvalidTensorError(f"The answer's '{key}' is {shown(value)}; it must be a {kind.__name__}.")
    return value


def _number(record: Mapping[str, object], key: str) -> float:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidTensorError(f"The answer's '{key}' is {shown(value)}; it must be a number.")
    return float(value)


def _confidence(record: Mapping[str, object]) -> float | None:
    return None if record.get("confidence") is None else _number(record, "confidence")


def _member(record: Mapping[str, object], key: str, kind: type[_Choice]) -> _Choice:
    value = record.get(key)
    try:
        return kind(value)  # type: ignore[arg-type]  # any other type is a ValueError too
    except ValueError:
        raise InvalidTensorError(
            f"The answer's '{key}' is {shown(value)}; it must be one of {', '.join(kind)}."
        ) from None


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


def _records(parameters: Mapping[str, object], key: str) -> list[dict[str, Any]]:
    records = parameters.get(key)
    if records is None:
        return []
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InvalidTensorError(f"The answer's '{key}' is {shown(records)}; it must be an array of objects.")
    return records
