"""A configuration of the fleet over the device's own settings: whether it is allowed, and its application.

The device's own file has the last word: the fleet cannot change what it names in `fleet.locked`, a budget that it sets
may be made smaller and not larger, and `policy.min_threshold` may be raised and not lowered. A configuration that asks
for more is refused as a whole, so that a device runs exactly the configuration that it reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.fleet.configuration import Configuration
from firstline_edge.cascade.cascade import LiveSettings
from firstline_edge.fleet.updates.trial import has_failed
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.settings.check import check
from firstline_edge.settings.settings import EdgeSettings


def changed_settings(own: EdgeSettings, configuration: Configuration) -> EdgeSettings:
    """Returns the device's settings with the values of a configuration.

    Raises:
        ConfigError: this device does not allow it, or it is invalid here.
    """
    changed = {}
    for section, values in configuration.changes.items():
        before = getattr(own, section)
        for key, value in values.items():
            _check_bound(own, f"{section}.{key}", getattr(before, key), value)
        try:
            changed[section] = msgspec.convert({**msgspec.to_builtins(before), **values}, type(before))
        except msgspec.ValidationError as error:
            raise ConfigError(f"What is set in [{section}] cannot be set on this device: {error}.") from error
    settings = msgspec.structs.replace(own, **changed)
    check(settings)
    return settings


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


@dataclass(eq=False, kw_only=True)
class SettingsAdoption:
    """Applies other settings to a running agent, and counts its failures since then.

    Args:
        models: of the agent.
        live: exchanges the settings.
        answered: returns the rows of a model so far, and those without an answer.
    """

    models: Models
    live: LiveSettings
    answered: Callable[[DeviceModel], tuple[int, int]]
    _before: tuple[int, int] = field(default=(0, 0), init=False)

    def adopt(self, settings: EdgeSettings) -> None:
        """Exchanges the settings, and begins to count failures."""
        self._before = self._counts()
        self.live.exchange(settings)

    def failed(self) -> bool:
        """Returns whether more than half of the rows since the latest exchange got no answer."""
        return has_failed(self._before, self._counts())

    def _counts(self) -> tuple[int, int]:
        counts = [self.answered(device_model) for device_model in self.models.all]
        return sum(rows for rows, _ in counts), sum(errors for _, errors in counts)
