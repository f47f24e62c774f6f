"""Segmentation on `pascal-segmentation-cascade`: mean intersection over union, and how the scores order the images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.figures import Figure, near, plain
from bench.tasks.contracts import collect

MIOU = {"half": 0.508, "whole": 0.590}
"""Mean over the images of their mean intersection over union, which the data's README states, by model."""

AGREEMENT = 0.608
"""The same of the edge model relative to the full model."""

_WITHIN = 0.005


def figures(data: Path) -> Iterator[Figure]:
    """Yields the quality of both models, their agreement, and the agreement of the half that a score prefers."""
    pool = collect(data)
    assert pool.truth is not None
    answers = {"half": (pool.edge, pool.evidence), "whole": (pool.full, pool.full_evidence)}
    for name, (outputs, evidence) in answers.items():
        found = pool.task.summary(outputs, evidence, pool.truth)
        yield near(f"{name}: mean intersection over union", found["miou"], MIOU[name], _WITHIN)
        yield plain(f"{name}: mean intersection over union, pooled over all pixels", found["miou_pooled"], "share", 4)
    agreement = 1 - pool.task.loss(pool.edge, pool.full)
    yield near("half: mean intersection over union with the full model", float(agreement.mean()), AGREEMENT, _WITHIN)
    for kind in pool.task.score_kinds:
        order = np.argsort(-pool.task.score(kind, pool.edge, pool.evidence), kind="stable")
        best = float(agreement[order[: len(order) // 2]].mean())
        yield plain(f"half: the same for the half of the images with the highest {kind}", best, "share", 4)
