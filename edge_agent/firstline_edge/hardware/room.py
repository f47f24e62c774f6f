"""The device's part of an agent, put together from the settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.hardware.in_time import in_time
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.hardware.tree import Tree
from firstline_core.routing.conditions import Conditions
from firstline_core.telemetry.logs import logger
from firstline_edge.adaptation.limits import limits_of
from firstline_edge.budgets.sensors import conditions_of
from firstline_edge.budgets.wiring import tariff_of
from firstline_edge.hardware.memory_watch import MemoryWatch
from firstline_edge.hardware.sampler import Sampler
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.settings.settings import EdgeSettings, link_names
from firstline_edge.state import StateDirectory

log = logger(__name__)


class HardwareRoom:
    """What the agent knows of its device. Both of its parts run by themselves, so that neither ends the other.

    Args:
        settings: of the agent.
        state: where the catalogue is kept.
        queue: how many runs wait.
        clock: the agent's.

    Attributes:
        root: where the kernel's files begin.
        sampler: how the device is.
        surveyor: what it is.
    """

    def __init__(self, settings: EdgeSettings, state: StateDirectory, queue: Callable[[], float], clock: Clock) -> None:
        self._heat_limit_c = settings.costs.heat_limit_c
        self.root = Path(settings.hardware.root)
        self._tree = Tree(self.root)
        if self.problem:
            log.warning("the guards see nothing", problem=self.problem)
        lows_bytes = limits_of(settings).memory_lows_bytes if settings.adaptation.enabled else ()
        self.sampler = Sampler(
            sensors_of(settings, queue), settings.hardware.period_s, clock, watch=MemoryWatch(lows_bytes)
        )
        self.surveyor = Surveyor(
            self._tree,
            state.path,
            state.hardware_path,
            clock=clock,
            measures=settings.hardware.survey,
        )

    @property
    def problem(self) -> str:
        """That there is nothing to read where the settings say, in a sentence; else ""."""
        return unseen(self._tree)

    def conditions(self) -> Conditions:
        """Battery and heat, as prices look at them; at once."""
        return conditions_of(self.sampler.latest, self._heat_limit_c)


def unseen(tree: Tree) -> str:
    """Which guards see nothing, because the kernel's files are not where the settings say; "" where they are.

    A root may be mistyped, or not be mounted: then everything is absent, and what is absent keeps nothing back.
    """
    guards = {"sys": "heat, throttling and battery", "proc": "memory and load"}
    blind = {folder: seen for folder, seen in guards.items() if not tree.has(folder)}
    if not blind:
        return ""
    return (
        f"hardware.root {tree.root} has no {' and no '.join(blind)}: the guards of {', and of '.join(blind.values())} "
        "see nothing. Name the folder in which the kernel's proc and sys are; in a container, where the host's are "
        "mounted."
    )


def sensors_of(settings: EdgeSettings, queue: Callable[[], float] | None = None) -> Sensors:
    """The device's sensors, with the costs that the settings state.

    Args:
        settings: of the agent; the first link's costs hold for all traffic.
        queue: how many runs wait; None where no agent runs.
    """
    names = link_names(settings.links)
    tariff = tariff_of(settings, names)
    return Sensors(
        Tree(Path(settings.hardware.root)),
        tariff=tariff,
        link=tariff.of_link(names[0]) if names else None,
        power_rails=settings.hardware.power_rails,
        queue=queue,
    )


def read_twice(sensors: Sensors, between_s: float) -> Snapshot:
    """How the device is, for a command: of what only counts the second reading tells.

    Raises:
        DeadlineExceededError: a driver hangs.
    """
    in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
    time.sleep(between_s)
    return in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
