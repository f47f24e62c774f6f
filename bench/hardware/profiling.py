"""What profiling costs: how long a whole default profile takes, and what live traffic beside it feels of it.

The traffic is an edge variant's, one query after the other as a Poisson process at four tenths of what one thread can
do, timed from when each was due. Windows with a profile beside, of the lowest priority as it is by default and of all
cores, take turns with windows without.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from msgspec import Struct

from bench.figures import Figure
from bench.hardware.parts import Asked
from bench.pools import DIGITS, IMAGENET, Pair, bundle_of
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.profile.measure import ProfileOptions, measure_profile
from firstline_core.profile.measure_point import queried
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Tensor

PAIRS = (DIGITS, IMAGENET)
AIM_S = 90.0
"""Of a small model, which the documentation says takes a minute."""
_WINDOWS = 7
_WINDOW_S = 3.0
_UTILISATION = 0.4
_WARM_UP = 50


class Window(Struct):
    """p99 of live traffic, by itself and with a profile beside."""

    alone_p99_ms: float
    beside_p99_ms: float


class Record(Struct):
    """One bundle.

    Attributes:
        points: of its default profile.
        took_s: that profile, whole, at the lowest priority.
    """

    pair: str
    points: int
    took_s: float
    windows: list[Window]


def measure(name: str, asked: Asked) -> Record:
    """One pair; two minutes."""
    pair = next(pair for pair in PAIRS if pair.name == name)
    return _record(pair, bundle_of(pair), 1 if asked.quick else _WINDOWS)


def figures(records: Mapping[str, Record]) -> list[Figure]:
    """Times, and ratios of medians over windows."""
    found = []
    for record in records.values():
        aim, holds = ("at most 90 s", record.took_s <= AIM_S) if record.pair == DIGITS.name else (None, None)
        label = f"{record.pair}: a default profile of {record.points} points"
        found.append(Figure(label, round(record.took_s, 1), "s", aim, holds))
        ratio = median(one.beside_p99_ms for one in record.windows) / median(one.alone_p99_ms for one in record.windows)
        label = f"{record.pair}: p99 of live traffic with a profile beside, times that without"
        found.append(Figure(label, round(ratio, 2), "x"))
    return found


def _record(pair: Pair, bundle: Bundle, windows: int) -> Record:
    with TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        profile = measure_profile(bundle, Path(folder) / "profile.json")
        took_s = time.perf_counter() - began_s
    model = next(model for model in bundle.manifest.edge if model.id == pair.variant)
    loaded = load_model(bundle, model, RuntimeOptions(threads=1))
    try:
        tensor = queried(bundle, loaded, 1)
        compared = [_window(bundle, loaded, tensor, seed) for seed in range(windows)]
    finally:
        loaded.close()
    return Record(pair.name, len(profile.points), round(took_s, 2), compared)


def _window(bundle: Bundle, loaded: LoadedModel, tensor: Tensor, seed: int) -> Window:
    alone_ms = _p99_ms(loaded, tensor, seed)
    over = threading.Event()
    profiler = threading.Thread(target=_profile_until, args=(bundle, over))
    profiler.start()
    try:
        beside_ms = _p99_ms(loaded, tensor, seed)
    finally:
        over.set()
        profiler.join()
    return Window(alone_ms, beside_ms)


class _OverError(Exception):
    """Ends a profile between two points."""


def _profile_until(bundle: Bundle, over: threading.Event) -> None:
    def check(done: int, total: int, what: str) -> None:
        if over.is_set():
            raise _OverError

    with TemporaryDirectory() as folder:
        while not over.is_set():
            wanted = ProfileOptions(batches=(1,), total_s=1.0, again=True)
            with suppress(_OverError):
                measure_profile(bundle, Path(folder) / "profile.json", wanted, progress=check)


def _p99_ms(loaded: LoadedModel, tensor: Tensor, seed: int) -> float:
    def query() -> float:
        began_s = time.perf_counter()
        loaded.compute(loaded.prepare(tensor))
        return time.perf_counter() - began_s

    rate_per_s = _UTILISATION / median(query() for _ in range(_WARM_UP))
    random = np.random.default_rng(seed)
    due_s, until_s = time.perf_counter(), time.perf_counter() + _WINDOW_S
    found = []
    while due_s < until_s:
        left_s = due_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        query()
        found.append(time.perf_counter() - due_s)
        due_s += random.exponential(1 / rate_per_s)
    return round(1000 * float(np.quantile(found, 0.99)), 4)
