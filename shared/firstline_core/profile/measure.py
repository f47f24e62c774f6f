"""Measures the points of a bundle's profile on this machine: the one way for agents and command lines."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.readings import measured
from firstline_core.hardware.survey import describe_device
from firstline_core.profile.files import update_profile, with_result
from firstline_core.profile.profile import POINTS, REASON_CHARACTERS, Point, PointKey, Profile, RefusedPoint
from firstline_core.profile.summary import accuracies
from firstline_core.runtime.child import ChildFailed, Interrupted, run_python
from firstline_core.runtime.select import CPU, RUNTIMES
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.logs import logger

log = logger(__name__)

LOADING_COPIES = 3
"""While ONNX Runtime loads a model, memory holds the file, the parsed model and the prepared weights."""
BATCHES = (1, 4, 16)
QUICK_BATCHES = (1, 8)
TOTAL_S = 60.0
QUICK_S = 12.0

_PROCESS_S = 1.0
"""Time of a point beyond what it is given: to start, to import, to load a small model."""
_SHORTEST_S, _LONGEST_S = 0.3, 5.0
_MAX_HEAT_S = 3600.0
_MAX_JOULES_PER_CORE_S = 1e4
_LIMIT_S = 120.0
_TRIES = 3
"""Of a point that the gate interrupts."""

Progress = Callable[[int, int, str], None]


class Need(Struct, frozen=True):
    """Needs of one point.

    Attributes:
        memory_bytes: to load the model.
        cores: that its runs keep busy.
    """

    memory_bytes: float
    cores: float


class Gate:
    """Decides when the machine can spare a measurement; called in the thread that measures. Admits every point."""

    def wait(self, needed: Need) -> str:
        """Returns "" once a point may begin, or at once why it never may, in a sentence."""
        return ""

    def must_end(self) -> str:
        """Returns why the point that is being measured has to end now; "" if it may continue."""
        return ""


def need(key: PointKey, model: Model, profile: Profile | None, usable_cores: float) -> Need:
    """Returns the needs of a point.

    Args:
        key: of the point.
        model: that it measures.
        profile: earlier points; None if there are none.
        usable_cores: of the machine.
    """
    cores = min(float(key.threads), usable_cores) if key.threads else usable_cores
    return Need(loading_bytes(model, profile), cores)


def loading_bytes(model: Model, profile: Profile | None) -> float:
    """Returns the memory that loading a model takes: the measured peak, else an estimate by its files."""
    points = profile.points if profile is not None else ()
    own = (point for point in points if point.key.model_digest == model.digest and point.key.batch == 1)
    peaks = (measured(point.peak_memory_bytes) for point in own)
    return max((peak for peak in peaks if peak is not None), default=LOADING_COPIES * files_bytes(model))


def files_bytes(model: Model) -> int:
    """Returns the size of a model's artefacts together."""
    return sum(artefact.size_bytes for artefact in model.artefacts)


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Which points of a bundle are measured, and how.

    Args:
        threads: threads of a run; empty for 1, all cores, and `own_threads`.
        own_threads: threads of a run in the agent of this machine, as its settings state.
        batches: rows of a query; empty for 1, 4 and 16, or for 1 and 8 if it is quick.
        providers: ONNX Runtime's, each by itself; TFLite models run with their interpreter only.
        variants: ids of models; empty for all, the full model included.
        quick: fewer batches, and a fifth of the time.
        total_s: time for all points together, about; None for a minute, or a fifth of it.
        alone: nothing else runs here; measure at the priority of a service.
        again: also measure known points; they stay until their successors are there.
        joules_per_core_s: stated energy of a busy core; 0 if not stated.
        power_rails: stated rails of the whole device; empty for the known ones.
        sustained_s: full load before additional points of a hot machine, with one row a query; 0 for none.
        root: where the kernel's files begin.
    """

    threads: Sequence[int] = ()
    own_threads: int = 1
    batches: Sequence[int] = ()
    providers: Sequence[str] = (CPU,)
    variants: Sequence[str] = ()
    quick: bool = False
    total_s: float | None = None
    alone: bool = False
    again: bool = False
    joules_per_core_s: float = 0.0
    power_rails: tuple[str, ...] = ()
    sustained_s: float = 0.0
    root: str = "/"

    def seconds(self, points: int) -> float:
        """Returns the time that each point is given."""
        total_s = self.total_s if self.total_s is not None else QUICK_S if self.quick else TOTAL_S
        return min(max(total_s / max(points, 1) - _PROCESS_S, _SHORTEST_S), _LONGEST_S)

    def heat_s(self, key: PointKey) -> float:
        """Returns the time at full load before a point."""
        return self.sustained_s if key.condition == "sustained" else 0.0


class Job(Struct, frozen=True):
    """A point for a process to measure.

    Attributes:
        bundle: its folder, whose files were checked.
        seconds: time to measure, about, beyond loading the model and a few runs.
        options: how it is measured.
    """

    bundle: str
    key: PointKey
    seconds: float
    options: ProfileOptions = ProfileOptions()


def machine_name() -> str:
    """Returns the host's name, as far as it is a valid name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", platform.node()).strip("._-")[:64] or "machine"


