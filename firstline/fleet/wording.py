"""Texts for people: ages, the models that a device runs, and its desired models."""

from __future__ import annotations

from firstline_core.fleet.rest import FleetDevice


def age(age_s: float | None) -> str:
    """Returns an age as text; "never" for None."""
    if age_s is None:
        return "never"
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= length_s:
            return f"{age_s / length_s:.0f} {unit}"
    return f"{age_s:.0f} s"


def last_seen(device: FleetDevice) -> str:
    """Returns when a device was last seen, and whether it is revoked."""
    return f"{age(device.last_seen_age_s)}{', revoked' * device.revoked}"


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
