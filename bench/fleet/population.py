"""Devices that differ from each other, what they count, how they update, and what a model does to them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts, Telemetry
from firstline_core.fleet.twin import Reported
from firstline_core.units import HOUR_S
from firstline_gateway.fleet.totals import Totals, added

BUNDLE = "cameras"
OLD, NEW = 1, 2
AUDITS_PER_HOUR = 25
MEMORY = Path("/dev/shm")
"""Where simulations put their databases and disks, if there is such a folder."""
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
        blind: classes of which it reports no object.
        wrong: share of the objects that it reports as one of another class, drawn at random.
        invented: objects that it reports where there are none, for each that there is.
        boards: share of the devices on which it is blind or wrong, or invents objects.
        at_night: whether it is blind only from 20 to 6 o'clock.
    """

    failing: float = 0.0
    latency: float = 0.0
    crashes: float = 0.0
    disagreement: float = 0.0
    escalations: float = 1.0
    drift: float = 0.0
    blind: tuple[str, ...] = ()
    wrong: float = 0.0
    invented: float = 0.0
    boards: float = 1.0
    at_night: bool = False


@dataclass(frozen=True)
class Scenery:
    """What there is to see.

    Args:
        objects: of each class in a frame, on average.
        start_h: time of day when the devices start.
        audits_per_hour: of each device; 0 without a full model.
    """

    objects: Mapping[str, float] = field(default_factory=lambda: {"car": 0.5, "person": 0.2, "dog": 0.02})
    start_h: float = 12.0
    audits_per_hour: int = AUDITS_PER_HOUR


STREET = Scenery()
_NIGHT_H = (20.0, 6.0)
_SWING = 0.5  # of the number of objects over a day, around its mean
_HOURLY = 0.4  # standard deviation of the logarithm of a device's objects from hour to hour
NOTHING = Effect()


