"""`edge-agent hardware`: prints the hardware catalogue and the sensor readings."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.hardware.catalogue import Catalogue, catalogue_lines, sensor_lines
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.readings import limited
from firstline_core.hardware.recording import Recording
from firstline_core.hardware.sensors import Sensors, read_twice
from firstline_core.hardware.survey import describe_device, measure_device, with_measurements
from firstline_core.storage.files import make_folder
from firstline_core.telemetry.wording import counted
from firstline_edge.budgets.sensors import device_sensors
from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import OK
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import hardware_path

_SOURCES = (
    "# Layout: recorded by edge-agent hardware --record. Say here in which state, and where its drivers are described."
)
_BETWEEN_S = 1.0  # two readings, for what only counts


def command(arguments: argparse.Namespace) -> int:
    """Prints the catalogue and one reading of the sensors.

    Raises:
        ConfigError: the state directory cannot be made, on which the disk is measured.
        DeadlineExceededError: a driver hangs.
    """
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    if arguments.record is not None:
        return _record(settings, Path(arguments.record))
    found = _catalogue(settings, anew=arguments.measure)
    now = limited(read_twice(device_sensors(settings), _BETWEEN_S))
    if arguments.output == "json":
        say_json({"catalogue": msgspec.to_builtins(found), "sensors": msgspec.to_builtins(now)})
    else:
        for line in (*catalogue_lines(found), "", *sensor_lines(now)):
            say(line)
    return OK


def _catalogue(settings: EdgeSettings, *, anew: bool) -> Catalogue:
    tree, folder = Tree(Path(settings.hardware.root)), settings.state_dir
    surveyor = Surveyor(tree, folder, hardware_path(folder))
    found, kept = read_in_time(tree, partial(describe_device, tree, folder)), surveyor.kept()
    if not anew:
        return with_measurements(found, kept) if kept is not None and kept.fingerprint == found.fingerprint else found
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"agent.state_dir {folder} cannot be used: {error.strerror}; run this as the agent's user."
        ) from error
    found = measure_device(found, tree, folder, _progress)
    surveyor.keep(found)
    return found


def _record(settings: EdgeSettings, path: Path) -> int:
    """Records one reading; counters are recorded as they are."""
    tree = Recording(Path(settings.hardware.root))
    found = read_in_time(tree, partial(describe_device, tree, settings.state_dir))
    read_in_time(tree, lambda: Sensors(tree).read(time.monotonic()))
    lines = tree.lines()
    title = f"# {found.board or 'A board that does not say its name'}, kernel {found.kernel}."
    try:
        path.write_text("\n".join([title, _SOURCES, *lines, ""]), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another file.") from error
    unread = sum(line.startswith("#") for line in lines)
    summary = f"{path}: {counted(len(lines) - unread, 'file')} of this board"
    say(summary + (f"; {unread} more could not be read, and are remarks in it" if unread else ""))
    say("Serial numbers, UUIDs, MACs and the host's name are left out; look through it before you hand it on.")
    return OK


def _progress(what: str) -> None:
    print(f"measuring: {what}", file=sys.stderr, flush=True)  # noqa: T201
