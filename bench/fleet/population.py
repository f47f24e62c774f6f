"""Devices that differ from each other, what they count, how they update, and what a model does to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts, Telemetry
from firstline_core.fleet.twin import Reported

BUNDLE = "cameras"
OLD, NEW = 1, 2
AUDITS_PER_HOUR = 25
SCORE_BINS = 20
"""Bins of scores, as the certificates of this checkout's bundles have."""

_LOG_BOUNDS = [math.log(bound) for bound in LATENCY_BOUNDS_MS]
_SPREAD = 0.4  # of the logarithm of latencies
# A device's scene changes over hours: how far it wanders from what is usual there, and how soon it is back.
_WANDERS, _BACK_H = 0.15, 12.0
_PLACES = np.linspace(-1.0, 1.0, SCORE_BINS)


@dataclass(frozen=True)
class Effect:
    """What the new model does on every device.

    Args:
        failing: share of devices on which it cannot be installed.
        latency: natural logarithm of the factor by which answers take longer.
        crashes: more of them, a day.
        disagreement: more of the audited answers that the full model answers otherwise.
        escalations: factor.
        drift: by how much scores lie elsewhere than the device's own did, see `Device.shares`.
    """

    failing: float = 0.0
    latency: float = 0.0
    crashes: float = 0.0
    disagreement: float = 0.0
    escalations: float = 1.0
    drift: float = 0.0


NOTHING = Effect()


@dataclass
class Device:
    """One device, with habits of its own.

    Args:
        name: of the device.
        rng: draws what it does.
        effect: of the new model.
    """

    name: str
    rng: np.random.Generator
    effect: Effect = NOTHING
    version: int = OLD
    sequence: int = 0
    unclean: int = 0
    uptime_s: float = 0.0
    models: dict[int, ModelCounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self.rng
        self.rows_per_hour = float(rng.lognormal(math.log(120), 0.6))
        self.escalating = float(rng.beta(4, 16))
        self.disagreeing = float(rng.beta(3, 57))
        self.failing = float(rng.beta(1, 200))
        self.slowness_ms = float(rng.lognormal(math.log(12), 0.4))
        self.crashing = float(rng.gamma(0.5, 0.1))
        self.slant, self.hollow = float(rng.normal(0, 0.5)), float(rng.normal(0, 0.3))
        self.scene = float(rng.normal(0, _WANDERS))

    def live(self, hours: float) -> None:
        """Answers requests for a while, by the model that it runs."""
        rng, new = self.rng, self.version == NEW
        effect = self.effect if new else NOTHING
        rows = int(rng.poisson(self.rows_per_hour * hours))
        audited = int(AUDITS_PER_HOUR * hours)
        escalated = int(rng.binomial(rows, min(1.0, self.escalating * effect.escalations)))
        errors = int(rng.binomial(rows - escalated, self.failing))
        slowness = math.log(self.slowness_ms) + effect.latency
        bins = rng.multinomial(rows, _log_normal_shares(slowness))
        back = math.exp(-hours / _BACK_H)
        self.scene = float(rng.normal(self.scene * back, _WANDERS * math.sqrt(1 - back * back)))
        scores = rng.multinomial(rows, self.shares(effect.drift))
        counted = ModelCounts(
            BUNDLE,
            self.version,
            rows=rows,
            kept=rows - escalated - errors,
            escalated=escalated,
            errors=errors,
            latency=tuple(bins.tolist()),
            latency_sum_ms=rows * math.exp(slowness + _SPREAD**2 / 2),
            scores=tuple(scores.tolist()),
            audited=audited,
            disagreed=int(rng.binomial(audited, min(1.0, self.disagreeing + effect.disagreement))),
        )
        held = self.models.get(self.version)
        self.models[self.version] = counted if held is None else _sum(held, counted)
        self.unclean += int(rng.poisson((self.crashing + effect.crashes) * hours / 24))
        self.uptime_s += hours * 3600

    def shares(self, drift: float) -> NDArray[np.float64]:
        """Of its rows by score: of a fleet about as many in each bin, of a device as its scene has it just now.

        Args:
            drift: what the model adds to the slant of their logarithms; 1 is a stability index of about 0.35.
        """
        found = np.exp((self.slant + self.scene + drift) * _PLACES + self.hollow * _PLACES**2)
        shares: NDArray[np.float64] = found / found.sum()
        return shares

    @property
    def telemetry(self) -> Telemetry:
        models = tuple(self.models[version] for version in sorted(self.models))
        return Telemetry("session", self.sequence, self.uptime_s, models, unclean=self.unclean)


class DeviceReport(NamedTuple):
    """What the gateway hears of a device."""

    name: str
    reported: Reported
    telemetry: Telemetry


def population(number: int, seed: int, effect: Effect = NOTHING) -> dict[str, Device]:
    """Returns devices by name."""
    return {name: Device(name, rng, effect) for name, rng in generators(number, seed)}


def generators(number: int, seed: int) -> Iterator[tuple[str, np.random.Generator]]:
    """Yields the names of devices, each with a random generator of its own."""
    for index, one in enumerate(np.random.SeedSequence(seed).spawn(number)):
        yield f"camera-{index:05}", np.random.default_rng(one)


def _sum(one: ModelCounts, more: ModelCounts) -> ModelCounts:
    numbers = ("rows", "kept", "escalated", "errors", "audited", "disagreed", "latency_sum_ms")
    values = {name: getattr(one, name) + getattr(more, name) for name in numbers}
    return replace(
        one,
        **values,
        latency=tuple(map(add, one.latency, more.latency)),
        scores=tuple(map(add, one.scores, more.scores)),
    )


def _log_normal_shares(mean: float) -> NDArray[np.float64]:
    """Of latencies, in the bins of `LATENCY_BOUNDS_MS`; their logarithms have this mean."""
    below = [0.5 * math.erfc((mean - bound) / _SPREAD / math.sqrt(2)) for bound in _LOG_BOUNDS]
    return np.diff(below, prepend=0.0, append=1.0)
