"""How the fleet's documents read to people: ages, what a device runs, and what it is to run."""

from __future__ import annotations

from firstline_core.fleet.rest import FleetDevice


def age(age_s: float | None) -> str:
    """How long ago; "never" for None."""
    if age_s is None:
        return "never"
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= length_s:
            return f"{age_s / length_s:.0f} {unit}"
    return f"{age_s:.0f} s"


def runs(device: FleetDevice) -> str:
    """The bundles that answer on a device."""
    models = device.reported.models if device.reported is not None else ()
    return ", ".join(f"{model.name} {model.version}" for model in models) or "-"


def wanted(device: FleetDevice) -> str:
    """The bundles that a device is to run."""
    said = (f"{'not ' * model.undone}{model.name} {model.version}" for model in device.desired.models)
    return ", ".join(said) or "-"


def tags(device: FleetDevice) -> str:
    """A device's tags."""
    return ",".join(f"{key}={value}" for key, value in sorted(device.tags.items())) or "no tags"
