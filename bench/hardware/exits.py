"""Two edge variants one after the other: does an early exit pay, and what has to be certified for it?

The small variant answers first. Only its unsure rows go to the larger one, and only that one's unsure rows to the full
model. Each stage keeps what its own certificate lets it keep. The second stage's has to be made on the rows that the
first one leaves: they are harder than all rows, and a certificate made on all rows says nothing of them. So half of the
calibration rows go to either stage, each at half of delta, and the promise holds for all kept answers together.

Beside it every variant alone, certified on all calibration rows; and the second stage with the certificate that it has
as a variant of its own, which is what a device would do that only put variants one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from figures import Figure
from numpy.typing import NDArray
from pools import CACHE, CIFAR10, DATA, IMAGENET, Pair

from firstline.workbench.bundle import create_bundle
from firstline.workbench.dataset import open_dataset
from firstline.workbench.observe import observe
from firstline.workbench.recipe import read_recipe
from firstline.workbench.spec import ModelSpec
from firstline.workbench.spelling import parse_postprocess, parse_preprocess
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.routing.certification import certify
from firstline_core.routing.confidence import score
from firstline_core.runtime.select import RuntimeOptions
from hardware.parts import Asked

DELTA = 0.1
SPLITS = 40
ESCALATIONS_MS = (5.0, 20.0, 50.0, 200.0)
_SEED = 20261121
_CIFAR_STEPS = "decode:RGB,resize:32x32,scale:0:255,scale:0.485/0.456/0.406:0.229/0.224/0.225,layout:NCHW"
_RECIPES = Path(__file__).parents[2] / "models"


class Line(msgspec.Struct, frozen=True):
    """One chain of variants, on average over splits of the rows into calibration and test.

    Attributes:
        stages: ids, in order.
        edge_ms: a row, on this device.
        kept: share of the test rows that never leave it.
        risk: of kept answers, share for which the full model says otherwise.
        broken: share of the splits in which a stage's kept answers are riskier than promised.
    """

    stages: tuple[str, ...]
    edge_ms: float
    kept: float
    risk: float
    broken: float

    def total_ms(self, escalation_ms: float) -> float:
        """A row, where the full model's answer takes so long."""
        return self.edge_ms + (1 - self.kept) * escalation_ms


class Record(msgspec.Struct, frozen=True):
    """One pair."""

    pair: str
    epsilon: float
    rows: int
    variant_ms: dict[str, float]
    lines: tuple[Line, ...]
    naive: tuple[Line, ...]


class Rows(msgspec.Struct, frozen=True):
    """What one variant said of each row."""

    ms: float
    scores: NDArray[np.float64]
    losses: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp]) -> Rows:
        return Rows(self.ms, self.scores[rows], self.losses[rows])

    def threshold(self, epsilon: float, delta: float) -> float:
        """The loosest certified one; above every score where none is."""
        if not len(self.scores):
            return np.inf
        found = certify(self.scores, self.losses, epsilon, delta)
        return found.threshold if found.threshold is not None else np.inf


PAIRS = {"cifar10": CIFAR10, "imagenet": IMAGENET}


def measure(name: str, asked: Asked, data: Path = DATA, cache: Path = CACHE) -> Record:
    """One pair; half a minute."""
    bundle, rows, epsilon = (
        (cifar_variants(data, cache), 2500, 0.05) if name == "cifar10" else (_imagenet(data, cache), 650, 0.1)
    )
    return _record(name, observed(bundle, PAIRS[name], data, 300 if asked.quick else rows), epsilon)


def figures(records: Mapping[str, Record]) -> list[Figure]:
    """How much sooner the best chain of two answers than the best single variant, by what an escalation takes."""
    found = []
    for record in records.values():
        for escalation_ms in ESCALATIONS_MS:
            alone, two = (
                min(line.total_ms(escalation_ms) for line in record.lines if len(line.stages) == count)
                for count in (1, 2)
            )
            found.append(
                Figure(
                    f"{record.pair}: best chain of two beside the best variant, escalation {escalation_ms:g} ms",
                    round(two / alone - 1, 4),
                    "of the time per row",
                )
            )
        worst = max(line.broken for line in record.naive)
        found.append(
            Figure(
                f"{record.pair}: promise broken by a second stage with a certificate for all rows", worst, "of splits"
            )
        )
        kept = max(line.broken for line in record.lines)
        limit = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / SPLITS)
        found.append(
            Figure(
                f"{record.pair}: promise broken where each stage is certified on its own rows",
                kept,
                "of splits",
                f"<= {limit:.2g}, delta and what luck explains",
                bool(kept <= limit),
            )
        )
    return found


