"""Answers of an edge variant and the full model to a data set: the rows of a certificate."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.dataset import Dataset
from firstline.workbench.measure import Progress
from firstline.workbench.observe import observe
from firstline_core.bundle.loading import load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import Contract
from firstline_core.routing.confidence import Probabilities
from firstline_core.runtime.select import RuntimeOptions


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One row for each image.

    Attributes:
        variant: the edge model that answered.
        probabilities: (n, classes) as it gave them.
        logits: (n, classes) likewise; None of a model that shows none.
        scores: (n,) of its answers, by the bundle's own score.
        full: (n,) the full model's labels.
        truth: (n,) the data's labels.
    """

    variant: Model
    probabilities: Probabilities
    logits: Probabilities | None
    scores: NDArray[np.float64]
    full: NDArray[np.int64]
    truth: NDArray[np.int64]

    @property
    def edge(self) -> NDArray[np.int64]:
        """(n,) the edge model's labels."""
        found: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return found

    def losses(self, contract: Contract) -> NDArray[np.bool_]:
        """(n,) whether keeping the answer breaks a contract on kept answers."""
        found: NDArray[np.bool_] = self.edge != self.full
        return found & (self.full == self.truth) if contract == "harm" else found


def full_model(bundle: Bundle, edge: str) -> Model:
    """The full model, where there are two tiers to compare.

    Args:
        bundle: the bundle to certify.
        edge: id of a variant, or "".

    Raises:
        ConfigError: the bundle has not both, or no such variant.
    """
    manifest = bundle.manifest
    if not manifest.edge or manifest.full is None:
        raise ConfigError("A certificate compares edge and full model; the bundle needs both.")
    known = [model.id for model in manifest.edge]
    if edge and edge not in known:
        raise ConfigError(f"Bundle '{manifest.name}' has no edge variant '{edge}'; it has: {', '.join(known)}.")
    return manifest.full


def gather(
    bundle: Bundle,
    dataset: Dataset,
    *,
    edge: str = "",
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> Evidence:
    """Runs both models here, image by image.

    Args:
        bundle: with edge and full model.
        dataset: images; labels out of the bundle's range are the caller's to refuse, where labels matter.
        edge: id of a variant; "" takes the one that a device would: the first that loads.
        options: how the models run.
        progress: told how many samples are done, of how many.

    Raises:
        ConfigError: the bundle has not both tiers or no such variant, or data that does not fit.
        ModelLoadError: a model does not load here.
    """
    far = full_model(bundle, edge)
    manifest, count = bundle.manifest, len(dataset)
    score = load_scorer(bundle, options)
    probabilities, logits = np.empty((2, count, len(manifest.labels)), np.float32)
    scores, (full, truth) = np.empty(count, np.float64), np.empty((2, count), np.int64)
    with ExitStack() as stack:
        near = next((model for model in manifest.edge if model.id == edge), None)
        small = load_model(bundle, near, options) if near is not None else load_edge(bundle, options)
        stack.callback(small.close)
        large = load_model(bundle, far, options)
        stack.callback(large.close)
        for i, seen in enumerate(observe((small, large), manifest.input, dataset)):
            probabilities[i], truth[i] = seen.answers[0][0], seen.label
            if (shown := seen.logits[0]) is not None:
                logits[i] = shown[0]
            scores[i], full[i] = score(seen.answers[0], shown)[0], int(seen.answers[1].argmax())
            progress(i + 1, count)
    return Evidence(small.model, probabilities, logits if small.model.shows_logits else None, scores, full, truth)
