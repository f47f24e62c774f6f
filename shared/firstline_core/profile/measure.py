"""A bundle's profile on this machine: which points there are, each measured by a process, written down one by one."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec.structs import replace

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.in_time import in_time
from firstline_core.hardware.survey import described
from firstline_core.hardware.tree import Tree
from firstline_core.profile.child import Job
from firstline_core.profile.need import Need, need
from firstline_core.profile.profile import LIMIT_BYTES, POINTS, Condition, Key, Point, Profile, Refused, encode
from firstline_core.profile.reading import FOLDER, read_profile
from firstline_core.profile.throttled import held_back
from firstline_core.runtime.select import CPU
from firstline_core.storage.files import write_whole

BATCHES = (1, 4, 16)
QUICK_BATCHES = (1, 8)
TOTAL_S = 60.0
QUICK_S = 12.0

_CHILD_S = 1.0
"""That a point takes beside what it is given: to start, to import, to load a small model."""
_LEAST_S, _MOST_S = 0.3, 5.0
_LIMIT_S = 120.0
_HEAT_S = 3600.0
_REASON_CHARACTERS = 500

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
        anew: also what is known already.
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
        ConfigError: a variant that the bundle does not have, a share or a time that is none, or too many points.
    """
    if not 0 <= wanted.throttled_share < 1:
        raise ConfigError(f"A share of processor time lies between 0 and 1, not at {wanted.throttled_share:g}.")
    if not 0 <= wanted.sustained_s <= _HEAT_S:
        raise ConfigError(f"Full load lasts from 0 to {_HEAT_S / 60:g} minutes, not {wanted.sustained_s / 60:g}.")
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


def measure_profile(
    bundle: Bundle,
    path: Path,
    wanted: Wanted = Wanted(),
    *,
    machine: str = "",
    progress: Progress = lambda done, total, what: None,
    may: May = lambda needed: "",
) -> Profile:
    """Measures what is not known yet, and writes the profile after each point: ended early, it goes on from there.

    Args:
        bundle: opened, so that its files are checked.
        path: of the profile; what in it fits this machine and these models stays.
        wanted: what to measure.
        machine: its name; "" for the host's.
        progress: told how many points are done, of how many, and which is next.
        may: asked before each point.

    Raises:
        DeadlineExceededError: a driver hangs.
        ConfigError: see `keys`; or the profile cannot be written, or would be larger than anybody reads.
        ProtocolError: what lies at the path is no profile.
    """
    tree = Tree(wanted.root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be made: {error.strerror}; name another place.") from error
    hardware = in_time(tree, partial(described, tree, path.parent))
    all_keys = keys(bundle.manifest, wanted, hardware.processor.usable_cores)
    found = _begun(bundle.manifest, read_profile(path), hardware.fingerprint, machine or machine_name())
    found = replace(found, hardware=hardware)
    found = replace(
        found, points=tuple(one for one in found.points if not (one.key in all_keys and _is_stale(one, wanted)))
    )
    left = sorted(set(all_keys) - {point.key for point in found.points}, key=all_keys.index)
    seconds = _seconds(len(all_keys), wanted)
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
        measured = Refused(key, model.runtime, why_not[:_REASON_CHARACTERS]) if why_not else in_child(job)
        refused = tuple(one for one in found.refused if one.key != key)
        if isinstance(measured, Point):
            measured = replace(measured, heat_limit_s=job.heat_s)
            found = replace(found, points=(*found.points, measured), refused=refused)
        else:
            found = replace(found, refused=(*refused, measured))
        found = replace(found, made_s=round(time.time(), 3), agent_version=version("firstline"))
        found = _bounded(found, all_keys)
        _write(path, found)
    progress(len(left), len(left), "")
    if not left:
        _write(path, found)
    return found


def _is_stale(point: Point, wanted: Wanted) -> bool:
    """It is wanted anew, of another share of processor time, or after another time of full load."""
    if point.key.condition == "emulated":
        return wanted.anew or point.processor_share != wanted.throttled_share
    if point.key.condition == "sustained" and point.heat_limit_s != wanted.sustained_s:
        # Where heat had settled before either limit, the other one would have changed nothing.
        return wanted.anew or point.heated_s >= min(point.heat_limit_s, wanted.sustained_s)
    return wanted.anew


def _beside(manifest: Manifest, key: Key, among: Sequence[Key]) -> str:
    """The model whose queries come between this one's: of those that are measured, the full one, else the first."""
    others = [model.id for model in manifest.models if model.id in {one.variant for one in among} - {key.variant}]
    full = manifest.full
    return full.id if full is not None and full.id in others else next(iter(others), "")


def _begun(manifest: Manifest, before: Profile | None, fingerprint: str, machine: str) -> Profile:
    """What of an earlier profile still holds."""
    empty = Profile(manifest.name, manifest.version, machine, fingerprint)
    if before is None or before.fingerprint != fingerprint:
        return empty
    digests = {model.digest for model in manifest.models}
    points = tuple(point for point in before.points if point.key.model_digest in digests)
    refused = tuple(one for one in before.refused if one.key.model_digest in digests)
    return replace(empty, points=points, refused=refused, made_s=before.made_s, agent_version=before.agent_version)


def _bounded(found: Profile, wanted: Collection[Key]) -> Profile:
    """Without the oldest points beside what is wanted, where all together are more than a reader takes.

    Raises:
        ConfigError: what is wanted is more than that by itself.
    """
    found = replace(found, refused=found.refused[-POINTS:])  # those that are wanted come last
    spare = [point for point in found.points if point.key not in wanted]
    while len(found.points) > POINTS or len(encode(found)) + 1 > LIMIT_BYTES:
        if not spare:
            raise ConfigError(f"That would be more than {LIMIT_BYTES >> 20} MiB; name fewer threads or batches.")
        oldest = spare.pop(0)
        found = replace(found, points=tuple(point for point in found.points if point is not oldest))
    return found


def _seconds(points: int, wanted: Wanted) -> float:
    return min(max(wanted.total_s / max(points, 1) - _CHILD_S, _LEAST_S), _MOST_S)


def in_child(job: Job) -> Point | Refused:
    """Measures one point by a process of its own; whatever ends that process is a reason."""
    runtime = "tflite" if job.key.provider == "tflite" else "onnxruntime"
    limit_s = (_LIMIT_S + 10 * job.seconds) / job.share + job.heat_s
    child = subprocess.Popen(
        [sys.executable, "-m", "firstline_core.profile.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    try:
        with held_back(child, job.share):
            said, complained = child.communicate(msgspec.json.encode(job), timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Refused(job.key, runtime, f"It was not measured within {limit_s:.0f} s.")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode:
        lines = complained.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines and child.returncode > 0 else f"Its process ended with {_ending(child.returncode)}."
        return Refused(job.key, runtime, reason[:_REASON_CHARACTERS])
    try:
        return msgspec.json.decode(said, type=Point)
    except msgspec.MsgspecError as error:
        return Refused(job.key, runtime, f"What its process said is no point: {error}."[:_REASON_CHARACTERS])


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _write(path: Path, found: Profile) -> None:
    try:
        write_whole(path, encode(found) + b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error
