"""The state that a device stores for its fleet, read before the agent opens its models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_edge.fleet.configuration.installed_configuration import open_configuration, usable_settings
from firstline_edge.fleet.escalation_limiter import EscalationLimiter
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths, read_stored, store

NO_GATEWAY = "fleet.enabled is true, but there is no way to a gateway; join one, or add [[links]]."


class Starts(Struct, frozen=True):
    """The starts of the agent with one state directory.

    Attributes:
        starts: processes so far, including the current one.
        unclean: earlier processes that were killed or crashed.
        running: whether a process has started and not ended.
    """

    starts: int = 0
    unclean: int = 0
    running: bool = False


class FleetState:
    """The fleet's state on the disk of a device; notes that the agent has started.

    Args:
        own: the device's settings.
        paths: of the state directory.
        clock: of the device.

    Attributes:
        folder: the fleet's own files.
        models: the installed models.
        configuration: the configurations of the device.
        settings: the device's settings with the fleet's configuration.
        starts: starts of the agent so far.
        limiter: limits escalations while the fleet is braked.
        changes: set whenever the device's report to the fleet changes.
        reporting: set while the fleet asks for the promises that end.

    Raises:
        ConfigError: there is no link to a gateway.
    """

    def __init__(self, own: EdgeSettings, paths: StatePaths, clock: Clock) -> None:
        if not own.links:
            raise ConfigError(NO_GATEWAY)
        self.own = own
        self.folder = paths.fleet_path
        self.models = ModelStore(paths.updates_path)
        self.models.start(clock.wall_s())
        self.configuration = open_configuration(paths.configuration_path)
        self.configuration.start(clock.wall_s())
        self.settings = usable_settings(self.configuration, own, clock)
        self.starts = note_start(self.folder)
        self.limiter = EscalationLimiter(self.folder / "brake", clock)
        self.changes = asyncio.Event()
        self.reporting = asyncio.Event()

    def close(self) -> None:
        """Notes that the process ends cleanly."""
        self.limiter.save()
        note_end(self.folder, self.starts)


def note_start(folder: Path) -> Starts:
    """Notes that a process starts; returns the new counts."""
    before = read_stored(folder / "starts", Starts, "start count") or Starts()
    now = Starts(before.starts + 1, before.unclean + before.running, running=True)
    store(folder / "starts", now, "start count")
    return now


def note_end(folder: Path, starts: Starts) -> None:
    """Notes that the process ends cleanly."""
    store(folder / "starts", msgspec.structs.replace(starts, running=False), "start count")
