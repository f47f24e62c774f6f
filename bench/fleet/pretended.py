"""Simulated devices without an agent, for tests and simulations of the gateway alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.fleet.population import BUNDLE, NOTHING, OLD, Device, DeviceReport, Effect, generators
from firstline_core.fleet.twin import Desired, DesiredModel, Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState


@dataclass
class PretendedDevice(Device):
    """A device that takes a step of its update each time it hears from the gateway; nothing happens while not `on`."""

    previous: int = OLD
    on: bool = True
    update: Update | None = None
    known: Desired = field(default_factory=lambda: Desired(0))

    def hear(self, desired: Desired, now_s: float) -> None:
        """What it is to run; a step of an update for each call."""
        if not self.on:
            return
        self.known = desired
        target = next((model for model in desired.models if model.name == BUNDLE), None)
        if target is None:
            return
        if target.undone:
            if self.version == target.version:
                self.version = self.previous
            self._say(target, UpdateState.ROLLED_BACK, now_s)
        elif self.update is None or (self.update.rollout, self.update.tries) != (target.rollout, target.attempt):
            self._say(target, UpdateState.DOWNLOADING, now_s)
        elif self.update.state is UpdateState.DOWNLOADING:
            if self.rng.random() < self.effect.failing:
                self._say(target, UpdateState.FAILED, now_s)
            else:
                self.previous, self.version = self.version, target.version
                self._say(target, UpdateState.COMMITTED, now_s)

    def _say(self, target: DesiredModel, state: UpdateState, now_s: float) -> None:
        reason = "integrity" if state is UpdateState.FAILED else ""
        self.update = Update(
            BUNDLE, target.version, state, rollout=target.rollout, reason=reason, since_s=now_s, tries=target.attempt
        )

    def live(self, hours: float) -> None:
        """See `Device`."""
        if self.on:
            super().live(hours)

    @property
    def reported(self) -> Reported:
        self.sequence += 1
        updates = (self.update,) if self.update is not None else ()
        models = (RunningModel(BUNDLE, self.version, "edge", full_digest="f" * 64),)
        return Reported("session", self.sequence, self.known.revision, models, updates)


class Pretended:
    """Devices that only report. A `driven.Fleet`."""

    manifest_sha256 = "0" * 64

    def __init__(self, devices: Mapping[str, PretendedDevice]) -> None:
        self._devices = devices

    def pass_time(self, hours: float, desired: Mapping[str, Desired], now_s: float) -> list[DeviceReport]:
        """See `driven.Fleet`."""
        there = [device for device in self._devices.values() if device.on]
        for device in there:
            device.live(hours)
            device.hear(desired.get(device.name, Desired(0)), now_s)
        return [DeviceReport(device.name, device.reported, device.telemetry) for device in there]

    def versions(self) -> Counter[int]:
        """See `driven.Fleet`."""
        return Counter(device.version for device in self._devices.values())


def pretended_population(number: int, seed: int, effect: Effect = NOTHING) -> dict[str, PretendedDevice]:
    """Returns devices by name, with the habits of `population`."""
    return {name: PretendedDevice(name, rng, effect) for name, rng in generators(number, seed)}
