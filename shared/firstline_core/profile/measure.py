"""The points of a bundle's profile on this machine, and which of them are left to measure."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, listed
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.readings import measured
from firstline_core.hardware.survey import describe_device
from firstline_core.profile.files import update_profile, with_result, within_limits
from firstline_core.profile.measure_point import Job
from firstline_core.profile.meters import as_stated
from firstline_core.profile.point_process import measure_in_process
from firstline_core.profile.profile import POINTS, REASON_CHARACTERS, Condition, Key, Point, Profile, Refused
from firstline_core.profile.summary import accuracies
from firstline_core.runtime.select import CPU
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.logs import logger

log = logger(__name__)

LOADING_COPIES = 3
"""While ONNX Runtime loads a model, memory holds the file, the parsed model and the prepared weights."""
BATCHES = (1, 4, 16)
QUICK_BATCHES = (1, 8)
TOTAL_S = 60.0
QUICK_S = 12.0

_LONGER = 2.0
"""A point is measured again if it is given at least this many times as long."""
_PROCESS_S = 1.0
"""Time of a point beyond what it is given: to start, to import, to load a small model."""
_SHORTEST_S, _LONGEST_S = 0.3, 5.0
_MAX_HEAT_S = 3600.0
_MAX_JOULES_PER_CORE_S = 1e4

Progress = Callable[[int, int, str], None]


class Need(Struct, frozen=True):
    """Needs of one point.

    Attributes:
        point: its name.
        memory_bytes: to load the model.
        cores: that its runs keep busy.
        heats: whether it is measured hot and does not wait to cool.
    """

    point: str
    memory_bytes: float
    cores: float
    heats: bool = False


def need(key: Key, model: Model, profile: Profile | None, usable_cores: float) -> Need:
    """Returns the needs of a point.

    Args:
        key: of the point.
        model: that it measures.
        profile: earlier points; None if there are none.
        usable_cores: of the machine.
    """
    cores = min(float(key.threads), usable_cores) if key.threads else usable_cores
    name = f"{key.variant}, {key.provider}, threads {key.threads}, batch {key.batch}, {key.condition}"
    return Need(name, loading_bytes(model, profile), cores, key.condition == "sustained")


def loading_bytes(model: Model, profile: Profile | None) -> float:
    """Returns the memory that loading a model takes: the measured peak, else an estimate by its files."""
    points = profile.points if profile is not None else ()
    own = (point for point in points if point.key.model_digest == model.digest and point.key.of_one_row)
    peaks = (measured(point.peak_memory_bytes) for point in own)
    return max((peak for peak in peaks if peak is not None), default=LOADING_COPIES * files_bytes(model))


def files_bytes(model: Model) -> int:
    """Returns the size of a model's artefacts together."""
    return sum(artefact.size_bytes for artefact in model.artefacts)


Permit = Callable[[Need], str]
"""Returns "" once a point may be measured; or at once why it never may be, in a sentence."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Which points of a bundle are measured, and how.

    Args:
        threads: threads of a run; empty for 1 and all cores.
        batches: rows of a query; empty for 1, 4 and 16, or for 1 and 8 if it is quick.
        providers: ONNX Runtime's, each by itself; TFLite models run with their interpreter only.
        variants: ids of models; empty for all, the full model included.
        quick: fewer batches, and a fifth of the time.
        total_s: time for all points together, about; None for a minute, or a fifth of it.
        alone: nothing else runs here; measure at the priority of a service.
        again: measure known points again; they stay until their successors are there.
        joules_per_core_s: stated energy of a busy core; 0 if not stated.
        sustained_s: longest full load before additional `sustained` points; 0 for none.
        root: where the kernel's files begin.
    """

    threads: Sequence[int] = ()
    batches: Sequence[int] = ()
    providers: Sequence[str] = (CPU,)
    variants: Sequence[str] = ()
    quick: bool = False
    total_s: float | None = None
    alone: bool = False
    again: bool = False
    joules_per_core_s: float = 0.0
    sustained_s: float = 0.0
    root: Path = Path("/")


