"""The accuracy contract in messages: audits and alarms in requests, the gateway's notice in answers.

V2 parameters are flat, so each field is a separate parameter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from firstline_core.errors import InvalidTensorError, RequestError
from firstline_core.protocol.tensors import shown
from firstline_core.types import AuditNote, ContractNotice

_NOTE = ("predicted", "propensity", "floor", "epsilon", "threshold", "edge_digest")
_PREFIX = "audit_"
_ALARM = "alarm_edge_digest"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CLASSES = 2**31
_DEVICES = 2**31


def note_parameters(note: AuditNote) -> dict[str, str | int | float]:
    """Returns the note as request `parameters`."""
    return {_PREFIX + name: getattr(note, name) for name in _NOTE}


def read_note(parameters: Mapping[str, object], rows: int) -> AuditNote | None:
    """Returns the note in request `parameters`, or None without one.

    Args:
        parameters: of a request whose sender may audit; a null value counts as absent.
        rows: of the request; an audit has one row.

    Raises:
        RequestError: a value is missing, of the wrong kind or out of range, or the request has several rows.
    """
    given = {name: value for name in _NOTE if (value := parameters.get(_PREFIX + name)) is not None}
    if not given:
        return None
    if missing := [_PREFIX + name for name in _NOTE if name not in given]:
        raise RequestError(f"The request's note of an audit lacks {', '.join(missing)}; send all of it or none.")
    if rows != 1:
        raise RequestError(f"A request that audits has one row, and this one has {rows}; send each by itself.")
    note = AuditNote(
        predicted=_class(given["predicted"]),
        propensity=_share(given, "propensity", inclusive=True),
        floor=_share(given, "floor", inclusive=True),
        epsilon=_share(given, "epsilon", inclusive=False),
        threshold=_number(given, "threshold", "a finite number"),
        edge_digest=_digest(_PREFIX + "edge_digest", given["edge_digest"]),
    )
    if note.floor > note.propensity:
        raise RequestError(
            f"Parameter 'audit_floor' is {note.floor:g}, above 'audit_propensity', {note.propensity:g}; the floor is "
            "the smallest probability that any answer could have been audited with."
        )
    return note


def alarm_parameters(edge_digest: str) -> dict[str, str]:
    """Returns a device's alarm as request `parameters`; none for ""."""
    return {_ALARM: edge_digest} if edge_digest else {}


def read_alarm(parameters: Mapping[str, object]) -> str:
    """Returns the edge variant whose contract the device's own audits found broken, "" without an alarm.

    Args:
        parameters: of a request whose sender may audit; a null value counts as absent.

    Raises:
        RequestError: the value is not a digest.
    """
    value = parameters.get(_ALARM)
    return "" if value is None else _digest(_ALARM, value)


def notice_values(notice: ContractNotice | None) -> dict[str, float | bool]:
    """Returns the notice as answer parameters; none for None."""
    if notice is None:
        return {}
    values: dict[str, float | bool] = {"contract_alarm": notice.alarm}
    if notice.escalations_per_hour is not None:
        values["escalations_per_hour"] = notice.escalations_per_hour
    if notice.devices > 1:
        values["contract_devices"] = notice.devices
    return values


def read_notice(parameters: Mapping[str, object]) -> ContractNotice | None:
    """Returns the notice in an answer's parameters, or None without one.

    Raises:
        InvalidTensorError: a value is missing, of the wrong kind or out of range.
    """
    names = ("contract_alarm", "escalations_per_hour", "contract_devices")
    alarm, quota, devices = (parameters.get(name) for name in names)
    if alarm is quota is devices is None:
        return None
    if not isinstance(alarm, bool):
        raise InvalidTensorError(f"The answer's 'contract_alarm' is {shown(alarm)}; it must be true or false.")
    if quota is not None and ((number := _finite(quota)) is None or number < 0):
        raise InvalidTensorError(
            f"The answer's 'escalations_per_hour' is {shown(quota)}; it must be a number of at least 0."
        )
    if devices is not None and (type(devices) is not int or not 1 <= devices < _DEVICES):
        raise InvalidTensorError(
            f"The answer's 'contract_devices' is {shown(devices)}; it must be a whole number of at least 1."
        )
    return ContractNotice(alarm, None if quota is None else _finite(quota), 1 if devices is None else devices)


def _finite(value: object) -> float | None:
    """Returns the value as a float, None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer larger than every float
        return None


def _number(given: Mapping[str, object], name: str, wanted: str) -> float:
    number = _finite(given[name])
    if number is None:
        raise RequestError(f"Parameter '{_PREFIX}{name}' is {shown(given[name])}; use {wanted}.")
    return number


def _share(given: Mapping[str, object], name: str, *, inclusive: bool) -> float:
    wanted = f"a number above 0 and {'at most' if inclusive else 'below'} 1"
    number = _number(given, name, wanted)
    if not (0 < number < 1 or (inclusive and number == 1)):
        raise RequestError(f"Parameter '{_PREFIX}{name}' is {shown(given[name])}; use {wanted}.")
    return number


def _class(value: object) -> int:
    if type(value) is not int or not 0 <= value < _CLASSES:
        raise RequestError(f"Parameter 'audit_predicted' is {shown(value)}; use a class's number, from 0.")
    return value


def _digest(name: str, value: object) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise RequestError(
            f"Parameter '{name}' is {shown(value)}; use the edge variant's sha256, as its certificate names it."
        )
    return value
