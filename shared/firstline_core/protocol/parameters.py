"""The `parameters` of V2 requests and answers, and their checks.

A caller sends route, privacy, wait, timeout, priority and source, in JSON or in a query. A device also sends its audits
and alarms, and the gateway answers with the notice of the accuracy contract. V2 parameters are flat, so each field is a
separate parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from firstline_core.errors import InvalidTensorError, RequestError, did_you_mean, listed
from firstline_core.protocol.tensors import shown
from firstline_core.types import LOWEST_PRIORITY, SOURCE_LIMIT, AuditNote, ContractAlarm, Privacy, Route, Wait

_T = TypeVar("_T")

_US_PER_S = 1_000_000
# 285 years. Added to a tier's own clock, the largest 64-bit number would not fit 64 bits.
_TIMEOUT_MAX_US = 2**53


_ONE_OF = "one of "
_KNOWN: Mapping[str, tuple[Any, str]] = {
    "route": (Route, f"{_ONE_OF}{', '.join(Route)}"),
    "privacy": (Privacy, f"{_ONE_OF}{', '.join(Privacy)}"),
    "wait": (Wait, f"{_ONE_OF}{', '.join(Wait)}"),
    "timeout": (Annotated[int, Meta(ge=0)], "microseconds as a whole number above 0, or 0 for the default"),
    "priority": (Annotated[int, Meta(ge=0)], f"1 (the highest) to {LOWEST_PRIORITY}, or 0 for the default"),
    "source": (str, "a string"),
}
"""The parameters that every caller may send: type, and what to send."""

VIEW = ("min_score", "classes", "max_objects", "masks")
"""Query parameters of the file route about the description of an answer; see `firstline_core/file_route.py`."""

_QUERY = (*_KNOWN, "id", *VIEW)
_LISTS = ("classes",)  # may be repeated

SEVERAL = "\0"
"""Separates the values of a repeated query parameter; no value holds it."""


def preferences(parameters: Mapping[str, object], now_s: float) -> dict[str, Any]:
    """Returns the fields of `InferRequest` that the known parameters set, and ignores others, such as Triton's.

    Args:
        parameters: V2's request `parameters`; a null value counts as absent.
        now_s: current time on this tier's monotonic clock; `timeout` counts from here.

    Raises:
        RequestError: a known parameter has an invalid value; the message says what is valid.
    """
    if _KNOWN.keys().isdisjoint(parameters):
        return {}
    values = {name: value_of(parameters, name, *kind_and_use) for name, kind_and_use in _KNOWN.items()}
    fields = {name: value for name, value in values.items() if value is not None}
    if timeout_us := fields.pop("timeout", 0):
        fields["deadline_s"] = deadline_s(timeout_us, now_s)
    if len(source := fields.get("source", "")) > SOURCE_LIMIT:
        raise RequestError(
            f"Parameter 'source' has {len(source)} characters; name the camera or machine with at most {SOURCE_LIMIT}."
        )
    # Triton's priority: levels below the lowest one are raised to it.
    # https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_schedule_policy.md
    return fields | {"priority": min(fields.get("priority", 0), LOWEST_PRIORITY)}


def from_query(query: Mapping[str, str]) -> dict[str, object]:
    """Returns query parameters in the form of `preferences`.

    Unlike in V2, an unknown name is refused, because a misspelt `privacy` must not let an image leave the device.

    Raises:
        RequestError: see `check_query`.
    """
    check_query(query, _QUERY)
    parameters: dict[str, object] = dict(query)
    for name in ("timeout", "priority"):
        number = query.get(name, "")
        # 20 digits hold every unsigned 64-bit number, and limit the work of int().
        if number.isascii() and number.isdigit() and len(number) <= 20:
            parameters[name] = min(int(number), _TIMEOUT_MAX_US)
    return parameters


def check_query(query: Mapping[str, str], known: Collection[str]) -> None:
    """Refuses a query with a parameter that is not among the known ones, or with several values where one is meant.

    Raises:
        RequestError: names the parameter.
    """
    for name, value in query.items():
        if name not in known:
            raise RequestError(f"Query parameter {shown(name)} is unknown{listed(name, known, 'use')}")
        if SEVERAL in value and name not in _LISTS:
            values = " and ".join(map(shown, value.split(SEVERAL)))
            raise RequestError(f"Query parameter '{name}' has several values, {values}; send one.")


def timeout_us(deadline_s: float, now_s: float) -> int:
    """Returns the time until a deadline as `timeout` (microseconds): 1 (because 0 means none) to 285 years."""
    return max(1, int(min(deadline_s - now_s, _TIMEOUT_MAX_US / _US_PER_S) * _US_PER_S))


def deadline_s(timeout_us: int, now_s: float) -> float:
    """Returns the deadline of a `timeout` above 0 that starts now."""
    return now_s + min(timeout_us, _TIMEOUT_MAX_US) / _US_PER_S


def value_of(parameters: Mapping[str, object], key: str, kind: Any, use: str, default: Any = None) -> Any:
    """Returns one parameter.

    Args:
        parameters: by name; null counts as absent.
        key: its name.
        kind: its type, for msgspec.
        use: what to send, as the end of the error's sentence.
        default: if it is absent.

    Raises:
        RequestError: the value is of another type, or out of range.
    """
    value = parameters.get(key)
    if value is None:
        return default
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        choices = use.removeprefix(_ONE_OF).split(", ") if use.startswith(_ONE_OF) else ()
        end = did_you_mean(value, choices)
        raise RequestError(f"Parameter '{key}' is {shown(value)}; use {use}{end}") from error


def flag(parameters: Mapping[str, object], key: str) -> bool | None:
    """Returns a boolean parameter, None if absent; see `value_of`."""
    found: bool | None = value_of(parameters, key, bool, "true or false")
    return found


def text(parameters: Mapping[str, object], key: str) -> str:
    """Returns a string parameter, "" if absent; see `value_of`."""
    found: str = value_of(parameters, key, str, "a string", "")
    return found


def name_of(entry: object, where: str) -> str:
    """Returns the name of an entry of `inputs` or `outputs`.

    Raises:
        InvalidTensorError: it has no name.
    """
    if not isinstance(entry, dict):
        raise InvalidTensorError(f"{where} is {shown(entry)}; it must be an object with a 'name'.")
    name = entry.get("name")
    if not name:
        raise InvalidTensorError(f"{where} has no 'name'; add it.")
    if not isinstance(name, str):
        raise InvalidTensorError(f"{where} has the 'name' {shown(name)}; it must be text.")
    return name


def parameters_of(holder: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the optional parameters of an object, empty if absent.

    Raises:
        InvalidTensorError: the value is not an object.
    """
    value = holder.get("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidTensorError(f"{where} has 'parameters' {shown(value)}; it must be an object.")
    return value


def parameters_of_tensor(entry: dict[str, Any], where: str, instead: str) -> dict[str, Any]:
    """Returns the parameters of an entry of `inputs` or `outputs`.

    Args:
        entry: as received.
        where: its name in errors.
        instead: what to do instead of sharing memory, which would change the meaning of a request.

    Raises:
        InvalidTensorError: see `parameters_of`, or the caller shares memory, an extension of Triton.
    """
    parameters = parameters_of(entry, where)
    if "shared_memory_region" in parameters:
        raise InvalidTensorError(f"{where} asks for 'shared_memory_region', which is not offered; {instead}.")
    return parameters


_EVENTS = "audit_events"
_NOTE = tuple(name for name in AuditNote.__struct_encode_fields__ if name != _EVENTS)
_ALARM = ContractAlarm.__struct_encode_fields__


def note_parameters(note: AuditNote) -> dict[str, str | int | float]:
    """Returns the note as request `parameters`; its events, if it has any, are JSON in a string."""
    parameters: dict[str, str | int | float] = msgspec.to_builtins(note)
    del parameters[_EVENTS]
    return parameters | ({_EVENTS: msgspec.json.encode(note.events).decode()} if note.events else {})


def read_note(parameters: Mapping[str, object], rows: int) -> AuditNote | None:
    """Returns the note in request `parameters`, or None without one.

    Args:
        parameters: parameters of a request whose sender may audit; a null value counts as absent.
        rows: number of rows of the request; an audit has one row.

    Raises:
        RequestError: a value is missing, of the wrong kind or out of range, or the request has several rows.
    """
    values = {name: value for name in _NOTE if (value := parameters.get(name)) is not None}
    if not values:
        return None
    if missing := [name for name in _NOTE if name not in values]:
        raise RequestError(f"The request's note of an audit lacks {', '.join(missing)}; send all of it or none.")
    if rows != 1:
        raise RequestError(f"A request that audits has one row, and this one has {rows}; send each by itself.")
    return convert_parameters(values | _events(parameters), AuditNote, "Parameter", RequestError)


def _events(parameters: Mapping[str, object]) -> dict[str, object]:
    """Returns the events of a note as the value of a field; empty without any."""
    text = parameters.get(_EVENTS)
    if text is None:
        return {}
    try:
        return {_EVENTS: msgspec.json.decode(text if isinstance(text, str) else "")}
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            f"Parameter '{_EVENTS}' is {shown(text)}; use a JSON object with the tested share of each event."
        ) from error


