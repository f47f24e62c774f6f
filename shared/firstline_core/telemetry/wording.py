"""Text for people in messages, logs and tables: counts, numbers, durations and times."""

from __future__ import annotations

from datetime import UTC, datetime

_PLAIN = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "a whole number",
    "a valid number": "a number",
}
_FIRST_S, _LAST_S = -2_208_988_800.0, 253_402_300_799.0
"""The beginning of 1900, and the end of 9999, after which `datetime` has no times."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_UNITS = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"))


def escaped(text: str) -> str:
    """Returns a text with its control characters as text, so that what others wrote does not steer a terminal."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def counted(number: int, thing: str, things: str = "") -> str:
    """Returns a number with its noun: "1 device", "10,000 devices"; `things` is an irregular plural."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def rounded(value: float) -> str:
    """Returns the value with three digits, and without an exponent if it is large: "0.533", "81.5", "2,040"."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def wanted_value(text: str) -> str:
    """Returns the value that pydantic's message asks for: "at least 1"."""
    text = text.removeprefix("Input should be ").partition(", unable to parse")[0]
    for library, plain in _PLAIN.items():
        text = text.replace(library, plain)
    return text


def duration_text(seconds: float) -> str:
    """Returns a duration in the largest unit of which there are at least two: "3 days", "90 minutes"."""
    unit_s, unit = next(((unit_s, unit) for unit_s, unit in _UNITS if seconds >= 2 * unit_s), (1.0, "second"))
    return counted(round(seconds / unit_s), unit)


def utc_time(wall_s: float) -> datetime:
    """Returns a wall time in UTC; one outside of 1900 to 9999 becomes the first or the last moment of these years."""
    return datetime.fromtimestamp(min(max(wall_s, _FIRST_S), _LAST_S), UTC)


def time_text(wall_s: float) -> str:
    """Returns a wall time in UTC, to the minute; see `utc_time`."""
    return utc_time(wall_s).strftime("%Y-%m-%d %H:%M UTC")


def iso_time(wall_s: float) -> str:
    """Returns a wall time by ISO 8601 in UTC, to the second."""
    return utc_time(wall_s).isoformat(timespec="seconds")