def machine_name() -> str:
    """Returns the host's name, as far as it is a valid name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", platform.node()).strip("._-")[:64] or "machine"


def profile_keys(manifest: Manifest, options: ProfileOptions, cores: float) -> list[Key]:
    """Returns all points, the edge variants' first.

    Raises:
        ConfigError: an unknown variant, a time or cost out of range, or too many points.
    """
    if not 0 <= options.sustained_s <= _MAX_HEAT_S:
        raise ConfigError(
            f"The time at full load (--sustained) is {options.sustained_s / 60:g} minutes; use 0 to "
            f"{_MAX_HEAT_S / 60:g}."
        )
    if not 0 <= options.joules_per_core_s <= _MAX_JOULES_PER_CORE_S:
        stated = f"{options.joules_per_core_s:g}"
        raise ConfigError(f"A core takes from 0 to {_MAX_JOULES_PER_CORE_S:g} joules in a second, not {stated}.")
    models: list[Model] = list(manifest.models)
    if unknown := sorted(set(options.variants) - {model.id for model in models}):
        known = listed(unknown[0], (model.id for model in models), "it has:")
        raise ConfigError(f"Bundle '{manifest.name}' has no model '{unknown[0]}'{known}")
    threads = list(dict.fromkeys(options.threads or (1, max(int(cores), 1))))
    batches = list(dict.fromkeys(options.batches or (QUICK_BATCHES if options.quick else BATCHES)))
    conditions: list[tuple[Condition, Sequence[int]]] = [("warm", batches)]
    if options.sustained_s:
        conditions.append(("sustained", (1,)))  # last, so that warm points are not measured on a heated machine
    keys = [
        Key(model.id, model.digest, provider, count, batch, condition)
        for condition, batches_of_condition in conditions
        for model in models
        if not options.variants or model.id in options.variants
        for provider in (options.providers if model.runtime == "onnx" else ("tflite",))
        for count in threads
        for batch in (batches_of_condition if model.batch is None else (model.batch,))
    ]
    if len(keys) > POINTS:
        raise ConfigError(f"That would be {len(keys)} points, of at most {POINTS}; name fewer threads or batches.")
    return keys


def _warn_in_log(sentence: str) -> None:
    log.warning("profile set aside", why=sentence)


class ProfileSession:
    """Measures the points of a profile that are missing, or that were measured less carefully than wanted.

    Each point is written as soon as it is measured, and points that other processes write meanwhile are kept. A session
    that was ended early is continued by the next one.

    Args:
        bundle: opened, so that its files are checked.
        path: of the profile; its points of this machine and these models stay.
        options: which points.
        machine: name of the machine; "" for the host's.
        warn: see `files.update_profile`.

    Attributes:
        profile: the profile as it is in the file now.
        keys: all points that are wanted.
        jobs: the points that are left to measure, with what each needs.

    Raises:
        DeadlineExceededError: a driver hangs.
        ConfigError: see `profile_keys`; or the profile cannot be written or would be too large.
    """

    def __init__(
        self,
        bundle: Bundle,
        path: Path,
        options: ProfileOptions,
        *,
        machine: str = "",
        warn: Callable[[str], None] = _warn_in_log,
    ) -> None:
        tree = Tree(options.root)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path.parent} cannot be made: {system_reason(error)}; name another place.") from error
        self._bundle, self._path, self._options, self._warn = bundle, path, options, warn
        self._hardware = read_in_time(tree, partial(describe_device, tree, path.parent))
        self._machine = machine or machine_name()
        self.keys = profile_keys(bundle.manifest, options, self._hardware.processor.usable_cores)
        self.profile = update_profile(path, self._prepared, warn)
        total_s = options.total_s if options.total_s is not None else QUICK_S if options.quick else TOTAL_S
        seconds = min(max(total_s / max(len(self.keys), 1) - _PROCESS_S, _SHORTEST_S), _LONGEST_S)
        known = {one.key: one for one in self.profile.points if one.key not in self.profile.outdated}
        left = [key for key in self.keys if key not in known or not _is_good_enough(known[key], options, seconds)]
        self.jobs = [(self._job(key, seconds), self._need(key)) for key in left]

    def record(self, result: Point | Refused) -> None:
        """Writes a result."""

        def changed(before: Profile | None) -> Profile:
            is_same_machine = before is not None and before.fingerprint == self.profile.fingerprint
            start = self._begun(before if is_same_machine else self.profile)
            made = replace(with_result(start, result), made_s=round(time.time(), 3))
            return within_limits(replace(made, agent_version=version("firstline")), self.keys)

        self.profile = update_profile(self._path, changed, self._warn)

    def refuse(self, job: Job, reason: str) -> None:
        """Writes that a point is not measured, and why."""
        runtime = self._model(job.key).runtime
        self.record(Refused(job.key, runtime, reason[:REASON_CHARACTERS]))

    def _model(self, key: Key) -> Model:
        return next(model for model in self._bundle.manifest.models if model.id == key.variant)

    def _need(self, key: Key) -> Need:
        return need(key, self._model(key), self.profile, self._hardware.processor.usable_cores)

    def _job(self, key: Key, seconds: float) -> Job:
        options = self._options
        return Job(
            str(self._bundle.path),
            key,
            seconds,
            options.joules_per_core_s,
            str(options.root),
            options.alone,
            heat_s=options.sustained_s if key.condition == "sustained" else 0.0,
        )

    def _begun(self, before: Profile | None) -> Profile:
        """The still valid part of an earlier profile."""
        manifest = self._bundle.manifest
        empty = Profile(
            manifest.name,
            manifest.version,
            self._machine,
            self._hardware.fingerprint,
            hardware=self._hardware,
            accuracy=accuracies(manifest),
        )
        if before is None or before.fingerprint != self._hardware.fingerprint:
            return empty
        digests = {model.digest for model in manifest.models}
        return replace(
            empty,
            points=tuple(point for point in before.points if point.key.model_digest in digests),
            refused=tuple(one for one in before.refused if one.key.model_digest in digests),
            outdated=tuple(key for key in before.outdated if key.model_digest in digests),
            made_s=before.made_s,
            agent_version=before.agent_version,
        )

    def _prepared(self, before: Profile | None) -> Profile:
        """With the stated costs, and with the points to measure again marked, so that a restart continues with them."""
        profile, stated = self._begun(before), self._options.joules_per_core_s
        points = tuple(
            replace(one, energy_mj=as_stated(one.energy_mj, stated, one.processor_ms)) for one in profile.points
        )
        outdated = {*profile.outdated, *(self.keys if self._options.again else ())}
        return replace(profile, points=points, outdated=tuple(one.key for one in points if one.key in outdated))


def measure_profile(
    bundle: Bundle,
    path: Path,
    options: ProfileOptions = ProfileOptions(),
    *,
    machine: str = "",
    progress: Progress = lambda done, total, what: None,
    permit: Permit = lambda needed: "",
    warn: Callable[[str], None] = _warn_in_log,
) -> Profile:
    """Measures what is missing, see `ProfileSession`.

    Args:
        bundle: opened, so that its files are checked.
        path: of the profile.
        options: which points.
        machine: name of the machine; "" for the host's.
        progress: receives the number of measured points, their total, and the next one.
        permit: called before each point.
        warn: see `files.update_profile`.

    Raises:
        DeadlineExceededError: a driver hangs.
        ConfigError: see `ProfileSession`.
    """
    session = ProfileSession(bundle, path, options, machine=machine, warn=warn)
    for done, (job, needed) in enumerate(session.jobs):
        key = job.key
        condition = "" if key.condition == "warm" else f", {key.condition}"
        progress(done, len(session.jobs), f"{key.variant}, threads {key.threads}, batch {key.batch}{condition}")
        if why_not := permit(needed):
            session.refuse(job, why_not)
        else:
            session.record(measure_in_process(job))
    progress(len(session.jobs), len(session.jobs), "")
    return session.profile


def _is_good_enough(point: Point, options: ProfileOptions, seconds: float) -> bool:
    """Whether a point was measured as it is wanted, or more carefully."""
    if (options.alone and not point.alone) or seconds >= _LONGER * point.given_s:
        return False
    if point.key.condition == "sustained" and point.heat_limit_s != options.sustained_s:
        # If the temperature had settled before either limit, the other limit would have changed nothing.
        return point.heated_s < min(point.heat_limit_s, options.sustained_s)
    return True
