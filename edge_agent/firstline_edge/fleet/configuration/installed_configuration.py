"""The configurations of this device, and the settings that result from them.

The device's own file has the last word: the fleet cannot change what it names in `fleet.locked`, a budget that it sets
may be made smaller and not larger, and `policy.min_threshold` may be raised and not lowered. A configuration that asks
for more is refused as a whole, so that a device runs exactly the configuration that it reports.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.fleet.configuration import Configuration, parse_configuration
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.installed import Installed, InstalledFile
from firstline_edge.settings.check import check
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)


class SignedConfiguration(Struct, frozen=True):
    """A configuration: its name, its version, and its text as it was signed."""

    name: str
    version: int
    text: str

    @property
    def sha256(self) -> str:
        """The digest of the stored text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


ConfigurationFile: TypeAlias = InstalledFile[SignedConfiguration, DesiredConfiguration]


def open_configuration(path: Path, *, repair: bool = True) -> ConfigurationFile:
    """Returns the state of the configuration, see `InstalledFile`."""
    return InstalledFile(path, Installed[SignedConfiguration, DesiredConfiguration], repair=repair)


def described(file: ConfigurationFile) -> dict[str, Any] | None:
    """Returns name, version and digest of the configuration that runs; None for the device's own settings."""
    running = file.state.running
    return None if running is None else {"name": running.name, "version": running.version, "sha256": running.sha256}


def settings_with(own: EdgeSettings, configuration: SignedConfiguration | None) -> EdgeSettings:
    """Returns the device's settings with a configuration; its own settings if there is none.

    Raises:
        ConfigError: the configuration is invalid, or not for this device.
    """
    if configuration is None:
        return own
    where = f"Configuration {configuration.name} version {configuration.version}"
    document = parse_configuration(configuration.text.encode(), where)
    if (document.name, document.version) != (configuration.name, configuration.version):
        raise ConfigError(f"{where} calls itself {document.name} version {document.version}.")
    return changed_settings(own, document)


def usable_settings(file: ConfigurationFile, own: EdgeSettings, clock: Clock) -> EdgeSettings:
    """Returns the settings to run with; a configuration that cannot run any more is rolled back.

    Args:
        file: the configurations.
        own: the device's settings.
        clock: for the time of a rollback.
    """
    while True:
        try:
            return settings_with(own, file.state.running)
        except ConfigError as error:
            log.error("configuration not applicable any more", error=error.message)
            file.roll_back("invalid", error.message, clock.wall_s())


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
            f"It sets {name} to {value:.10g}{'' if value else ', which is no limit'}; this device's own file allows "
            f"{before:.10g}, and the fleet may only set less."
        )
    if name == "policy.min_threshold" and value < before:
        raise ConfigError(
            f"It sets {name} to {value:g}; this device's own file demands {before:g}, and the fleet may only set more."
        )
