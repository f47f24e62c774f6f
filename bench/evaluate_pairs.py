"""Measures accuracy and edge share of tiering on real data: the digits and two pairs of third-party models.

    python -m bench.evaluate_pairs [--data DIR] [--limit N]

Prints every figure, and writes them to bench/results/evaluate.json. Pairs without data are skipped. The thresholds of
the pairs are chosen on one half of their images and measured on the other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.figures import Figure, report
from bench.pools import DATA
from firstline.workbench.bundle import create_bundle
from firstline.workbench.calibrate import calibrate
from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline.workbench.evaluate import Evaluation, evaluate
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.manifest import valid_certificate
from firstline_core.bundle.store import Bundle, open_bundle

_MODELS = Path(__file__).parents[1] / "models"
_PAIRS = ("imagenet-cascade", "cifar10-cascade")
_TARGET_DISAGREEMENT = 0.05
_SEED = 20261121


def promises(bundle: Bundle) -> dict[str, float]:
    """Returns the certified disagreement by variant."""
    manifest = bundle.manifest
    certificates = {model.id: valid_certificate(manifest, model) for model in manifest.edge}
    return {name: c.epsilon for name, c in certificates.items() if c is not None and c.contract == "disagreement"}


def figures_of(evaluation: Evaluation, certified: Mapping[str, float]) -> Iterator[Figure]:
    """Yields the figures of one bundle. The digits have aims, because their threshold is in the repository."""
    if evaluation.full is None:
        raise ValueError(f"{evaluation.bundle} has no full model to compare with")
    name, full, aims = evaluation.bundle, evaluation.full, evaluation.bundle == "digits"
    yield Figure(f"{name}: images", evaluation.samples, "count")
    yield Figure(f"{name}: full only: accuracy", full.quality["accuracy"], "share")
    for variant in evaluation.variants:
        edge, tiered = variant.edge, variant.tiered
        if tiered is None:
            continue
        only, both = f"{name}: {edge.id} only", f"{name}: {edge.id} tiered"
        yield Figure(f"{only}: accuracy", edge.quality["accuracy"], "share")
        least = full.quality["accuracy"] - 0.005
        accuracy = tiered.quality["accuracy"]
        yield Figure(
            f"{both}: accuracy",
            accuracy,
            "share",
            f">= {least:.4f}, half a point below full only" if aims else None,
            accuracy >= least if aims else None,
        )
        yield Figure(
            f"{both}: answered at the edge",
            tiered.edge_share,
            "share",
            ">= 0.7" if aims else None,
            tiered.edge_share >= 0.7 if aims else None,
        )
        epsilon = certified.get(edge.id)
        yield Figure(
            f"{both}: edge answers that differ from the full model's",
            tiered.disagreement,
            "share",
            f"<= {epsilon:g}, as certified" if epsilon is not None else None,
            (tiered.disagreement or 0) <= epsilon if epsilon is not None else None,
        )


def evaluate_pair(pair: str, data: Path, folder: Path, limit: int | None) -> Evaluation:
    """Creates the pair's bundle, chooses its policy on one half of the images, and evaluates it on the other."""
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
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the pairs (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="images of each pair (default: all)")
    arguments = parser.parse_args()

    digits = _MODELS / "digits"
    bundle = open_bundle(digits / "bundle")
    evaluations = [(evaluate(bundle, open_dataset(digits / "heldout"), variants=["all"]), promises(bundle))]
    with tempfile.TemporaryDirectory() as folder:
        for pair in _PAIRS:
            if (arguments.data / pair).is_dir():
                evaluations.append((evaluate_pair(pair, arguments.data, Path(folder), arguments.limit), {}))
            else:
                print(f"{pair} is skipped: {arguments.data} does not have it.", file=sys.stderr)

    return report("evaluate", [figure for evaluation in evaluations for figure in figures_of(*evaluation)])


if __name__ == "__main__":
    sys.exit(main())
