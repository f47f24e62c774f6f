"""Which points are worth having: the Pareto front of latency, accuracy and energy. Pure.

A point is on the front where no other one is at least as good in everything and better in something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from firstline_core.bundle.manifest import Manifest
from firstline_core.hardware.readings import Absent, Reading
from firstline_core.profile.profile import Condition, Key, Point
from firstline_core.storage.artefact import Sha256

ACCURACY = "accuracy"
"""Its name among a model's measured figures, in the manifest."""


def accuracies(manifest: Manifest) -> dict[Sha256, float]:
    """Shares of right answers by `Model.digest`, as far as the bundle's manifest has them."""
    said = {model.digest: model.measured.get(ACCURACY, -1.0) for model in manifest.models}
    return {digest: share for digest, share in said.items() if 0 <= share <= 1}


class Front(NamedTuple):
    """What was compared.

    Attributes:
        candidates: points of one sample whose model's accuracy is known, in their order.
        keys: of those on the front.
        by_energy: whether energy was compared: it is known of every candidate, and in the same way.
    """

    candidates: tuple[Point, ...]
    keys: frozenset[Key]
    by_energy: bool


def front(points: Iterable[Point], accuracy: Mapping[Sha256, float], condition: Condition = "warm") -> Front:
    """The points of one machine that are worth having.

    Args:
        points: of one machine; of other conditions and with more than a sample a query they are passed over.
        accuracy: share of right answers, by `Model.digest`.
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
    """The less, the better."""
    energy = point.energy_mj
    return point.query.p50_ms, -accuracy, energy.value if by_energy and not isinstance(energy, Absent) else 0.0


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))
