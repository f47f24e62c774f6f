"""The routing benchmark still runs, on a small pool that is made up: measured and judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.pools import CIFAR10, Pool
from bench.routing import contract


@pytest.fixture(scope="module")
def pool() -> Pool:
    """An edge model that is often unsure, and wrong then; a full model that is right nearly always."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 800)

    def said(strength: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        logits = rng.normal(size=(len(labels), 4)) * 1.5
        logits[np.arange(len(labels)), labels] += strength * rng.uniform(0.2, 2, len(labels))
        odds = np.exp(logits)
        found: np.ndarray[Any, np.dtype[np.float32]] = (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32)
        return found

    return Pool(CIFAR10.name, said(4), said(9), labels, rng.integers(600, 1300, len(labels)))


def test_contract(pool: Pool) -> None:
    records = contract.measure(pool, "disagreement", 650, 20)
    figures = contract.figures(records)
    assert len({figure.figure for figure in figures}) == len(figures)
    assert not [figure.figure for figure in figures if figure.holds is False and "broken" in figure.figure]
    assert all(record.naive_broken > 0 for record in records)
