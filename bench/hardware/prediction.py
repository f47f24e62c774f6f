"""Compares predicted with measured latencies of a mixed load: an edge variant and its full model in one thread.

Queries of both models arrive as a Poisson process at 40 % of the capacity of one server. The real models answer them
first come, first served, and each latency counts from when the query was due. `replay` predicts the latencies of the
same arrivals. A second prediction uses other arrivals of the same rate and only the profile before the run, as a
planner would.

The speed of a shared machine changes from minute to minute. So profiles, of single points and at the priority of a
service, alternate with runs. Each run is compared with the mean of the predictions from the profiles before and after
it, and the median over all rounds is reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bench.figures import Figure
from bench.pools import CIFAR10, DATA, DIGITS, IMAGENET, Pair, bundle_of
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.profile.measure import ProfileOptions, measure_profile
from firstline_core.profile.measure_point import queried
from firstline_core.profile.predict import Stream, predict, replay
from firstline_core.profile.profile import Point
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Arrays

PAIRS = (DIGITS, CIFAR10, IMAGENET)
THREADS = (1, 2)
AIM = 0.15
_FULL_SHARE = 0.2
_LOAD = 0.4
_ROUNDS = 9
_RUN_S = 5.0
_QUERIES = (300, 30_000)
_PROFILE_S = 12.0
_SHARES = (1 - _FULL_SHARE, _FULL_SHARE)


class Round(Struct):
    """One run between two profiles.

    Attributes:
        profile_waited_share, run_waited_share: share of the time that was spent waiting for a core: the largest of the
            profiles' points, and of the run.
        other_p50_ms, other_p99_ms: predicted for other arrivals of the same rate, from the profile before.
    """

    queries: int
    rate_per_s: float
    measured_p50_ms: float
    measured_p99_ms: float
    predicted_p50_ms: float
    predicted_p99_ms: float
    other_p50_ms: float
    other_p99_ms: float
    profile_waited_share: float
    run_waited_share: float

    def error(self, name: str, by: str = "predicted") -> float:
        """Returns the relative error of a quantile `predicted` for these arrivals, or for `other` ones."""
        measured_ms: float = getattr(self, f"measured_{name}_ms")
        predicted_ms: float = getattr(self, f"{by}_{name}_ms")
        return predicted_ms / measured_ms - 1

    @property
    def waited_share(self) -> float:
        return max(self.profile_waited_share, self.run_waited_share)


class Trial(Struct):
    """One variant with one number of threads."""

    pair: str
    threads: int
    rounds: list[Round]


def measure(quick: bool) -> tuple[list[Figure], dict[str, list[Trial]]]:
    """Measures each pair with each number of threads, seven minutes a pair; a quick trial is one round of the first.

    Returns:
        The figures, and the trials by the pair's name; no figures if data is missing.
    """
    pairs = PAIRS[:1] if quick else PAIRS
    for pair in pairs:
        if (missing := pair.missing_in(DATA)) is not None:
            print(f"prediction is skipped: missing {missing}.", file=sys.stderr)
            return [], {}
    threads, rounds = (THREADS[:1], 1) if quick else (THREADS, _ROUNDS)
    trials = {pair.name: [_trial(pair, bundle_of(pair), each, rounds) for each in threads] for pair in pairs}
    return figures(trials), trials


def figures(records: Mapping[str, list[Trial]]) -> list[Figure]:
    """Returns the errors over all rounds, relative to the measurement, and how much other work disturbed them."""
    found = []
    for trial in (trial for trials in records.values() for trial in trials):
        which = f"{trial.pair}, threads {trial.threads}"
        for name in ("p50", "p99"):
            label = f"{which}: predicted {name} of the mixed load"
            error, most = _errors(trial.rounds, name, "predicted")
            found.append(Figure(f"{label}, off by", error, "%", "within 15 %", abs(error) <= 100 * AIM))
            found.append(Figure(f"{label}, off by, without its sign", most, "%"))
            error, most = _errors(trial.rounds, name, "other")
            found.append(Figure(f"{label}, as a planner has it, off by", error, "%"))
            found.append(Figure(f"{label}, as a planner has it, off by, without its sign", most, "%"))
        waited = median(each.waited_share for each in trial.rounds)
        label = f"{which}: most of a measurement's time that other work had its core"
        found.append(Figure(label, round(100 * waited, 1), "%"))
    return found


def _errors(rounds: Sequence[Round], name: str, by: str) -> tuple[float, float]:
    """Returns the median error and the median absolute error over all rounds, in percent."""
    errors = [100 * each.error(name, by) for each in rounds]
    return round(median(errors), 1), round(median(map(abs, errors)), 1)


class _Played(NamedTuple):
    """The arrivals of a run, and the latency of each query.

    Attributes:
        arrivals_s, took_s: (n,) arrival times and latencies.
        kinds: (n,) 0 is the edge variant, 1 the full model.
        waited_share: see `run_waited_share` of `Round`.
    """

    rate_per_s: float
    arrivals_s: NDArray[np.float64]
    kinds: NDArray[np.intp]
    took_s: NDArray[np.float64]
    waited_share: float


def _trial(pair: Pair, bundle: Bundle, threads: int, count: int) -> Trial:
    rounds = []
    before = _profiled(pair, bundle, threads)
    for seed in range(count):
        played = _played(bundle, before, seed)
        after = _profiled(pair, bundle, threads)
        rounds.append(_round(before, after, played))
        before = after
    return Trial(pair.name, threads, rounds)


def _played(bundle: Bundle, points: list[Point], seed: int) -> _Played:
    mean_s = sum(share * point.query.mean_ms for share, point in zip(_SHARES, points, strict=True)) / 1000
    rate_per_s = _LOAD / mean_s
    queries = int(np.clip(_RUN_S * rate_per_s, *_QUERIES))
    random = np.random.default_rng([7, seed])
    arrivals_s = np.cumsum(random.exponential(1 / rate_per_s, queries))
    kinds = (random.random(queries) < _FULL_SHARE).astype(np.intp)
    waited_s = -_waited_s()
    took_s = _run(bundle, points, arrivals_s, kinds)
    waited_s += _waited_s()
    return _Played(rate_per_s, arrivals_s, kinds, took_s, waited_s / float(arrivals_s[-1]))


def _round(before: list[Point], after: list[Point], played: _Played) -> Round:
    measured = np.quantile(1000 * played.took_s, (0.5, 0.99))
    predicted = np.mean([_predicted(points, played.arrivals_s, played.kinds) for points in (before, after)], axis=0)
    rates = [share * played.rate_per_s for share in _SHARES]
    other = predict([Stream(point, rate_per_s) for point, rate_per_s in zip(before, rates, strict=True)])
    return Round(
        queries=len(played.kinds),
        rate_per_s=round(played.rate_per_s, 2),
        measured_p50_ms=round(float(measured[0]), 4),
        measured_p99_ms=round(float(measured[1]), 4),
        predicted_p50_ms=round(float(predicted[0]), 4),
        predicted_p99_ms=round(float(predicted[1]), 4),
        other_p50_ms=round(other.p50_ms, 4),
        other_p99_ms=round(other.p99_ms, 4),
        profile_waited_share=max(point.waited_share for point in (*before, *after)),
        run_waited_share=round(played.waited_share, 4),
    )


def _profiled(pair: Pair, bundle: Bundle, threads: int) -> list[Point]:
    """Profiles the edge variant and the full model now."""
    full = bundle.manifest.full
    assert full is not None
    with TemporaryDirectory() as folder:
        ids = (pair.variant, full.id)
        options = ProfileOptions(threads=(threads,), batches=(1,), variants=ids, total_s=_PROFILE_S, alone=True)
        profile = measure_profile(bundle, Path(folder) / "profile.json", options)
    by_variant = {point.key.variant: point for point in profile.points}
    return [by_variant[id_] for id_ in ids]


def _predicted(
    points: Sequence[Point], arrivals_s: NDArray[np.float64], kinds: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Returns p50 and p99 in milliseconds: medians over nine seeds."""
    draws = (replay(points, 1000 * arrivals_s, kinds, servers=1, seed=seed) for seed in range(9))
    found: NDArray[np.float64] = np.median([np.quantile(drawn, (0.5, 0.99)) for drawn in draws], axis=0)
    return found


def _run(
    bundle: Bundle, points: list[Point], arrivals_s: NDArray[np.float64], kinds: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Answers all queries in their order in one thread, and returns their latencies from when they were due (s)."""
    found = np.empty_like(arrivals_s)
    keep_freed_memory()  # as an agent does
    models = {model.id: model for model in bundle.manifest.models}
    with ExitStack() as stack:
        answer: list[Callable[[], None]] = []
        for point in points:
            loaded = load_model(bundle, models[point.key.variant], RuntimeOptions(threads=point.key.threads))
            stack.callback(loaded.close)
            answer.append(partial(_answer, loaded, queried(bundle, loaded, 1)))
        for kind in range(len(points)):
            for _ in range(20):
                answer[kind]()
        began_s = time.perf_counter() + 0.01
        for at, (due_s, kind) in enumerate(zip((began_s + arrivals_s).tolist(), kinds.tolist(), strict=True)):
            left_s = due_s - time.perf_counter()
            if left_s > 0:
                time.sleep(left_s)
            answer[kind]()
            found[at] = time.perf_counter() - due_s
    return found


def _answer(loaded: LoadedModel, inputs: Arrays) -> None:
    loaded.compute(loaded.prepare(inputs))


def _waited_s() -> float:
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
