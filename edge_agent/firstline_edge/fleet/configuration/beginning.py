"""Reads the configuration from the disk when the agent starts, and returns the settings to start with."""

from __future__ import annotations

from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.fleet.configuration import parse_configuration
from firstline_core.storage.files import set_aside
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.configuration.kept import Held, Kept, read_kept, write_kept
from firstline_edge.fleet.configuration.overlay import overlaid
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)


def configured(own: EdgeSettings, held: Held | None) -> EdgeSettings:
    """Returns the device's settings under a configuration; its own if there is none.

    Raises:
        ConfigError: it is invalid, or not for this device.
    """
    if held is None:
        return own
    where = f"Configuration {held.name} version {held.version}"
    said = parse_configuration(held.text.encode(), where)
    if (said.name, said.version) != (held.name, held.version):
        raise ConfigError(f"{where} calls itself {said.name} version {said.version}.")
    return overlaid(own, said)


def begin(path: Path, own: EdgeSettings, clock: Clock) -> tuple[Kept, EdgeSettings]:
    """Returns the state and the settings to start with; a configuration that cannot run any more is rolled back.

    Args:
        path: of the file.
        own: the device's settings.
        clock: for when.
    """
    try:
        before = read_kept(path)
    except (IntegrityError, OSError) as error:
        log.error("which configuration runs is not known; the device's own settings do", error=str(error))
        _set_aside(path)
        before = Kept()
    now_s = clock.wall_s()
    kept, settings = _that_runs(before.started(now_s), own, now_s)
    if kept != before:
        try:
            write_kept(path, kept)
        except OSError as error:  # the disk has it as soon as it takes it
            log.error("the disk refuses a configuration", error=str(error))
            if kept.in_trial:
                message = f"A start could not be counted: {error.strerror}."
                kept, settings = _that_runs(kept.given_up("disk", message, now_s), own, now_s)
    return kept, settings


def _that_runs(kept: Kept, own: EdgeSettings, now_s: float) -> tuple[Kept, EdgeSettings]:
    """The same, and the settings under it; without what cannot run here any more."""
    while True:
        try:
            return kept, configured(own, kept.running)
        except ConfigError as error:
            log.error("a configuration cannot run here any more", error=error.message)
            kept = kept.given_up("invalid", error.message, now_s)


def _set_aside(path: Path) -> None:
    try:
        if path.exists():
            set_aside(path)
    except OSError as error:
        log.error("cannot put a file aside", path=str(path), error=str(error))
