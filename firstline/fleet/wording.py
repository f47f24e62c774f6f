"""Texts for people: ages, the models that a device runs, and its desired models; and the tags that people type."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.fleet.rest import FleetDevice, Tag
from firstline_core.telemetry.wording import rounded


def duration(seconds: float, shown: Callable[[float], str] = rounded) -> str:
    """Returns a duration in its largest unit."""
    units = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
    unit, length_s = next((each for each in units if seconds >= each[1]), units[-1])
    return f"{shown(seconds / length_s)} {unit}"


def age(age_s: float | None) -> str:
    """Returns an age as text; "never" for None."""
    return "never" if age_s is None else duration(age_s, "{:.0f}".format)


def subject(what: str, name: str) -> str:
    """Returns the name of a bundle, or of something else with its kind."""
    return name if what == "model" else f"{what} {name}"


def runs(device: FleetDevice) -> str:
    """Returns the bundles that a device runs, and its configuration from the fleet, if any."""
    reported = device.reported
    if reported is None:
        return "-"
    names = [f"{model.name} {model.version}" for model in reported.models]
    if reported.configuration_name:
        names.append(f"configuration {reported.configuration_name} {reported.configuration}")
    return ", ".join(names) or "-"


def wanted(device: FleetDevice) -> str:
    """Returns the bundles and the configuration that are desired for a device."""
    names = [f"{'not ' * model.undone}{model.name} {model.version}" for model in device.desired.models]
    if (configuration := device.desired.configuration) is not None:
        names.append(f"{'not ' * configuration.undone}configuration {configuration.name} {configuration.version}")
    return ", ".join(names) or "-"


def tags(device: FleetDevice) -> str:
    """Returns a device's tags as text."""
    return ",".join(f"{key}={value}" for key, value in sorted(device.tags.items())) or "no tags"


def tag_change(text: str) -> tuple[str, str | None]:
    """Reads a typed tag: `site=kiel` sets one, `test-` removes one; returns its key and value, or None to remove it.

    Raises:
        ConfigError: the text is neither.
    """
    key, equals, value = text.partition("=")
    if not equals:
        key = key.removesuffix("-")
    words = (key, value) if equals else (key,)
    try:
        msgspec.convert(words, tuple[Tag, ...])
    except msgspec.ValidationError:
        raise ConfigError(f"{text[:80]!a} is not a tag; write KEY=VALUE to set one, KEY- to take one away.") from None
    if not equals and not text.endswith("-"):
        raise ConfigError(f"{text[:80]!a} has no value; write KEY=VALUE to set a tag, KEY- to take one away.")
    return key, value if equals else None