def profile_keys(manifest: Manifest, options: ProfileOptions, cores: float) -> list[PointKey]:
    """Returns all points, the edge variants' first.

    Raises:
        ConfigError: an unknown variant, a time or cost out of range, or too many points.
    """
    if not 0 <= options.sustained_s <= _MAX_HEAT_S:
        minutes = f"{options.sustained_s / 60:g}"
        raise ConfigError(f"The time at full load (--sustained) is {minutes} minutes; use 0 to {_MAX_HEAT_S / 60:g}.")
    if not 0 <= options.joules_per_core_s <= _MAX_JOULES_PER_CORE_S:
        stated = f"{options.joules_per_core_s:g}"
        raise ConfigError(f"A core takes from 0 to {_MAX_JOULES_PER_CORE_S:g} joules in a second, not {stated}.")
    wanted = {manifest.model(id_).id for id_ in options.variants}
    threads = list(dict.fromkeys(options.threads or (1, max(int(cores), 1), options.own_threads)))
    batches = list(dict.fromkeys(options.batches or (QUICK_BATCHES if options.quick else BATCHES)))
    keys = [
        PointKey(model.id, model.digest, provider, count, batch)
        for model in manifest.models
        if not wanted or model.id in wanted
        for provider in RUNTIMES[model.runtime].providers(options.providers)
        for count in threads
        for batch in (batches if model.batch is None else (model.batch,))
    ]
    if options.sustained_s:  # last, so that warm points are not measured on a heated machine
        keys += dict.fromkeys(replace(key, batch=1, condition="sustained") for key in keys)
    if len(keys) > POINTS:
        raise ConfigError(f"That would be {len(keys)} points, of at most {POINTS}; name fewer threads or batches.")
    return keys


def _warn_in_log(sentence: str) -> None:
    log.warning("profile set aside", why=sentence)


def measure_profile(
    bundle: Bundle,
    path: Path,
    options: ProfileOptions = ProfileOptions(),
    *,
    machine: str = "",
    gate: Gate = Gate(),  # noqa: B008 (has no state)
    progress: Progress = lambda done, total, what: None,
    warn: Callable[[str], None] = _warn_in_log,
) -> Profile:
    """Measures the missing points of a profile, each in a process of its own; blocks.

    Each point is written as soon as it is measured, and points that other processes write meanwhile are kept. A
    measurement that was ended early is continued by the next one.

    Args:
        bundle: opened, so that its files are checked.
        path: of the profile; its points of this machine and these models stay.
        options: which points.
        machine: name of the machine; "" for the host's.
        gate: admits each point, and may interrupt it. An exception that it raises ends the measurement.
        progress: receives the number of measured points, their total, and the next one.
        warn: see `files.update_profile`.

    Returns:
        The profile as it is in the file now.

    Raises:
        DeadlineExceededError: a driver hangs.
        ConfigError: see `profile_keys`; or the profile cannot be written.
    """
    tree, manifest = Tree(Path(options.root)), bundle.manifest
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be made: {system_reason(error)}; name another place.") from error
    hardware = read_in_time(tree, partial(describe_device, tree, path.parent))
    empty = Profile(
        manifest.name,
        manifest.version,
        machine or machine_name(),
        hardware.fingerprint,
        hardware=hardware,
        accuracy=accuracies(manifest),
    )
    cores = hardware.processor.usable_cores
    keys = profile_keys(manifest, options, cores)
    profile = update_profile(path, lambda before: _begun(empty, before, manifest), warn)
    heated_s = {} if options.again else {point.key: point.heated_s for point in profile.points}
    left, seconds = [key for key in keys if heated_s.get(key) != options.heat_s(key)], options.seconds(len(keys))
    for done, key in enumerate(left):
        progress(done, len(left), f"{key.variant}, {key.describe()}")
        needed = need(key, manifest.model(key.variant), profile, cores)
        result = _result(Job(str(bundle.path), key, seconds, options), needed, gate)
        made = replace(empty, made_s=round(time.time(), 3), agent_version=version("firstline"))
        profile = update_profile(path, partial(_extended, made, result=result, manifest=manifest), warn)
    progress(len(left), len(left), "")
    return profile


def _begun(empty: Profile, before: Profile | None, manifest: Manifest) -> Profile:
    """Returns the still valid part of an earlier profile."""
    if before is None or before.fingerprint != empty.fingerprint:
        return empty
    digests = {model.digest for model in manifest.models}
    return replace(
        empty,
        points=tuple(point for point in before.points if point.key.model_digest in digests),
        refused=tuple(one for one in before.refused if one.key.model_digest in digests),
        made_s=empty.made_s or before.made_s,
        agent_version=empty.agent_version or before.agent_version,
    )


def _extended(made: Profile, before: Profile | None, *, result: Point | RefusedPoint, manifest: Manifest) -> Profile:
    return with_result(_begun(made, before, manifest), result)


def _result(job: Job, needed: Need, gate: Gate) -> Point | RefusedPoint:
    """Measures a point; one that is interrupted is repeated, and after the last try it is refused."""
    why_not = ""
    for _ in range(_TRIES):
        if why_not := gate.wait(needed):
            break
        try:
            return measure_in_process(job, gate.must_end)
        except ChildFailed as error:
            why_not = str(error)
            break
        except Interrupted as error:
            log.info("profile point interrupted", variant=job.key.variant, point=job.key.describe(), why=str(error))
            why_not = f"It was ended {_TRIES} times: {error}."
    return RefusedPoint(job.key, why_not[:REASON_CHARACTERS])


def measure_in_process(job: Job, must_end: Callable[[], str]) -> Point:
    """Measures one point in a process of its own; blocks.

    Args:
        job: the point.
        must_end: see `run_python`.

    Raises:
        ChildFailed: it could not be measured.
        Interrupted: it had to end.
    """
    output = run_python(
        ("-m", "firstline_core.profile.measure_point"),
        msgspec.json.encode(job),
        limit_s=_LIMIT_S + 10 * job.seconds + job.options.heat_s(job.key),
        must_end=must_end,
    )
    try:
        return msgspec.json.decode(output, type=Point)
    except msgspec.MsgspecError as error:
        raise ChildFailed(f"The output of its process is no point: {error}.") from error
