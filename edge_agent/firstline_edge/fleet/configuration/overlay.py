"""A configuration of the fleet over the device's own settings. Pure.

The device's own file stays the last word: what it names in `fleet.locked` the fleet does not change, a budget that it
sets may be made smaller and not larger, and `policy.min_threshold` may be raised and not lowered. A configuration that
asks for more is refused as a whole, so that what a device says it runs is what it runs.
"""

from __future__ import annotations

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.fleet.configuration import Configuration
from firstline_edge.settings.check import check
from firstline_edge.settings.settings import EdgeSettings


def overlaid(own: EdgeSettings, said: Configuration) -> EdgeSettings:
    """The settings with what a configuration sets.

    Raises:
        ConfigError: this device does not allow it, or it makes no sense here.
    """
    changed = {}
    for section, values in said.changes.items():
        before = getattr(own, section)
        for key, value in values.items():
            _check_bound(own, f"{section}.{key}", getattr(before, key), value)
        try:
            changed[section] = msgspec.convert({**msgspec.to_builtins(before), **values}, type(before))
        except msgspec.ValidationError as error:
            raise ConfigError(f"What is set in [{section}] cannot be set on this device: {error}.") from error
    found = msgspec.structs.replace(own, **changed)
    check(found)
    return found


def _check_bound(own: EdgeSettings, name: str, before: object, value: object) -> None:
    section = name.partition(".")[0]
    if section in own.fleet.locked or name in own.fleet.locked:
        raise ConfigError(f"It sets {name}, which this device keeps to itself (fleet.locked).")
    if not isinstance(before, int | float) or not isinstance(value, int | float):
        return
    if section == "budget" and before and (not value or value > before):
        raise ConfigError(
            f"It sets {name} to {value:g}{'' if value else ', which is no limit'}; this device's own file allows "
            f"{before:g}, and the fleet may only set less."
        )
    if name == "policy.min_threshold" and value < before:
        raise ConfigError(
            f"It sets {name} to {value:g}; this device's own file demands {before:g}, and the fleet may only set more."
        )
