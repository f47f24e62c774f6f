"""A bundle's profile on this machine: which points there are, each measured by a process, written down one by one."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from msgspec.structs import replace

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.in_time import in_time
from firstline_core.hardware.survey import described
from firstline_core.hardware.tree import Tree
from firstline_core.profile.child import Job
from firstline_core.profile.energy import as_stated
from firstline_core.profile.front import accuracies
from firstline_core.profile.keeping import added, bounded, changed
from firstline_core.profile.need import Need, need
from firstline_core.profile.profile import POINTS, REASON_CHARACTERS, Condition, Key, Point, Profile, Refused
from firstline_core.profile.reading import FOLDER
from firstline_core.profile.spawned import in_child
from firstline_core.runtime.select import CPU
from firstline_core.telemetry.logs import logger

log = logger(__name__)

BATCHES = (1, 4, 16)
QUICK_BATCHES = (1, 8)
TOTAL_S = 60.0
QUICK_S = 12.0

_LONGER = 2.0
"""Times as long as a point was given before, for which it is measured again."""
_CHILD_S = 1.0
"""That a point takes beside what it is given: to start, to import, to load a small model."""
_LEAST_S, _MOST_S = 0.3, 5.0
_HEAT_S = 3600.0
_JOULES_PER_CORE_S = 1e4
"""More than any core takes."""

Progress = Callable[[int, int, str], None]
May = Callable[[Need], str]
"""Returns once a point may be measured, with ""; or why it never may, in a sentence."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a bundle is measured.

    Args:
        threads: that one run may use.
        batches: rows of a query.
        providers: ONNX Runtime's, each by itself; TFLite models run with their interpreter alone.
        variants: ids of models; none for all, the full model among them.
        total_s: for all points together, about.
        alone: nothing else runs here, so that it is measured with the priority that the agent will have.
        anew: also what is known already, which stays until the new is there.
        joules_per_core_s: as the machine's owner states it; 0 for not at all.
        throttled_share: of processor time, above 0 and below 1: of queries of one sample also `emulated`; 0: not.
        sustained_s: after at most so long a full load, of queries of one sample also `sustained`; 0: not.
        root: where the kernel's files begin.
    """

    threads: Sequence[int] = ()
    batches: Sequence[int] = ()
    providers: Sequence[str] = (CPU,)
    variants: Sequence[str] = ()
    total_s: float = TOTAL_S
    alone: bool = False
    anew: bool = False
    joules_per_core_s: float = 0.0
    throttled_share: float = 0.0
    sustained_s: float = 0.0
    root: Path = Path("/")


def profile_path(folder: Path, bundle: str, machine: str) -> Path:
    """Where the profile of one bundle on one machine lies, beside the bundle."""
    return folder / FOLDER / f"{bundle}@{machine}.json"


def machine_name() -> str:
    """The host's, as far as a name may be written so."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", platform.node()).strip("._-")[:64] or "machine"


def keys(manifest: Manifest, wanted: Wanted, cores: float) -> list[Key]:
    """All points, the edge variants' first.

    Raises:
        ConfigError: a variant that the bundle does not have, a share, time or cost that is none, or too many points.
    """
    check_share(wanted.throttled_share)
    if not 0 <= wanted.sustained_s <= _HEAT_S:
        raise ConfigError(f"Full load lasts from 0 to {_HEAT_S / 60:g} minutes, not {wanted.sustained_s / 60:g}.")
    if not 0 <= wanted.joules_per_core_s <= _JOULES_PER_CORE_S:
        said = f"{wanted.joules_per_core_s:g}"
        raise ConfigError(f"A core takes from 0 to {_JOULES_PER_CORE_S:g} joules in a second, not {said}.")
    models: list[Model] = list(manifest.models)
    unknown = sorted(set(wanted.variants) - {model.id for model in models})
    if unknown:
        there = ", ".join(model.id for model in models)
        raise ConfigError(f"Bundle '{manifest.name}' has no model '{unknown[0]}'; it has: {there}.")
    threads = list(dict.fromkeys(wanted.threads or (1, max(int(cores), 1))))
    batches = list(dict.fromkeys(wanted.batches or BATCHES))
    conditions: list[tuple[Condition, Sequence[int]]] = [("warm", batches)]
    if wanted.throttled_share:
        conditions.append(("emulated", (1,)))
    if wanted.sustained_s:
        conditions.append(("sustained", (1,)))  # the last, so that what is heated is not measured warm
    found = [
        Key(model.id, model.digest, provider, count, batch, condition)
        for condition, of_batches in conditions
        for model in models
        if not wanted.variants or model.id in wanted.variants
        for provider in (wanted.providers if model.runtime == "onnx" else ("tflite",))
        for count in threads
        for batch in of_batches
    ]
    if len(found) > POINTS:
        raise ConfigError(f"That would be {len(found)} points, of at most {POINTS}; name fewer threads or batches.")
    return found


def check_share(throttled_share: float) -> None:
    """Raises `ConfigError` where it is no share of processor time; 0 is none, and allowed."""
    if not 0 <= throttled_share < 1:
        raise ConfigError(f"A share of processor time lies between 0 and 1, not at {throttled_share:g}.")


