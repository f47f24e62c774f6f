"""Reads the fleet's state before the agent opens its models: configuration, installed models, limits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_edge.fleet import starts
from firstline_edge.fleet.configuration.beginning import begin
from firstline_edge.fleet.configuration.ledger import Ledger
from firstline_edge.fleet.escalation_limiter import EscalationLimiter
from firstline_edge.fleet.starts import Starts
from firstline_edge.fleet.updates.history import History
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory


@dataclass(frozen=True, slots=True)
class FleetStart:
    """The state of a fleet's device when its agent starts.

    Args:
        folder: the fleet's own files.
        own: the device's settings.
        settings: the same under the fleet's configuration.
        starts: starts of the agent so far.
        limiter: limits escalations while the fleet is braked.
        history: of this device's model updates.
        configuration: which configuration runs.
        changes: set whenever the device's report to the fleet changes.
    """

    folder: Path
    own: EdgeSettings
    settings: EdgeSettings
    starts: Starts
    limiter: EscalationLimiter
    history: History
    configuration: Ledger
    changes: asyncio.Event = field(default_factory=asyncio.Event)


def start_fleet(settings: EdgeSettings, state: StateDirectory, clock: Clock) -> FleetStart:
    """Reads the fleet's state from the disk, and notes that the agent has started.

    Raises:
        ConfigError: there is no link to a gateway.
    """
    if not settings.links:
        raise ConfigError("fleet.enabled is true, but there is no way to a gateway; join one, or add [[links]].")
    folder, changes = state.fleet_path, asyncio.Event()
    history = History(state.updates_path)
    history.start(clock.wall_s())
    kept, configured = begin(state.configuration_path, settings, clock)
    return FleetStart(
        folder=folder,
        own=settings,
        settings=configured,
        starts=starts.begin(folder / "starts"),
        limiter=EscalationLimiter(folder / "brake", clock),
        history=history,
        configuration=Ledger(state.configuration_path, kept, clock=clock, changed=changes.set),
        changes=changes,
    )
