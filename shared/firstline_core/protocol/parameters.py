"""Request parameters: route, privacy, wait, timeout and priority, in JSON or in a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from firstline_core.errors import RequestError
from firstline_core.protocol.tensors import shown
from firstline_core.types import LOWEST_PRIORITY, Privacy, Route, Wait

_Choice = TypeVar("_Choice", bound=StrEnum)

_US_PER_S = 1_000_000
# 285 years. Added to a tier's own clock, the largest 64-bit number would not fit 64 bits.
_TIMEOUT_MAX_US = 2**53


@dataclass(frozen=True, slots=True)
class Preferences:
    """The caller's preferences."""

    route: Route
    privacy: Privacy
    wait: Wait
    deadline_s: float | None
    priority: int


_KNOWN = dict.fromkeys(("route", "privacy", "wait", "timeout", "priority")).keys()
_DEFAULT = Preferences(Route.AUTO, Privacy.ANY, Wait.FINAL, None, 0)


def preferences(parameters: Mapping[str, object], now_s: float) -> Preferences:
    """Reads the known parameters and ignores others: clients also send parameters of other servers.

    Args:
        parameters: V2's request `parameters`; a null value counts as absent.
        now_s: on this tier's monotonic clock; `timeout` counts from here.

    Raises:
        RequestError: a known parameter has an invalid value; the message lists the valid ones.
    """
    if _KNOWN.isdisjoint(parameters):
        return _DEFAULT
    return Preferences(
        route=_choice(parameters, "route", Route.AUTO),
        privacy=_choice(parameters, "privacy", Privacy.ANY),
        wait=_choice(parameters, "wait", Wait.FINAL),
        deadline_s=_deadline_s(parameters, now_s),
        priority=_priority(parameters),
    )


def from_query(query: Mapping[str, str]) -> dict[str, object]:
    """Returns query parameters in the form of `preferences`.

    Unlike in V2, an unknown name is refused, because a misspelt `privacy` must not let an image leave the device.

    Raises:
        RequestError: an unknown name.
    """
    for name in query:
        if name not in _KNOWN:
            raise RequestError(f"Query parameter {shown(name)} is unknown; use {', '.join(_KNOWN)}.")
    parameters: dict[str, object] = dict(query)
    for name in ("timeout", "priority"):
        number = query.get(name, "")
        # 20 digits hold every unsigned 64-bit number, and limit the work of int().
        if number.isascii() and number.isdigit() and len(number) <= 20:
            parameters[name] = int(number)
    return parameters


def timeout_us(deadline_s: float, now_s: float) -> int:
    """Returns the time until a deadline as `timeout` (microseconds): 1 (because 0 means none) to 285 years."""
    return max(1, int(min(deadline_s - now_s, _TIMEOUT_MAX_US / _US_PER_S) * _US_PER_S))


def deadline_s(timeout_us: int, now_s: float) -> float:
    """Returns the deadline of a `timeout` above 0 that starts now."""
    return now_s + min(timeout_us, _TIMEOUT_MAX_US) / _US_PER_S


def flag(parameters: Mapping[str, object], key: str) -> bool | None:
    """Returns a boolean parameter, None if absent.

    Raises:
        RequestError: any other value.
    """
    value = parameters.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise RequestError(f"Parameter '{key}' is {shown(value)}; use true or false.")


def count(parameters: Mapping[str, object], key: str) -> int:
    """Returns a positive integer parameter, 0 if absent.

    Raises:
        RequestError: any other value.
    """
    value = parameters.get(key)
    if value is None:
        return 0
    if type(value) is not int or value < 1:
        raise RequestError(f"Parameter '{key}' is {shown(value)}; use a whole number from 1 on.")
    return value


def text(parameters: Mapping[str, object], key: str) -> str:
    """Returns a string parameter, "" if absent.

    Raises:
        RequestError: any other value.
    """
    value = parameters.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"Parameter '{key}' is {shown(value)}; use a string.")
    return value


def _choice(parameters: Mapping[str, object], key: str, default: _Choice) -> _Choice:
    value = parameters.get(key)
    if value is None:
        return default
    kind = type(default)
    try:
        return kind(value)  # type: ignore[arg-type]  # any other type is a ValueError too
    except ValueError:
        raise RequestError(f"Parameter '{key}' is {shown(value)}; use one of {', '.join(kind)}.") from None


def _deadline_s(parameters: Mapping[str, object], now_s: float) -> float | None:
    value = parameters.get("timeout")
    if value is None or (value == 0 and type(value) is int):
        return None
    if type(value) is not int or value < 0:
        raise RequestError(f"Parameter 'timeout' is {shown(value)}; use a whole number of microseconds, or 0 for none.")
    return deadline_s(value, now_s)


def _priority(parameters: Mapping[str, object]) -> int:
    """Returns Triton's priority: 1 is the highest level, 0 the default. Levels below the lowest one are raised to it.

    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_schedule_policy.md
    """
    value = parameters.get("priority")
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise RequestError(
            f"Parameter 'priority' is {shown(value)}; use 1 (the highest) to {LOWEST_PRIORITY}, or 0 for the default."
        )
    return min(value, LOWEST_PRIORITY)
