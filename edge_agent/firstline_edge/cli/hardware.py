"""`edge-agent hardware`: prints the hardware catalogue and the sensor readings."""

from __future__ import annotations

import argparse
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
from firstline_edge.budgets.from_settings import device_sensors
from firstline_edge.cli.output import print_json, print_line, print_lines, print_progress
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths

_SOURCES = (
    "# Layout: recorded by edge-agent hardware --record. Say here in which state, and where its drivers are described."
)
_BETWEEN_S = 1.0  # two readings, because counters need two


def command(arguments: argparse.Namespace) -> int:
    """Prints the catalogue and one reading of the sensors.

    Raises:
        ConfigError: the state directory cannot be made, on which the disk is measured.
        DeadlineExceededError: a driver hangs.
    """
    settings = load_settings(arguments)
    if arguments.record is not None:
        return _record(settings, Path(arguments.record))
    catalogue = _catalogue(settings, measure=arguments.measure)
    now = limited(read_twice(device_sensors(settings), _BETWEEN_S))
    if arguments.output == "json":
        print_json({"catalogue": msgspec.to_builtins(catalogue), "sensors": msgspec.to_builtins(now)})
    else:
        print_lines((*catalogue_lines(catalogue), "", *sensor_lines(now)))
    return OK


def _catalogue(settings: EdgeSettings, *, measure: bool) -> Catalogue:
    tree, folder = Tree(Path(settings.hardware.root)), settings.state_dir
    surveyor = Surveyor(tree, folder, StatePaths(folder).hardware_path)
    described = read_in_time(tree, partial(describe_device, tree, folder))
    if not measure:
        stored = surveyor.read_stored()
        is_valid = stored is not None and stored.fingerprint == described.fingerprint
        return with_measurements(described, stored) if stored is not None and is_valid else described
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"agent.state_dir {folder} cannot be used: {error.strerror}; run this as the agent's user."
        ) from error
    measured = measure_device(described, tree, folder, lambda what: print_progress(f"measuring: {what}"))
    surveyor.store(measured)
    return measured


def _record(settings: EdgeSettings, path: Path) -> int:
    """Records one reading; counters are recorded as they are."""
    tree = Recording(Path(settings.hardware.root))
    board = read_in_time(tree, partial(describe_device, tree, settings.state_dir))
    read_in_time(tree, lambda: Sensors(tree).read(time.monotonic()))
    lines = tree.lines()
    title = f"# {board.board or 'A board that does not say its name'}, kernel {board.kernel}."
    try:
        path.write_text("\n".join([title, _SOURCES, *lines, ""]), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another file.") from error
    unread = sum(line.startswith("#") for line in lines)
    summary = f"{path}: {counted(len(lines) - unread, 'file')} of this board"
    print_line(summary + (f"; {unread} more could not be read, and are remarks in it" if unread else ""))
    print_line("Serial numbers, UUIDs, MACs and the host's name are left out; look through it before you hand it on.")
    return OK
