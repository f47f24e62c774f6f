"""Certified thresholds next to BARGAIN (Zeighami et al., arXiv 2509.02896) on the same scores and labels.

BARGAIN answers a given set of records. It asks the full model about some of them, and chooses these as it learns, while
`firstline certify` draws its rows at random, once, for records to come. Two promises are compared, each with confidence
90 %, on records drawn from a pool:

- of the answers accepted at the edge, at most epsilon differ from the full model's: BARGAIN_P and `certify`;
- of all answers, at most epsilon differ: BARGAIN_A and `certify_stream`.

Labelled records whose edge answer differs are never accepted. BARGAIN needs an environment of its own: make
.venv-peers/bargain/stamp.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure, plain
from bench.pools import CIFAR10, IMAGENET, collect
from bench.routing.population import at_most
from firstline_core.routing.certification import CertificationResult, certify
from firstline_core.routing.contracts import certify_stream
from firstline_core.tasks.classification import margin

_CHECKOUT = Path(__file__).parents[2]
_PYTHON = _CHECKOUT / ".venv-peers" / "bargain" / "bin" / "python"
_SIDE = Path(__file__).with_name("bargain_side.py")
_TRIALS = 100
_RECORDS = 2000
_EPSILON, _DELTA = 0.05, 0.1
_LABELS = (200, 500)
"""Labels of BARGAIN_P and `certify`; BARGAIN_A stops by itself."""


class Trials(NamedTuple):
    """Records drawn from a pool, (trials, records).

    Attributes:
        scores: of the edge answers.
        differs: whether the full model answers differently.
    """

    scores: NDArray[np.float64]
    differs: NDArray[np.bool_]


def figures(data: Path) -> Iterator[Figure]:
    """Yields broken promises, share of the records answered at the edge, and labels."""
    if not _PYTHON.exists():
        print("BARGAIN has no environment: make .venv-peers/bargain/stamp", file=sys.stderr)
        return
    for pair in (CIFAR10, IMAGENET):
        pool = collect(pair, data.parent)
        rows = np.random.default_rng(1).integers(0, len(pool.labels), (_TRIALS, _RECORDS))
        trials = Trials(margin(pool.edge).astype(np.float64)[rows], pool.losses()["disagreement"][rows])
        for labels in _LABELS:
            accepted, _ = _bargain(trials, labels)
            yield from _of_accepted(f"{pair.name}, accepted answers, BARGAIN, {labels} labels", accepted, trials)
            accepted = _ours(trials, np.full(_TRIALS, labels), certify)
            yield from _of_accepted(f"{pair.name}, accepted answers, certify, {labels} labels", accepted, trials)
        accepted, used = _bargain(trials, 0)
        yield from _of_all(f"{pair.name}, all answers, BARGAIN, {used.mean():.0f} labels", accepted, trials)
        for name, counts in (("as many", used), ("500", np.full(_TRIALS, 500))):
            accepted = _ours(trials, counts, certify_stream)
            yield from _of_all(f"{pair.name}, all answers, certify, {name} labels", accepted, trials)


def _of_accepted(title: str, accepted: NDArray[np.bool_], trials: Trials) -> Iterator[Figure]:
    wrong = (accepted & trials.differs).sum(axis=1) / np.maximum(accepted.sum(axis=1), 1)
    yield from _figures(title, wrong, accepted)


def _of_all(title: str, accepted: NDArray[np.bool_], trials: Trials) -> Iterator[Figure]:
    yield from _figures(title, (accepted & trials.differs).mean(axis=1), accepted)


def _figures(title: str, wrong: NDArray[np.float64], accepted: NDArray[np.bool_]) -> Iterator[Figure]:
    yield at_most(f"{title}: broken promises", int((wrong > _EPSILON).sum()), _TRIALS, _DELTA, "trials")
    yield plain(f"{title}: answered at the edge", float(accepted.mean()), "share")


def _bargain(trials: Trials, labels: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Returns which records BARGAIN answers at the edge, (trials, records), and the labels it used, (trials,).

    Args:
        trials: what it answers.
        labels: of BARGAIN_P; 0 for BARGAIN_A.
    """
    with TemporaryDirectory() as folder:
        table, found = Path(folder) / "given.npz", Path(folder) / "found.npz"
        np.savez(table, scores=trials.scores, right=~trials.differs)
        limits = [str(value) for value in (1 - _EPSILON, _DELTA, labels)]
        subprocess.run([_PYTHON, "-W", "ignore", _SIDE, table, found, *limits], check=True)
        with np.load(found) as stored:
            return stored["accepted"], stored["used"]


def _ours(trials: Trials, labels: NDArray[np.int64], test: Callable[..., CertificationResult]) -> NDArray[np.bool_]:
    """Returns which records are accepted at the edge, from random samples of this many labels, (trials, records)."""
    accepted = np.zeros(trials.scores.shape, np.bool_)
    for seed, (scores, differs, count) in enumerate(zip(trials.scores, trials.differs, labels, strict=True)):
        sample = np.random.default_rng(seed).permutation(len(scores))[:count]
        found = test(scores[sample], differs[sample].astype(np.int8), _EPSILON, _DELTA, seed=seed)
        accepted[seed] = scores >= (np.inf if found.threshold is None else found.threshold)
        accepted[seed, sample] &= ~differs[sample]
    return accepted
