"""Reads the fleet's state before the agent opens its models: configuration, installed models, limits, starts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_edge.fleet.configuration.configuration_store import ConfigurationStore, start_configuration
from firstline_edge.fleet.escalation_limiter import EscalationLimiter
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory, read_or, store


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


@dataclass(frozen=True, slots=True)
class FleetStart:
    """The state of a fleet's device when its agent starts.

    Args:
        folder: the fleet's own files.
        own: the device's settings.
        settings: the same with the fleet's configuration.
        starts: starts of the agent so far.
        limiter: limits escalations while the fleet is braked.
        store: the installed models.
        configuration: the configuration that runs.
        changes: set whenever the device's report to the fleet changes.
        reporting: set while the fleet asks for the promises that end.
    """

    folder: Path
    own: EdgeSettings
    settings: EdgeSettings
    starts: Starts
    limiter: EscalationLimiter
    store: ModelStore
    configuration: ConfigurationStore
    changes: asyncio.Event = field(default_factory=asyncio.Event)
    reporting: asyncio.Event = field(default_factory=asyncio.Event)


def start_fleet(settings: EdgeSettings, state: StateDirectory, clock: Clock) -> FleetStart:
    """Reads the fleet's state from the disk, and notes that the agent has started.

    Raises:
        ConfigError: there is no link to a gateway.
    """
    if not settings.links:
        raise ConfigError("fleet.enabled is true, but there is no way to a gateway; join one, or add [[links]].")
    folder, changes = state.fleet_path, asyncio.Event()
    models = ModelStore(state.updates_path)
    models.start(clock.wall_s())
    configuration, configured = start_configuration(state.configuration_path, settings, clock)
    return FleetStart(
        folder=folder,
        own=settings,
        settings=configured,
        starts=note_start(folder),
        limiter=EscalationLimiter(folder / "brake", clock),
        store=models,
        configuration=ConfigurationStore(state.configuration_path, configuration, changed=changes.set),
        changes=changes,
    )


def note_start(folder: Path) -> Starts:
    """Notes that a process starts; returns the new counts."""
    before = read_or(folder / "starts", Starts(), "start count")
    now = Starts(before.starts + 1, before.unclean + before.running, running=True)
    store(folder / "starts", now, "start count")
    return now


def note_end(folder: Path, starts: Starts) -> None:
    """Notes that the process ends cleanly."""
    store(folder / "starts", msgspec.structs.replace(starts, running=False), "start count")
