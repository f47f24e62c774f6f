"""`edge-agent profile create`: measures the cost of a bundle's models on this device."""

from __future__ import annotations

import argparse
import dataclasses
import os.path
import time
from pathlib import Path

import msgspec

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.command_line import EXIT_FAILED
from firstline_core.errors import ConfigError, listed
from firstline_core.hardware.kernel_files import read_in_time
from firstline_core.hardware.readings import NOTHING_READ, Snapshot
from firstline_core.profile.measure import Gate, measure_profile
from firstline_core.profile.summary import profile_lines
from firstline_edge.budgets.from_settings import device_sensors
from firstline_edge.cli.output import print_progress, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.models.loading import bundle_paths, named_bundles
from firstline_edge.profiling.gate import CHECK_S, DeviceGate, bounds_of
from firstline_edge.profiling.profiler import profile_options
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths


def command(arguments: argparse.Namespace) -> int:
    """Measures, and prints the profile.

    Raises:
        ConfigError: no such bundle, or the state directory cannot be written.
        DeadlineExceededError: a driver hangs.
        IntegrityError: the bundle is not what its manifest says.
    """
    settings = load_settings(arguments)
    bundle, alone = _bundle(settings, arguments.model), arguments.alone or arguments.sustained > 0
    options = dataclasses.replace(
        profile_options(settings),
        threads=arguments.threads,
        batches=arguments.batches,
        variants=arguments.variant,
        quick=arguments.quick,
        alone=alone,
        sustained_s=60 * arguments.sustained,
        again=arguments.remeasure,
    )
    path = StatePaths(settings.state_dir).device_profile_path(bundle.manifest.name)
    gate = Gate() if alone else _gate(settings)
    profile = measure_profile(bundle, path, options, progress=_progress, gate=gate, warn=print_progress)
    written = f"Written: {path}. The agent uses it from the next time that it loads the model."
    lines = (*profile_lines(profile), written)
    show(arguments, msgspec.to_builtins(profile), lines)
    return OK if profile.points else EXIT_FAILED


def _bundle(settings: EdgeSettings, name: str) -> Bundle:
    """Returns the bundle in a folder, or the newest version of a name in `models.directories`."""
    if os.path.isfile(Path(name) / MANIFEST_NAME):  # noqa: PTH113 (`is_file` raises where no such name is possible)
        return open_bundle(Path(name))
    bundles = named_bundles(bundle_paths(settings.models.folders))
    versions = [bundle for bundle in bundles if bundle.name == name]
    if not versions:
        names = sorted({bundle.name for bundle in bundles})
        choices = listed(name, names) if names else "; name a folder, or set models.directories."
        raise ConfigError(f"'{name[:200]}' is neither a bundle's folder nor a model of models.directories{choices}")
    return open_bundle(max(versions).path)


def _gate(settings: EdgeSettings) -> DeviceGate:
    """Waits while the device is too hot, drained or short of memory; a running agent has priority anyway."""
    sensors, now = device_sensors(settings), NOTHING_READ

    def latest() -> Snapshot:
        nonlocal now
        if now is NOTHING_READ or time.monotonic() - now.at_s >= CHECK_S:  # reading disturbs the measurement
            now = read_in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
        return now

    def report(why: str) -> None:
        if why:
            print_progress(f"{why} --alone does not wait.")

    return DeviceGate(latest, bounds_of(settings), report)


def _progress(done: int, total: int, what: str) -> None:
    if what:
        print_progress(f"measuring {done + 1} of {total}: {what}")