def measure_profile(
    bundle: Bundle,
    path: Path,
    wanted: Wanted = Wanted(),
    *,
    machine: str = "",
    progress: Progress = lambda done, total, what: None,
    may: May = lambda needed: "",
    warn: Callable[[str], None] = lambda sentence: log.warning("a profile is set aside", why=sentence),
) -> Profile:
    """Measures what is not known yet, or less carefully than wanted; ended early, it goes on from there.

    Each point is written down as soon as it is measured, in the place of the one before, beside what others have
    measured meanwhile.

    Args:
        bundle: opened, so that its files are checked.
        path: of the profile; what in it fits this machine and these models stays.
        wanted: what to measure.
        machine: its name; "" for the host's.
        progress: told how many points are done, of how many, and which is next.
        may: asked before each point.
        warn: see `keeping.changed`.

    Raises:
        DeadlineExceededError: a driver hangs.
        ConfigError: see `keys`; or the profile cannot be written, or would be larger than anybody reads.
    """
    tree = Tree(wanted.root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be made: {error.strerror}; name another place.") from error
    hardware = in_time(tree, partial(described, tree, path.parent))
    all_keys = keys(bundle.manifest, wanted, hardware.processor.usable_cores)
    begun = partial(_begun, bundle.manifest, hardware, machine or machine_name())

    def grown(known: Profile, measured: Point | Refused, before: Profile | None) -> Profile:
        there = before is not None and before.fingerprint == known.fingerprint
        made = replace(added(begun(before if there else known), measured), made_s=round(time.time(), 3))
        return bounded(replace(made, agent_version=version("firstline")), all_keys)

    found = changed(path, lambda before: _asked_for(begun(before), all_keys, wanted), warn)
    seconds = _seconds(len(all_keys), wanted)
    left = _left(found, all_keys, wanted, seconds)
    for done, key in enumerate(left):
        condition = "" if key.condition == "warm" else f", {key.condition}"
        progress(done, len(left), f"{key.variant}, threads {key.threads}, batch {key.batch}{condition}")
        model = next(one for one in bundle.manifest.models if one.id == key.variant)
        job = Job(
            str(bundle.path),
            key,
            seconds,
            wanted.joules_per_core_s,
            str(wanted.root),
            wanted.alone,
            beside=_beside(bundle.manifest, key, all_keys),
            share=wanted.throttled_share if key.condition == "emulated" else 1.0,
            heat_s=wanted.sustained_s if key.condition == "sustained" else 0.0,
        )
        why_not = may(need(key, model, found, hardware.processor.usable_cores))
        measured = Refused(key, model.runtime, why_not[:REASON_CHARACTERS]) if why_not else in_child(job)
        found = changed(path, partial(grown, found, measured), warn)
    progress(len(left), len(left), "")
    return found


def _asked_for(found: Profile, all_keys: Sequence[Key], wanted: Wanted) -> Profile:
    """With what is stated now, and with what is to be measured anew marked as that: a restart goes on with it."""
    points = tuple(
        replace(one, energy_mj=as_stated(one.energy_mj, wanted.joules_per_core_s, one.processor_ms))
        for one in found.points
    )
    anew = {*found.outdated, *(all_keys if wanted.anew else ())}
    return replace(found, points=points, outdated=tuple(one.key for one in points if one.key in anew))


def _left(found: Profile, all_keys: Sequence[Key], wanted: Wanted, seconds: float) -> list[Key]:
    """What of it is not known, or not as it is wanted."""
    known = {one.key: one for one in found.points if one.key not in found.outdated}
    return [key for key in all_keys if key not in known or not _is_as(known[key], wanted, seconds)]


def _is_as(point: Point, wanted: Wanted, seconds: float) -> bool:
    """Whether it was measured as it is wanted, or more carefully."""
    if (wanted.alone and not point.alone) or seconds >= _LONGER * point.given_s:
        return False
    if point.key.condition == "emulated":
        return point.processor_share == wanted.throttled_share
    if point.key.condition == "sustained" and point.heat_limit_s != wanted.sustained_s:
        # Where heat had settled before either limit, the other one would have changed nothing.
        return point.heated_s < min(point.heat_limit_s, wanted.sustained_s)
    return True


def _beside(manifest: Manifest, key: Key, among: Sequence[Key]) -> str:
    """The model whose queries come between this one's: the full one, one that is measured too, any; "" for none."""
    others = [model.id for model in manifest.models if model.id != key.variant]
    if manifest.full is not None and manifest.full.id in others:
        return manifest.full.id
    measured = {one.variant for one in among}
    return next((other for other in others if other in measured), next(iter(others), ""))


def _begun(manifest: Manifest, hardware: Catalogue, machine: str, before: Profile | None) -> Profile:
    """What of an earlier profile still holds."""
    empty = Profile(
        manifest.name,
        manifest.version,
        machine,
        hardware.fingerprint,
        hardware=hardware,
        accuracy=accuracies(manifest),
    )
    if before is None or before.fingerprint != hardware.fingerprint:
        return empty
    digests = {model.digest for model in manifest.models}
    points = tuple(point for point in before.points if point.key.model_digest in digests)
    refused = tuple(one for one in before.refused if one.key.model_digest in digests)
    outdated = tuple(key for key in before.outdated if key.model_digest in digests)
    made = {"made_s": before.made_s, "agent_version": before.agent_version}
    return replace(empty, points=points, refused=refused, outdated=outdated, **made)


def _seconds(points: int, wanted: Wanted) -> float:
    return min(max(wanted.total_s / max(points, 1) - _CHILD_S, _LEAST_S), _MOST_S)
