"""The cost of each model on the machine that it is for: this one, or the one that a profile describes.

If the profile is of this machine, it names the ways to run a model, and all models are measured now, in turns, as
profiles are: figures of another day differ by more than the tenth that the judge requires.

If it is of another machine, only points measured there count, by the models' digests; a model of the bundle that never
ran there is not compared. Nothing is scaled from this machine: the speed of int8 kernels relative to fp32 differs
between processors by several times.

Latency is of one row: a batch makes a device's single request wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from statistics import median

import numpy as np
from msgspec import Struct, field

from firstline.workbench.compress.evaluation import preprocessed_rows
from firstline.workbench.data.dataset import Dataset
from firstline_core.bundle.loading import LoadedModel, load_model
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading
from firstline_core.hardware.survey import describe_device
from firstline_core.planning.plan import quickest
from firstline_core.profile.measure_point import Job
from firstline_core.profile.point_process import measure_in_process
from firstline_core.profile.profile import Key, Point, Profile, Refused
from firstline_core.profile.summary import DISTURBED
from firstline_core.runtime.select import CPU, RuntimeOptions
from firstline_core.types import Array

ROUNDS = 3
POINT_S = 1.0
TRIES = 3
"""Times that a point is measured at most, where other work disturbs it; the least disturbed counts."""
_TFLITE = "tflite"
_TURNS, _LEAST_TURNS, _TURNS_S = 300, 15, 20.0
_WARM_RUNS, _WARM_S = 5, 0.001

Measure = Callable[[Job], Point | Refused]


class Target(Struct, frozen=True):
    """The machine that the candidates are for.

    Attributes:
        machine: its name.
        here: whether it is this machine.
    """

    machine: str
    here: bool


class Cost(Struct, frozen=True):
    """Cost of one row on the target.

    Attributes:
        latency_ms: median of the model and its postprocessing.
        energy_mj: of the whole query, decoding included; None if it was not measured.
        ran: provider and threads, in words.
        waited_share: share of the measuring time in which other work had the core; 0 if it was not counted.
    """

    latency_ms: float
    energy_mj: Reading | None = None
    ran: str = ""
    waited_share: float = 0.0


class Costs(Struct, frozen=True):
    """Costs by model id, and for the other models why they are unknown."""

    known: dict[str, Cost]
    unknown: dict[str, str] = field(default_factory=dict)


def target_of(profile: Profile, manifest: Manifest, tree: Tree) -> Target:
    """Returns whether the profile is of this machine.

    Args:
        profile: of the target.
        manifest: of the bundle that is compressed.
        tree: this machine's kernel files.

    Raises:
        ConfigError: it is of another machine on which no candidate ran.
    """
    if profile.fingerprint == describe_device(tree, tree.root).fingerprint:
        return Target(profile.machine, True)
    ran = {point.key.model_digest for point in profile.points if point.key.of_one_row}
    if ran <= {model.digest for model in manifest.models}:
        raise ConfigError(
            f"The profile is of '{profile.machine}', which is not this machine with this software, and times of one do "
            "not tell of another's. Write the candidates with --force and --out DIR, measure DIR there (edge-agent "
            "profile DIR), and give that profile, with the same data and seed. It has one row through no model but the "
            "bundle's own."
        )
    return Target(profile.machine, False)


def measure_in_turns(bundle: Bundle, models: Sequence[Model], dataset: Dataset, options: RuntimeOptions) -> Costs:
    """Returns the median time of one row through each model, without its processing.

    The models run in turns in one process, so that other work affects all of them alike, and each is warmed, because a
    model of some microseconds takes up to twice as long after another runtime has filled the caches.

    Args:
        bundle: has the files.
        models: each once.
        dataset: source of a few images.
        options: how the models run.
    """
    with ExitStack() as stack:
        ready: list[tuple[str, LoadedModel, Array]] = []
        for model in models:
            loaded = load_model(bundle, model, options)
            stack.callback(loaded.close)
            ready.append((model.id, loaded, preprocessed_rows(loaded, dataset, bundle.manifest.inputs, 1)))
        taken: dict[str, list[float]] = {name: [] for name, _, _ in ready}
        start_s = time.perf_counter()
        for done in range(_TURNS):
            if done >= _LEAST_TURNS and time.perf_counter() - start_s > _TURNS_S:
                break
            for name, loaded, rows in ready:
                feed = {loaded.inputs[0].port.name: rows}
                _warmed(loaded, feed)
                began_s = time.perf_counter()
                loaded.runtime.run(feed)
                taken[name].append(time.perf_counter() - began_s)
    return Costs({name: Cost(float(np.median(seconds)) * 1000) for name, seconds in taken.items()})


def _warmed(loaded: LoadedModel, feed: dict[str, Array]) -> None:
    """A few runs; one if it takes a millisecond, for which caches do not matter."""
    began_s = time.perf_counter()
    for _ in range(_WARM_RUNS):
        loaded.runtime.run(feed)
        if time.perf_counter() - began_s > _WARM_S:
            break


def read_costs(models: Iterable[Model], profile: Profile) -> Costs:
    """Returns the costs that another machine's profile contains."""
    found = Costs({})
    for model in models:
        points = [point for point in profile.points if point.key.model_digest == model.digest and point.key.of_one_row]
        if points:
            found.known[model.id] = _cost([_fastest(_undisturbed(points))])
        else:
            found.unknown[model.id] = f"it never ran on '{profile.machine}': its profile has no model of this digest"
    return found


