"""Runs a bundle of one or two models on all data, and certifies the edge model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.certify import Certification, Terms, certify_bundle, require_confidence
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.evidence import Evidence
from firstline.workbench.observe import Answers, Progress, observe
from firstline.workbench.pairing.agreement import check_agreement
from firstline.workbench.promises import EventBound, parse_promises, require_event
from firstline.workbench.selection import EdgeRows
from firstline.workbench.sequences import find_sequences
from firstline_core.bundle.loading import load_model, load_scorer
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import MISSED
from firstline_core.types import Arrays

EPSILON, DELTA = 0.05, 0.1
"""Of the promise that is tried where the user names none: 5 % at 90 %."""


@dataclass(frozen=True)
class Measured:
    """The answers of a bundle's models to a data set.

    Attributes:
        bundle: that ran.
        dataset: all of it.
        sizes: (n,) bytes of the inputs.
        edge: None for a bundle without an edge model.
        full: None for a bundle without a full model.
        truth: labels of the data; None without any.
        scores: (n,) of the edge answers, by the bundle's score; empty without an edge model.
    """

    bundle: Bundle
    dataset: Dataset
    sizes: NDArray[np.int64]
    edge: Answers | None
    full: Answers | None
    truth: Arrays | None
    scores: NDArray[np.float64]

    @cached_property
    def evidence(self) -> Evidence:
        """Returns the rows of a certificate.

        Raises:
            ValueError: the bundle has one model.
        """
        if self.edge is None or self.full is None:
            raise ValueError("a certificate needs two models")
        rows = EdgeRows(self.bundle.manifest.task, self.edge.outputs, self.edge.evidence)
        sequences = find_sequences(self.dataset)
        return Evidence(
            self.edge.model, rows, self.scores, self.full.outputs, self.truth, self.dataset.groups, sequences
        )


def measure_pair(
    bundle: Bundle, dataset: Dataset, options: RuntimeOptions, progress: Progress = lambda done, total: None
) -> Measured:
    """Runs all models of a bundle on a data set.

    Raises:
        ConfigError: the data does not fit the bundle.
        FirstlineError: a model does not load or run.
    """
    manifest, score = bundle.manifest, load_scorer(bundle, options)
    with ExitStack() as stack:
        loaded = [stack.enter_context(closing(load_model(bundle, model, options))) for model in manifest.models]
        # The score needs the edge's evidence; the quality of some tasks needs both models'.
        scored = loaded if manifest.task.compares_evidence else loaded[: len(manifest.edge)]
        observed = observe(loaded, manifest.inputs, dataset, progress, with_evidence=scored)
    edge = observed.answers[0] if manifest.edge else None
    return Measured(
        bundle=bundle,
        dataset=dataset,
        sizes=observed.sizes,
        edge=edge,
        full=observed.answers[-1] if manifest.full is not None else None,
        truth=dataset.truth(manifest.task, manifest.inputs),
        scores=np.empty(0) if edge is None else edge.scores(score),
    )


def compare(measured: Measured, folder: Path) -> str:
    """Compares both models of a bundle that was made without a comparison; deletes it if they do not fit.

    Args:
        measured: the bundle on the data that decide.
        folder: of the bundle.

    Raises:
        ConfigError: the models do not fit each other.
    """
    evidence = measured.evidence
    try:
        return check_agreement(measured.bundle.manifest.task, evidence.edge.outputs, evidence.full, {})
    except ConfigError:
        shutil.rmtree(folder)
        raise


def certify_pair(measured: Measured, promises: Sequence[str]) -> Certification:
    """Certifies promises about events, or the usual one: 5 % at 90 %.

    Of tasks that need an event, the usual promise is about missing what the full model reports most often.

    Raises:
        ConfigError: a promise is not valid, or the scores are the same for every row.
    """
    task = measured.bundle.manifest.task
    bounds = parse_promises(promises, task)
    if not bounds and measured.bundle.manifest.needs_event:
        if not task.events:
            require_event(measured.bundle.manifest)
        reported = (task.occurrences(measured.evidence.full) > 0).sum(axis=0)
        bounds = {f"{MISSED} {task.group_names[int(reported.argmax())]}": EventBound(EPSILON, DELTA)}
    terms = Terms(EPSILON, DELTA)
    certification = certify_bundle(measured.bundle, measured.evidence, terms.about(bounds) if bounds else terms)
    require_confidence(measured.evidence, certification.selection)
    return certification
