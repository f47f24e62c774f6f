"""What each model costs on the machine that it is for, which a profile describes.

Of this very machine the profile says which ways to run a model there are, and all models are measured here and now by
the profile's own measuring, in turns: figures of another day would differ by more than the tenth that the judge asks.

Of another machine only what was measured there counts, point by point, by the models' digests; a model of the bundle
that never ran there, which the machine may be too small for, is no rival on it. Nothing is scaled from
here: int8 kernels differ between processors by several times (with VNNI or dot products, or without), so that the
ratio of two machines for one model says little of another in another format.

Latency is of one row, as the judge reads it everywhere: a batch makes a device's single request wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from msgspec import Struct

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading
from firstline_core.hardware.survey import describe_device
from firstline_core.hardware.tree import Tree
from firstline_core.profile.measure_point import Job
from firstline_core.profile.point_process import measure_in_process
from firstline_core.profile.profile import Key, Point, Profile, Refused
from firstline_core.profile.table import DISTURBED
from firstline_core.runtime.select import CPU

ROUNDS = 3
POINT_S = 1.0
TRIES = 3
"""Times that a point is measured at most, where other work disturbs it; the least disturbed counts."""
_AS_GOOD = 1.05
"""More threads have to be quicker by more than this: threads are other models' too."""
_TFLITE = "tflite"

Measure = Callable[[Job], Point | Refused]


class Target(Struct, frozen=True):
    """For whom.

    Attributes:
        machine: its name.
        here: whether it is this very machine.
    """

    machine: str
    here: bool


class Cost(Struct, frozen=True):
    """Of one row on the target.

    Attributes:
        latency_ms: median of the model and its postprocessing.
        energy_mj: of the whole query, decoding included; None where nobody looked.
        ran: provider and threads, in words.
        waited_share: of the measuring time, in which other work had the core; 0 where nobody counted.
    """

    latency_ms: float
    energy_mj: Reading | None = None
    ran: str = ""
    waited_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """By the models' ids; of each, it is either known, or said why not."""

    known: dict[str, Cost]
    unknown: dict[str, str] = field(default_factory=dict)


def target_of(profile: Profile, manifest: Manifest, tree: Tree) -> Target:
    """Whether the profile is of this machine; and if not, whether it can know any candidate.

    Args:
        profile: of the target.
        manifest: of the bundle that is compressed.
        tree: this machine's kernel files.

    Raises:
        ConfigError: another machine's, on which nothing but the bundle's own models ran.
    """
    if profile.fingerprint == describe_device(tree, tree.root).fingerprint:
        return Target(profile.machine, True)
    ran = {point.key.model_digest for point in profile.points if _single(point)}
    if ran <= {model.digest for model in manifest.models}:
        raise ConfigError(
            f"The profile is of '{profile.machine}', which is not this machine with this software, and times of one do "
            "not tell of another's. Write the candidates with --force and --out DIR, measure DIR there (edge-agent "
            "profile DIR), and give that profile, with the same data and seed. It has one row through no model but the "
            "bundle's own."
        )
    return Target(profile.machine, False)


