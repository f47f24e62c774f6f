"""What tiering gives on real data: the digits, and the two pairs of third-party models beside the checkout.

    python bench/evaluate_pairs.py [--data DIR] [--limit N]

Prints a table, and writes bench/results/evaluate.json with every figure. Pairs whose models are not there are left
out. The thresholds of the pairs are chosen on one half of their images and measured on the other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firstline.workbench.bundle import create_bundle
from firstline.workbench.calibrate import calibrate
from firstline.workbench.dataset import Dataset, open_dataset
from firstline.workbench.evaluate import Evaluation, evaluate
from firstline.workbench.recipe import read_recipe
from firstline_core.bundle.store import open_bundle

_CHECKOUT = Path(__file__).parents[1]
_MODELS = _CHECKOUT / "models"
_RESULT = _CHECKOUT / "bench" / "results" / "evaluate.json"
_PAIRS = ("imagenet-cascade", "cifar10-cascade")
_TARGET_DISAGREEMENT = 0.05
_SEED = 20261121

Figure = dict[str, Any]


def figures_of(found: Evaluation, *, aims: bool) -> Iterator[Figure]:
    """One figure a line, in the form that every target writes."""
    assert found.full is not None, "every bundle here has a full model"

    def figure(
        name: str, value: float | None, unit: str, aim: float | None = None, holds: bool | None = None
    ) -> Figure:
        return {"figure": f"{found.bundle}: {name}", "value": value, "unit": unit, "aim": aim, "holds": holds}

    yield figure("images", found.samples, "count")
    yield figure("accuracy, full model only", found.full.accuracy, "share")
    yield figure("latency p50, full model only, no network", found.full.latency_ms.p50, "ms")
    yield figure("latency p99, full model only, no network", found.full.latency_ms.p99, "ms")
    for variant in found.variants:
        edge, tiered = variant.edge, variant.tiered
        assert tiered is not None, "as the full model is there"
        at = f"{edge.id}: "
        least = round(found.full.accuracy - 0.005, 6) if aims else None
        share = 0.70 if aims else None
        yield figure(f"{at}accuracy, edge only", edge.accuracy, "share")
        yield figure(
            f"{at}accuracy, tiered",
            tiered.accuracy,
            "share",
            least,
            None if least is None else tiered.accuracy >= least,
        )
        yield figure(
            f"{at}answered at the edge", tiered.edge_share, "share", share,
            None if share is None else tiered.edge_share >= share,
        )  # fmt: skip
        yield figure(f"{at}kept answers that differ from the full model's", tiered.disagreement, "share")
        yield figure(f"{at}image bytes sent", tiered.bytes_sent, "bytes")
        yield figure(f"{at}image bytes, if all were sent", tiered.bytes_all, "bytes")
        yield figure(f"{at}latency p50, edge only", edge.latency_ms.p50, "ms")
        yield figure(f"{at}latency p99, edge only", edge.latency_ms.p99, "ms")
        yield figure(f"{at}latency p50, tiered, no network", tiered.latency_ms.p50, "ms")
        yield figure(f"{at}latency p99, tiered, no network", tiered.latency_ms.p99, "ms")


def evaluate_pair(pair: str, data: Path, folder: Path, limit: int | None) -> Evaluation:
    """Makes the pair's bundle, chooses its policy on one half of the images, and evaluates it on the other."""
    models = data / pair
    chosen_on, measured_on = _halves(open_dataset(models / "dev", limit))
    bundle = create_bundle(
        read_recipe(_MODELS / pair / "recipe.toml", models),
        folder / pair,
        choose_policy=lambda staged: (
            calibrate(staged, chosen_on, target_disagreement=_TARGET_DISAGREEMENT, against="full").policy
        ),
        warn=lambda sentence: print(sentence, file=sys.stderr),
    )
    return evaluate(bundle, measured_on, variants=["all"])


def _halves(dataset: Dataset) -> tuple[Dataset, Dataset]:
    order = np.random.default_rng(_SEED).permutation(len(dataset))
    cut = len(order) // 2
    first, second = (tuple(dataset.samples[i] for i in sorted(part)) for part in (order[:cut], order[cut:]))
    return replace(dataset, samples=first), replace(dataset, samples=second)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(os.environ.get("FIRSTLINE_SHARED_DATA", _CHECKOUT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=beside, help="folder with the pairs (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="images of each pair (default: all)")
    arguments = parser.parse_args()

    digits = _MODELS / "digits"
    found = [evaluate(open_bundle(digits / "bundle"), open_dataset(digits / "heldout"), variants=["all"])]
    with tempfile.TemporaryDirectory() as folder:
        for pair in _PAIRS:
            if (arguments.data / pair).is_dir():
                found.append(evaluate_pair(pair, arguments.data, Path(folder), arguments.limit))
            else:
                print(f"{pair} is left out: {arguments.data} does not have it.", file=sys.stderr)

    figures = [figure for evaluation in found for figure in figures_of(evaluation, aims=evaluation.bundle == "digits")]
    for figure in figures:
        aim = (
            ""
            if figure["aim"] is None
            else f"  (at least {figure['aim']:g}: {'holds' if figure['holds'] else 'FAILS'})"
        )
        value = "-" if figure["value"] is None else f"{figure['value']:g}"
        print(f"{figure['figure']:<80} {value:>12} {figure['unit']}{aim}")
    _RESULT.parent.mkdir(parents=True, exist_ok=True)
    _RESULT.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0 if all(figure["holds"] is not False for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
