"""Chooses temperature and threshold on data: a choice, not a certificate.

The threshold meets the target on the data that chose it. On other data it may miss the target; this is more likely with
few samples, and no bound is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline.workbench.data.dataset import Dataset
from firstline.workbench.observe import Progress, observe_here
from firstline_core.bundle.loading import load_scorer
from firstline_core.bundle.manifest import TEMPERATURES, Policy
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.arrays import LABEL, UNLABELLED
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification, Probabilities, temper

Against = Literal["labels", "full"]
# Scores are FP32; their last bit is 6e-8 near 1.
_SAME = 1e-6


class VariantChoice(Struct, frozen=True):
    """Results of the threshold for one edge variant on the calibration data.

    Attributes:
        id: of the variant.
        edge_share: share of the rows whose edge answer is accepted, in 0..1.
        disagreement: mean loss of the accepted answers, in 0..1.
    """

    id: str
    edge_share: float
    disagreement: float


class Calibration(Struct, frozen=True):
    """A policy, and the data that chose it.

    Attributes:
        certified: always False, see the module.
    """

    policy: Policy
    samples: int
    target_disagreement: float
    variants: tuple[VariantChoice, ...]
    certified: bool = False


def calibrate(
    bundle: Bundle,
    dataset: Dataset,
    *,
    target_disagreement: float,
    against: Against = "labels",
    keep_temperature: bool = False,
    progress: Progress = lambda done, total: None,
) -> Calibration:
    """Chooses a classifier's temperature, then the threshold.

    The temperature minimises the negative log-likelihood of the first edge variant's answers. The threshold is the
    smallest one at which no variant's accepted answers have a higher mean loss than the target. Where losses are 0 or
    1, that is the share that disagrees with the full model.

    Args:
        bundle: with edge and full model.
        dataset: rows that no model was trained on; labels matter only to the temperature, with `against` "labels".
        target_disagreement: mean loss of the accepted answers, in 0..1.
        against: the truth that the temperature is fitted to: the data's labels, or the full model's answers.
        keep_temperature: keeps the bundle's temperature; that of independent labels is always kept.
        progress: receives the number of processed samples and their total.

    Raises:
        ConfigError: the bundle lacks a tier, the data does not fit, or no threshold meets the target.
    """
    manifest = bundle.manifest
    if not manifest.edge or manifest.full is None:
        raise ConfigError("Calibration compares edge and full model; the bundle needs both.")
    if not 0 <= target_disagreement < 1:
        raise ConfigError(f"The target disagreement {target_disagreement} is not valid: it is a share, 0 to below 1.")
    fits_temperature = not keep_temperature and has_temperature(manifest.task)
    truth = None
    if fits_temperature and against == "labels":
        try:
            truth = dataset.required_truth(manifest.task, manifest.inputs)[LABEL]
        except ConfigError as error:
            raise ConfigError(
                f"{error} Without labels, fit the score to the full model's answers: --against full."
            ) from None

    observed = observe_here(bundle, manifest.models, dataset, progress=progress, with_evidence=manifest.edge)
    *edges, full = observed.answers
    policy = manifest.policy
    if fits_temperature:
        expected = full.labels if truth is None else truth
        labelled = expected != UNLABELLED
        temperature = fit_temperature(edges[0].probabilities[labelled], expected[labelled])
        policy = msgspec.structs.replace(policy, score=msgspec.structs.replace(policy.score, temperature=temperature))
    score = load_scorer(Bundle(bundle.path, msgspec.structs.replace(manifest, policy=policy)), RuntimeOptions())
    scores = [score(edge.outputs, edge.evidence).astype(np.float64) for edge in edges]
    losses = [manifest.task.loss(edge.outputs, full.outputs) for edge in edges]
    threshold = smallest_threshold(scores, losses, target_disagreement)
    accepted_by = [sure >= threshold for sure in scores]
    return Calibration(
        policy=msgspec.structs.replace(policy, threshold=threshold),
        samples=len(dataset),
        target_disagreement=target_disagreement,
        variants=tuple(
            VariantChoice(model.id, float(accepted.mean()), float(loss[accepted].mean()) if accepted.any() else 0.0)
            for model, accepted, loss in zip(manifest.edge, accepted_by, losses, strict=True)
        ),
    )


def has_temperature(task: Task) -> bool:
    """Returns whether a temperature can be fitted: to classes of which each row has one."""
    return isinstance(task, Classification) and not task.independent


def fit_temperature(probabilities: Probabilities, truth: NDArray[np.integer]) -> float:
    """Returns the temperature that minimises the negative log-likelihood, to 4 significant digits.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2. The loss has one minimum over 1/T, so a
    golden-section search finds it.

    Args:
        probabilities: (n, classes).
        truth: (n,) the true classes.

    Returns:
        Within `manifest.TEMPERATURES`.
    """
    # As `temper` has them: tails lifted; the rest in FP64, so that the minimum is the same on every processor.
    logarithms = np.log(temper(probabilities, 1.0).astype(np.float64))
    rows = np.arange(len(truth))

    def loss(log_temperature: float) -> float:
        tempered = logarithms / np.exp(log_temperature)
        tempered -= tempered.max(axis=1, keepdims=True)
        return float((np.log(np.exp(tempered).sum(axis=1)) - tempered[rows, truth]).mean())

    low, high = np.log(TEMPERATURES)
    ratio = (np.sqrt(5) - 1) / 2
    while high - low > 1e-7:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return float(f"{np.exp((low + high) / 2):.4g}")


def smallest_threshold(
    scores: Sequence[NDArray[np.floating]],
    losses: Sequence[NDArray[np.bool_] | NDArray[np.floating]],
    target_disagreement: float,
) -> float:
    """Returns the smallest threshold at which every variant's accepted answers meet the target.

    It lies half-way between the lowest accepted score and the next lower one. Scores closer than 1e-6 are accepted or
    escalated together, because the last digits differ between processors and batch sizes.

    Args:
        scores: (n,) of each variant; compared as FP64, as routing does.
        losses: (n,) of each variant, in 0..1.
        target_disagreement: mean loss of the accepted answers, in 0..1.

    Raises:
        ConfigError: even the answers with the highest scores lose too much.
    """
    exact = [sure.astype(np.float64) for sure in scores]
    values = np.unique(np.concatenate(exact))
    values = values[np.isfinite(values)]
    candidates = values[np.diff(values, prepend=-np.inf) > _SAME * np.maximum(1, np.abs(values))]
    fits = np.ones(len(candidates), np.bool_)
    for sure, loss in zip(exact, losses, strict=True):
        order = np.argsort(-sure)
        # lost[k]: the sum of the losses of the k surest answers.
        lost = np.append(0.0, np.cumsum(loss[order], dtype=np.float64))
        accepted = np.searchsorted(-sure[order], -candidates, side="right")
        fits &= lost[accepted] <= target_disagreement * accepted
    if not fits.any():
        raise ConfigError(
            f"No threshold keeps the disagreement at {target_disagreement:g}: even the surest answers differ more "
            "from the full model; allow more with --target-disagreement, or improve the edge model."
        )
    position = int(fits.argmax())
    chosen = float(candidates[position])
    if position > 0:
        return _between(float(values[np.searchsorted(values, chosen) - 1]), chosen)
    below = chosen - _SAME * max(1.0, abs(chosen))
    return 0.0 if below < 0 <= chosen else _between(below, chosen)


def _between(below: float, above: float) -> float:
    """Returns the middle, rounded to six decimals if a quarter of the gap remains on both sides."""
    middle, margin = (below + above) / 2, (above - below) / 4
    short = round(middle, 6)
    return short if below + margin <= short <= above - margin else middle