def alarm_parameters(alarm: ContractAlarm | None) -> dict[str, str]:
    """Returns a device's alarm as request `parameters`; none without an alarm."""
    parameters: dict[str, str] = {} if alarm is None else msgspec.to_builtins(alarm)
    return parameters


def read_alarm(parameters: Mapping[str, object]) -> ContractAlarm | None:
    """Returns the alarm of the device's own audits, None without one.

    Args:
        parameters: parameters of a request whose sender may audit; a null value counts as absent.

    Raises:
        RequestError: a value is missing or of the wrong kind.
    """
    values = {name: value for name in _ALARM if (value := parameters.get(name)) is not None}
    return convert_parameters(values, ContractAlarm, "Parameter", RequestError) if values else None


def convert_parameters(values: Mapping[str, object], kind: type[_T], what: str, refusal: type[RequestError]) -> _T:
    """Returns parameters as a value of another type.

    Args:
        values: by name; unknown names are ignored.
        kind: to return.
        what: precedes a name in the message, e.g. "Parameter".
        refusal: the error to raise.

    Raises:
        RequestError: `refusal`, with the name of a parameter that is missing, of the wrong kind or out of range.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        where = f"{what} '{path.strip('.`')}'" if path else f"{what} parameters"
        raise refusal(f"{where}: {problem[:1].lower()}{problem[1:]}.") from error