def read_costs(models: Iterable[Model], profile: Profile) -> Costs:
    """What another machine's profile says of the models."""
    found = Costs({})
    for model in models:
        points = [point for point in profile.points if point.key.model_digest == model.digest and _single(point)]
        if points:
            found.known[model.id] = _cost([_leader(_calm(points))])
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
    """Measures every model here, each in its own best way, in turns.

    One round through all ways says which is a model's best; the figures are of the rounds after it, so that no luck
    of the choice is in them.

    Args:
        bundle: its folder has the files, and its manifest all of the models.
        models: at least one.
        profile: of this machine; it says which providers and threads there are, and what a core-second costs.
        rounds: that count; of these only what other work did not disturb, where there is such.
        seconds: of each point.
        measure: how a point is measured: by a process of its own.
        progress: told how many points are done, of how many.
    """
    joules = stated_joules(profile.points)
    found, best = Costs({}), dict[str, tuple[str, int]]()
    each = {model.id: _ways(model, profile) for model in models}
    total = sum(len(ways) for ways in each.values() if len(ways) > 1) + rounds * len(models)
    done = 0

    def point(model: Model, way: tuple[str, int]) -> Point | Refused:
        nonlocal done
        key = Key(model.id, model.digest, way[0], way[1], 1)
        measured = _least_disturbed(lambda: measure(Job(str(bundle.path), key, seconds, joules, alone=True)))
        done += 1
        progress(done, total)
        return measured

    for model in models:
        ways = each[model.id]
        if len(ways) == 1:
            best[model.id] = ways[0]
            continue
        tried = [point(model, way) for way in ways]
        ran = [one for one in tried if isinstance(one, Point)]
        if ran:
            leader = _leader(_calm(ran)).key
            best[model.id] = (leader.provider, leader.threads)
        else:
            found.unknown[model.id] = next(one.reason for one in tried if isinstance(one, Refused))
    taken: dict[str, list[Point]] = {}
    for _ in range(rounds):
        for model in models:
            if model.id not in best or model.id in found.unknown:
                continue
            one = point(model, best[model.id])
            if isinstance(one, Refused):
                found.unknown[model.id] = one.reason
            else:
                taken.setdefault(model.id, []).append(one)
    found.known.update({name: _cost(_calm(points)) for name, points in taken.items() if name not in found.unknown})
    return found


def stated_joules(points: Iterable[Point]) -> float:
    """What the machine's owner stated of a core-second, as modelled energy implies it; 0 where none is modelled."""
    return next(
        (
            point.energy_mj.value / point.processor_ms
            for point in points
            if isinstance(point.energy_mj, Modelled) and point.processor_ms > 0
        ),
        0.0,
    )


def _ways(model: Model, profile: Profile) -> list[tuple[str, int]]:
    """Providers and threads in which the profile ran models of this runtime; where none did, the processor."""
    keys = [point.key for point in profile.points if _single(point)]
    mine = [key for key in keys if (key.provider == _TFLITE) == (model.runtime == "tflite")]
    ways = [(key.provider, key.threads) for key in mine]
    others = [(_TFLITE if model.runtime == "tflite" else CPU, key.threads) for key in keys]
    return list(dict.fromkeys(ways or others or [(_TFLITE if model.runtime == "tflite" else CPU, 1)]))


def _least_disturbed(measure: Callable[[], Point | Refused]) -> Point | Refused:
    """Measures once more, up to a few times, where other work had the core."""
    best = measure()
    for _ in range(TRIES - 1):
        if isinstance(best, Refused) or best.waited_share <= DISTURBED:
            break
        again = measure()
        if isinstance(again, Point) and again.waited_share < best.waited_share:
            best = again
    return best


def _calm(points: Sequence[Point]) -> Sequence[Point]:
    """Those that other work did not disturb; all, where that is none."""
    return [point for point in points if point.waited_share <= DISTURBED] or points


def _single(point: Point) -> bool:
    return point.key.batch == 1 and point.key.condition == "warm"


def _leader(points: Sequence[Point]) -> Point:
    """The quickest way; of those that are as good, the one with the fewest threads."""
    quickest_ms = min(point.run.p50_ms for point in points)
    near = [point for point in points if point.run.p50_ms <= _AS_GOOD * quickest_ms]
    return min(near, key=lambda point: (point.key.threads or 1024, point.run.p50_ms))


def _cost(points: Sequence[Point]) -> Cost:
    """The middle of several measurements of one way."""
    key = points[0].key
    threads = f"{key.threads or 'any'} thread{'s' if key.threads != 1 else ''}"
    return Cost(
        median(point.run.p50_ms for point in points),
        _energy([point.energy_mj for point in points]),
        f"{key.provider.removesuffix('ExecutionProvider')}, {threads}",
        max(point.waited_share for point in points),
    )


def _energy(readings: Sequence[Reading]) -> Reading:
    """The middle, where all are of one kind."""
    for kind in (Measured, Modelled):
        alike = [one for one in readings if isinstance(one, kind)]
        if len(alike) == len(readings):
            return kind(median(one.value for one in alike), alike[0].source)
    absent = next((one for one in readings if isinstance(one, Absent)), None)
    return absent or Absent("Some of its measurements were measured, and others modelled.")