def _record(name: str, said: Mapping[str, Rows], epsilon: float) -> Record:
    ids = list(said)
    chains = [(one,) for one in ids] + [(one, other) for at, one in enumerate(ids) for other in ids[at + 1 :]]
    return Record(
        name,
        epsilon,
        len(said[ids[0]].scores),
        {variant: round(rows.ms, 4) for variant, rows in said.items()},
        tuple(_line(chain, said, epsilon, own=True) for chain in chains),
        tuple(_line(chain, said, epsilon, own=False) for chain in chains if len(chain) > 1),
    )


def _line(chain: tuple[str, ...], said: Mapping[str, Rows], epsilon: float, *, own: bool) -> Line:
    stages = [said[variant] for variant in chain]
    rng = np.random.default_rng(_SEED)
    found = [_once(stages, epsilon, rng.permutation(len(stages[0].scores)), own=own) for _ in range(SPLITS)]
    edge_ms, kept, lost, broken = np.mean(found, axis=0)
    return Line(chain, float(edge_ms), float(kept), float(lost / kept) if kept else 0.0, float(broken))


def _once(
    stages: Sequence[Rows], epsilon: float, order: NDArray[np.intp], *, own: bool
) -> tuple[float, float, float, float]:
    """Edge milliseconds, kept share, lost share of all test rows, and whether a stage broke the promise."""
    half = len(order) // 2
    parts, test = np.array_split(order[:half], len(stages) if own else 1), order[half:]
    passed: list[tuple[Rows, float]] = []
    edge_ms = kept = lost = 0.0
    broken = False
    for at, stage in enumerate(stages):
        calibration = parts[at] if own else parts[0]
        if own:  # only the rows that the stages before leave
            for before, threshold in passed:
                calibration = calibration[before.scores[calibration] < threshold]
        threshold = stage.take(calibration).threshold(epsilon, DELTA / len(stages))
        edge_ms += stage.ms * len(test) / (len(order) - half)
        keeps = stage.scores[test] >= threshold
        risk = float(stage.losses[test][keeps].mean()) if keeps.any() else 0.0
        broken = broken or risk > epsilon
        kept += float(keeps.sum()) / (len(order) - half)
        lost += float(stage.losses[test][keeps].sum()) / (len(order) - half)
        test = test[~keeps]
        passed.append((stage, threshold))
    return edge_ms, kept, lost, float(broken)


def observed(bundle: Bundle, pair: Pair, data: Path, limit: int, *, and_full: bool = False) -> dict[str, Rows]:
    """What each variant says, by its margin, and whether the full model says otherwise; the quickest variant first.

    Args:
        bundle: of the pair's models.
        pair: its labelled images.
        data: third-party models and images.
        limit: of images.
        and_full: the full model is told as one of the variants.
    """
    manifest = bundle.manifest
    if manifest.full is None:
        raise ValueError(f"{manifest.name} has no full model")
    with ExitStack() as stack:
        models = [load_model(bundle, model, RuntimeOptions(threads=1)) for model in (*manifest.edge, manifest.full)]
        for model in models:
            stack.callback(model.close)
        seen = list(observe(models, manifest.input, open_dataset(data / pair.images / "dev", limit)))
    full = np.concatenate([one.answers[-1] for one in seen]).argmax(axis=1)
    found = {}
    for at, model in enumerate((*manifest.edge, manifest.full) if and_full else manifest.edge):
        answers = np.concatenate([one.answers[at] for one in seen])
        ms = 1000 * float(np.median([one.seconds[at] for one in seen]))
        margins = score("margin", answers, 1.0).astype(np.float64)
        found[model.id] = Rows(ms, margins, answers.argmax(axis=1) != full)
    return dict(sorted(found.items(), key=lambda item: item[1].ms))


def cifar_variants(data: Path, cache: Path) -> Bundle:
    """The pair with two more edge variants from the same folder."""
    spec = read_recipe(_RECIPES / CIFAR10.recipe / "recipe.toml", data / CIFAR10.recipe)
    models = data / CIFAR10.recipe / "models"
    large = ModelSpec(
        models / "mlperf_resnet_large_int8.tflite",
        id="resnet-large-int8",
        preprocess=parse_preprocess("decode:RGB,resize:32x32,scale:0:1"),
    )
    deeper = ModelSpec(
        models / "resnet20_cifar10.onnx",
        id="resnet20",
        preprocess=parse_preprocess(_CIFAR_STEPS),
        postprocess=parse_postprocess("softmax"),
    )
    folder = cache / "cifar10-exits"
    if folder.is_dir():
        return open_bundle(folder)
    return create_bundle(replace(spec, edge=(*spec.edge, large, deeper)), folder)


def _imagenet(data: Path, cache: Path) -> Bundle:
    folder = cache / "imagenet-exits"
    if folder.is_dir():
        return open_bundle(folder)
    return create_bundle(read_recipe(_RECIPES / IMAGENET.recipe / "recipe.toml", data / IMAGENET.recipe), folder)
