"""Measures accuracy and edge share of the digits' bundle on the scans that trained and calibrated nothing.

    python -m bench.evaluate_digits

Prints every figure, and writes them to bench/results/evaluate.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from bench.page import report
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import evaluate
from firstline_core.bundle.manifest import valid_certificate
from firstline_core.bundle.store import open_bundle

_DIGITS = Path(__file__).parents[1] / "models" / "digits"


def figures() -> Iterator[Figure]:
    """Yields the figures of the full model, of each edge variant alone, and with the full model behind it."""
    bundle = open_bundle(_DIGITS / "bundle")
    evaluation = evaluate(bundle, open_dataset(_DIGITS / "heldout"), variants=["all"])
    assert evaluation.full is not None
    accuracy = evaluation.full.quality["accuracy"]
    least = accuracy - 0.005
    yield Figure("digits: images", evaluation.samples, "count")
    yield Figure("digits: full only: accuracy", accuracy, "share")
    for variant, model in zip(evaluation.variants, bundle.manifest.edge, strict=True):
        certificate, tiered = valid_certificate(bundle.manifest, model), variant.tiered
        assert certificate is not None and tiered is not None
        name, right, edge_share = f"digits: {model.id} tiered", tiered.quality["accuracy"], tiered.edge_share
        lost, epsilon = tiered.disagreement or 0.0, certificate.epsilon
        yield Figure(f"digits: {model.id} only: accuracy", variant.edge.quality["accuracy"], "share")
        aim = f">= {least:.4f}, half a point below full only"
        yield Figure(f"{name}: accuracy", right, "share", aim, right >= least)
        yield Figure(f"{name}: answered at the edge", edge_share, "share", ">= 0.7", edge_share >= 0.7)
        what, aim = f"{name}: edge answers that differ from the full model's", f"<= {epsilon:g}, as certified"
        yield Figure(what, lost, "share", aim, lost <= epsilon)


if __name__ == "__main__":
    sys.exit(report("evaluate", list(figures())))
