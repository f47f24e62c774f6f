"""Every part of the routing benchmark still runs, on a small pool that is made up: measured and judged."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.images import encode

from bench.pools import CIFAR10, Pool
from bench.routing import alarm, contract
from bench.routing.population import Population
from bench.routing.shifts import blurred, noisy, relabelled
from firstline_core.tasks.classification import score


@pytest.fixture(scope="module")
def pool() -> Pool:
    """An edge model that is often unsure, and wrong then; a full model that is right nearly always."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 800)

    def probabilities(strength: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        logits = rng.normal(size=(len(labels), 4)) * 1.5
        logits[np.arange(len(labels)), labels] += strength * rng.uniform(0.2, 2, len(labels))
        odds = np.exp(logits)
        return (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32)

    return Pool(CIFAR10.name, probabilities(4), probabilities(9), labels)


def missed(part: Any, records: Sequence[Any]) -> list[str]:
    """Returns the names of the figures that miss their aim."""
    assert records
    figures = part.figures(records)
    assert len({figure.figure for figure in figures}) == len(figures)
    return [figure.figure for figure in figures if figure.holds is False]


def test_contract(pool: Pool) -> None:
    records = contract.measure(pool, "disagreement", 650, 20)
    assert not [name for name in missed(contract, records) if "broken" in name]
    assert all(record.naive_broken > 0 for record in records)


def test_alarm(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm, "FALSE_ALARM_AUDITS", 500)
    monkeypatch.setattr(alarm, "QUIET", (0, 300))
    monkeypatch.setattr(alarm, "EPSILONS", (0.05,))
    worse = Pool(pool.name, pool.edge[::-1], pool.full, pool.labels)
    records = alarm.watch(pool, {"blur": worse}, 100)
    assert {record.shift for record in records} == {"", "labels", "blur"}
    assert all(record.found == 1 for record in records if record.shift == "blur")
    assert not missed(alarm, records)


def test_shifts_change_images_and_labels(pool: Pool) -> None:
    image = np.zeros((16, 16, 3), np.uint8)
    image[:, 8:] = 255
    encoded = encode(image)
    assert blurred(0.1, encoded) != encoded
    assert noisy(20.0, encoded) == noisy(20.0, encoded) != encoded
    scores, losses = score("margin", pool.edge), pool.losses()["disagreement"]
    threshold = Population.of(scores, losses).loosest(0.05)
    shifted = relabelled(pool, scores >= threshold, losses, 0.1)
    assert set(shifted.labels) < set(pool.labels)
