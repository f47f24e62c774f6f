"""The Pareto front of latency, accuracy and energy: points that no other point dominates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from firstline_core.bundle.manifest import Manifest
from firstline_core.hardware.readings import Absent, Reading
from firstline_core.profile.profile import Condition, Key, Point
from firstline_core.storage.artefact import Sha256

ACCURACY = "accuracy"
"""Its name among the measured figures of a model, in the manifest."""


def accuracies(manifest: Manifest) -> dict[Sha256, float]:
    """Returns the accuracies in the bundle's manifest, by `Model.digest`."""
    shares = {model.digest: model.measured.get(ACCURACY, -1.0) for model in manifest.models}
    return {digest: share for digest, share in shares.items() if 0 <= share <= 1}


class Front(NamedTuple):
    """A Pareto front.

    Attributes:
        candidates: points of one sample whose model's accuracy is known, in their order.
        keys: of the points on the front.
        by_energy: whether energy was compared: all candidates have it, in the same way.
    """

    candidates: tuple[Point, ...]
    keys: frozenset[Key]
    by_energy: bool


def front(points: Iterable[Point], accuracy: Mapping[Sha256, float], condition: Condition = "warm") -> Front:
    """Returns the Pareto front of one machine.

    Args:
        points: of one machine; those of other conditions or with several samples a query are ignored.
        accuracy: by `Model.digest`.
        condition: of the machine.
    """
    found = tuple(
        point
        for point in points
        if point.key.batch == 1 and point.key.condition == condition and point.key.model_digest in accuracy
    )
    by_energy = _comparable([point.energy_mj for point in found])
    costs = [_costs(point, accuracy[point.key.model_digest], by_energy) for point in found]
    keys = frozenset(
        point.key for point, own in zip(found, costs, strict=True) if not any(_dominates(other, own) for other in costs)
    )
    return Front(found, keys, by_energy)


def _comparable(energy: Sequence[Reading]) -> bool:
    kinds = {type(reading) for reading in energy}
    return len(kinds) == 1 and Absent not in kinds


def _costs(point: Point, accuracy: float, by_energy: bool) -> tuple[float, ...]:
    """Costs, of which less is better."""
    energy = point.energy_mj
    return point.query.p50_ms, -accuracy, energy.value if by_energy and not isinstance(energy, Absent) else 0.0


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))