@dataclass
class Device:
    """One device, with habits of its own.

    Args:
        name: of the device.
        rng: draws what it does.
        effect: of the new model.
        scenery: what it sees.
    """

    name: str
    rng: np.random.Generator
    effect: Effect = NOTHING
    scenery: Scenery = STREET
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
        classes = len(self.scenery.objects)
        self.seen = np.array([*self.scenery.objects.values()]) * rng.lognormal(0, 0.5, classes)
        self.missing, self.inventing = rng.beta(3, 57, classes), rng.beta(3, 97, classes)
        self.board = float(rng.random())

    def live(self, hours: float) -> None:
        """Answers requests for a while, by the model that it runs."""
        rng, new = self.rng, self.version == NEW
        effect = self.effect if new else NOTHING
        rows = int(rng.poisson(self.rows_per_hour * hours))
        audited = int(self.scenery.audits_per_hour * hours)
        escalated = int(rng.binomial(rows, min(1.0, self.escalating * effect.escalations)))
        errors = int(rng.binomial(rows - escalated, self.failing))
        slowness = math.log(self.slowness_ms) + effect.latency
        bins = rng.multinomial(rows, _log_normal_shares(slowness))
        back = math.exp(-hours / _BACK_H)
        self.scene = float(rng.normal(self.scene * back, _WANDERS * math.sqrt(1 - back * back)))
        scores = rng.multinomial(rows, self.shares(effect.drift))
        looked = self.look(hours, audited, effect)
        differs = min(1.0, self.disagreeing + effect.disagreement + looked.lost)
        disagreed = int(rng.binomial(audited - looked.empty, differs))
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
            audited_empty=looked.empty,
            disagreed=disagreed,
            losses=float(disagreed),
            objects=looked.objects,
            event_audits=looked.event_audits,
            event_losses=looked.event_losses,
        )
        totals = (self.models[self.version],) if self.version in self.models else ()
        (self.models[self.version],) = added(Totals(totals), None, Telemetry("", 0, 0.0, (counted,))).models
        self.unclean += int(rng.poisson((self.crashing + effect.crashes) * hours / 24))
        self.uptime_s += hours * HOUR_S

    def look(self, hours: float, audited: int, effect: Effect) -> Look:
        """Returns what the model reports in a period, and what the audits of it find."""
        rng, names = self.rng, [*self.scenery.objects]
        affected = self.board < effect.boards
        starts_h = self.scenery.start_h + self.uptime_s / HOUR_S + np.arange(max(1, round(hours)))
        of_day = starts_h % 24
        rhythm = 1 + _SWING * np.cos((of_day - 14) * math.pi / 12)
        busy = rhythm[:, None] * rng.lognormal(-(_HOURLY**2) / 2, _HOURLY, (len(starts_h), len(names)))
        there = rng.poisson(self.rows_per_hour * hours / len(starts_h) * self.seen * busy)
        dark = (of_day >= _NIGHT_H[0]) | (of_day < _NIGHT_H[1])
        blind = np.array([name in effect.blind for name in names]) & affected
        open_ = 1 - blind * (dark[:, None] if effect.at_night else np.ones((len(starts_h), 1)))
        found = rng.binomial(there, (1 - self.missing) * open_)
        confused = rng.binomial(found, effect.wrong * affected)
        false = rng.poisson(there * (self.inventing + effect.invented * affected) * open_) + rng.multinomial(
            confused.sum(axis=1), np.full(len(names), 1 / len(names))
        )
        right, invented, total = (each.sum(axis=0) for each in (found - confused, false, there))
        reported = right + invented
        # Shares of frames: an audit draws a frame, whenever it was.
        frames = 1 - np.exp(-self.seen * busy.mean(axis=0))
        missable = rng.binomial(audited, frames)
        inventable = rng.binomial(audited, np.minimum(1.0, frames * reported / np.maximum(total, 1)))
        missed = rng.binomial(missable, 1 - right / np.maximum(total, 1))
        made_up = rng.binomial(inventable, invented / np.maximum(reported, 1))
        empty = int(rng.binomial(audited, np.prod(1 - frames)))
        events = {f"missed {name}": index for index, name in enumerate(names)}
        return Look(
            objects=dict(zip(names, reported.tolist(), strict=True)),
            event_audits={event: int(missable[index]) for event, index in events.items()}
            | {f"invented {name}": int(inventable[index]) for index, name in enumerate(names)},
            event_losses={event: int(missed[index]) for event, index in events.items()}
            | {f"invented {name}": int(made_up[index]) for index, name in enumerate(names)},
            empty=empty,
            lost=float(1 - (open_ * there).sum() / max(there.sum(), 1)) + effect.wrong * affected,
        )

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


class Look(NamedTuple):
    """What a model reports in a period, and what its audits find; see `ModelCounts`.

    Attributes:
        lost: share of the objects that the new model loses.
        empty: audits of frames without an object.
    """

    objects: dict[str, int]
    event_audits: dict[str, int]
    event_losses: dict[str, int]
    empty: int
    lost: float


class DeviceReport(NamedTuple):
    """What the gateway hears of a device."""

    name: str
    reported: Reported
    telemetry: Telemetry


def population(number: int, seed: int, effect: Effect = NOTHING, scenery: Scenery = STREET) -> dict[str, Device]:
    """Returns devices by name."""
    return {name: Device(name, rng, effect, scenery) for name, rng in generators(number, seed)}


def generators(number: int, seed: int) -> Iterator[tuple[str, np.random.Generator]]:
    """Yields the names of devices, each with a random generator of its own."""
    for index, one in enumerate(np.random.SeedSequence(seed).spawn(number)):
        yield f"camera-{index:05}", np.random.default_rng(one)


def _log_normal_shares(mean: float) -> NDArray[np.float64]:
    """Of latencies, in the bins of `LATENCY_BOUNDS_MS`; their logarithms have this mean."""
    below = [0.5 * math.erfc((mean - bound) / _SPREAD / math.sqrt(2)) for bound in _LOG_BOUNDS]
    return np.diff(below, prepend=0.0, append=1.0)