def measured_costs(
    bundle: Bundle,
    models: Sequence[Model],
    profile: Profile,
    *,
    rounds: int = ROUNDS,
    seconds: float = POINT_S,
    measure: Measure = measure_in_process,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Costs:
    """Measures every model here in its fastest way, in turns.

    A first round chooses each model's way; only the rounds after it count, so that the choice does not favour lucky
    measurements.

    Args:
        bundle: its folder has the files, and its manifest all of the models.
        models: at least one.
        profile: of this machine; it names providers and threads, and the cost of a core-second.
        rounds: number of rounds that count; undisturbed ones if there are any.
        seconds: of each point.
        measure: measures a point.
        progress: receives the number of measured points and their total.
    """
    joules, done = stated_joules(profile.points), count(1)
    ways = {model.id: _ways(model, profile) for model in models}
    total = sum(len(each) for each in ways.values() if len(each) > 1) + rounds * len(models)
    unknown: dict[str, str] = {}
    taken: dict[str, list[Point]] = {model.id: [] for model in models}

    def points(model: Model) -> list[Point]:
        """Measures a model in each of its ways; what does not run is noted."""
        found = []
        for provider, threads in ways[model.id]:
            job = Job(str(bundle.path), Key(model.id, model.digest, provider, threads, 1), seconds, joules, alone=True)
            found.append(_least_disturbed(partial(measure, job)))
            progress(next(done), total)
        refused = [one.reason for one in found if isinstance(one, Refused)]
        if len(refused) == len(found):
            unknown[model.id] = refused[0]
        return [one for one in found if isinstance(one, Point)]

    for model in models:
        if len(ways[model.id]) > 1 and (ran := points(model)):
            leader = _fastest(_undisturbed(ran)).key
            ways[model.id] = [(leader.provider, leader.threads)]
    for _ in range(rounds):
        for model in models:
            if model.id not in unknown:
                taken[model.id] += points(model)
    return Costs({name: _cost(_undisturbed(taken[name])) for name in taken if name not in unknown}, unknown)


def stated_joules(points: Iterable[Point]) -> float:
    """Returns the stated joules of a core-second that modelled energies imply; 0 if none is modelled."""
    return next(
        (
            point.energy_mj.value / point.processor_ms
            for point in points
            if isinstance(point.energy_mj, Modelled) and point.processor_ms > 0
        ),
        0.0,
    )


def _ways(model: Model, profile: Profile) -> list[tuple[str, int]]:
    """Providers and threads that the profile has for models of this runtime; the processor if it has none."""
    is_tflite = model.runtime == "tflite"
    keys = [point.key for point in profile.points if point.key.of_one_row]
    ways = [(key.provider, key.threads) for key in keys if (key.provider == _TFLITE) == is_tflite]
    by_default = [(_TFLITE if is_tflite else CPU, threads) for threads in [key.threads for key in keys] or [1]]
    return list(dict.fromkeys(ways or by_default))


def _least_disturbed(measure: Callable[[], Point | Refused]) -> Point | Refused:
    """Repeats a measurement up to a few times while other work disturbs it; the least disturbed one counts."""
    best = measure()
    for _ in range(TRIES - 1):
        if isinstance(best, Refused) or best.waited_share <= DISTURBED:
            break
        again = measure()
        if isinstance(again, Point) and again.waited_share < best.waited_share:
            best = again
    return best


def _undisturbed(points: Sequence[Point]) -> Sequence[Point]:
    """The undisturbed points, or all points if there are none."""
    return [point for point in points if point.waited_share <= DISTURBED] or points


def _fastest(points: Sequence[Point]) -> Point:
    return quickest(points, lambda point: (point.run.p50_ms, point.key.threads))


def _cost(points: Sequence[Point]) -> Cost:
    """The median of several measurements of one way to run a model."""
    key = points[0].key
    threads = f"{key.threads or 'any'} thread{'s' if key.threads != 1 else ''}"
    return Cost(
        median(point.run.p50_ms for point in points),
        _energy([point.energy_mj for point in points]),
        f"{key.provider.removesuffix('ExecutionProvider')}, {threads}",
        max(point.waited_share for point in points),
    )


def _energy(readings: Sequence[Reading]) -> Reading:
    """The median, if all readings are of one kind."""
    for kind in (Measured, Modelled):
        alike = [one for one in readings if isinstance(one, kind)]
        if len(alike) == len(readings):
            return kind(median(one.value for one in alike), alike[0].source)
    absent = next((one for one in readings if isinstance(one, Absent)), None)
    return absent or Absent("Some of its measurements were measured, and others modelled.")
