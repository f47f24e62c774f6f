"""`edge-agent profile`: measures the cost of a bundle's models on this device."""

from __future__ import annotations

import argparse
import os.path
import sys
import time
from pathlib import Path

import msgspec

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import Bundle, declared, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.profile.measure import (
    QUICK_BATCHES,
    QUICK_S,
    TOTAL_S,
    Need,
    Permit,
    ProfileOptions,
    measure_profile,
)
from firstline_core.profile.summary import accuracies, profile_lines
from firstline_edge.budgets.sensors import device_sensors
from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import FAILED, OK
from firstline_edge.models.loading import bundle_paths
from firstline_edge.profiling.gate import CHECK_S, bounds_of, cause_to_wait, never
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import device_profile_path


def command(arguments: argparse.Namespace) -> int:
    """Measures, and prints the profile.

    Raises:
        ConfigError: no such bundle, or the state directory cannot be written.
        IntegrityError: the bundle is not what its manifest says.
    """
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    bundle = _bundle(settings, arguments.model)
    wanted = ProfileOptions(
        threads=arguments.threads,
        batches=arguments.batches or (QUICK_BATCHES if arguments.quick else ()),
        providers=tuple(settings.models.providers),
        total_s=QUICK_S if arguments.quick else TOTAL_S,
        alone=arguments.alone,
        again=arguments.anew,
        joules_per_core_s=settings.costs.joules_per_core_second,
        throttled_share=arguments.throttled,
        sustained_s=60 * arguments.sustained,
        root=Path(settings.hardware.root),
    )
    path = device_profile_path(settings.state_dir, bundle.manifest.name)
    may = (lambda needed: "") if arguments.alone else _waiting(settings)
    found = measure_profile(bundle, path, wanted, progress=_progress, permit=may, warn=_warn)
    if arguments.output == "json":
        say_json(msgspec.to_builtins(found))
    else:
        for line in profile_lines(found, accuracies(bundle.manifest)):
            say(line)
        say(f"Written: {path}. The agent goes by it from the next time that it loads the model.")
    return OK if found.points else FAILED


def _bundle(settings: EdgeSettings, name: str) -> Bundle:
    """The bundle in a folder, or the newest version of a name in `models.directories`."""
    if os.path.isfile(Path(name) / MANIFEST_NAME):  # noqa: PTH113 (`is_file` raises where no such name is possible)
        return open_bundle(Path(name))
    there = [
        (found, path) for path in bundle_paths(map(Path, settings.models.directories)) if (found := declared(path))
    ]
    fitting = [(found[1], path) for found, path in there if found[0] == name]
    if not fitting:
        names = ", ".join(sorted({found[0] for found, _ in there})) or "none"
        raise ConfigError(
            f"'{name[:200]}' is no folder of a bundle, and no model of models.directories, which has: {names}."
        )
    return open_bundle(max(fitting)[1])


def _waiting(settings: EdgeSettings) -> Permit:
    """Waits while the device is too hot, drained or short of memory; a running agent has priority anyway."""
    sensors, bounds = device_sensors(settings), bounds_of(settings)

    def may(needed: Need) -> str:
        waits_for = ""
        while True:
            now = sensors.read(time.monotonic())
            if why_not := never(now, needed, bounds.limits):
                return why_not
            cause = cause_to_wait(now, 0.0, needed, bounds, waits_for)
            if cause is None:
                return ""
            if cause.kind != waits_for:
                waits_for = cause.kind
                print(f"{cause.sentence} --alone does not wait.", file=sys.stderr, flush=True)  # noqa: T201
            time.sleep(CHECK_S)

    return may


def _warn(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def _progress(done: int, total: int, what: str) -> None:
    if what:
        print(f"measuring {done + 1} of {total}: {what}", file=sys.stderr, flush=True)  # noqa: T201
