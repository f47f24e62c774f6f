"""`edge-agent hardware get`: prints the hardware catalogue and the sensor readings."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.hardware.catalogue import Catalogue, catalogue_lines, sensor_lines
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import limited
from firstline_core.hardware.sensors import read_twice
from firstline_core.hardware.survey import measure_device
from firstline_core.storage.files import make_folder, system_reason
from firstline_edge.budgets.from_settings import device_sensors
from firstline_edge.cli.output import print_progress, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.settings.settings import EdgeSettings


def command(arguments: argparse.Namespace) -> int:
    """Prints the catalogue and one reading of the sensors.

    Raises:
        ConfigError: the state directory cannot be made.
        DeadlineExceededError: a driver hangs.
    """
    settings = load_settings(arguments)
    catalogue = _catalogue(settings, measure=arguments.measure)
    now = limited(read_twice(device_sensors(settings)))
    value = {"catalogue": msgspec.to_builtins(catalogue), "sensors": msgspec.to_builtins(now)}
    show(arguments, value, (*catalogue_lines(catalogue), "", *sensor_lines(now)))
    return OK


def _catalogue(settings: EdgeSettings, *, measure: bool) -> Catalogue:
    folder = settings.state_dir
    surveyor = Surveyor(Tree(Path(settings.hardware.root)), folder)
    if not measure:
        return surveyor.known()
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"agent.state_dir {folder} cannot be used: {system_reason(error)}; run this as the agent's user."
        ) from error
    measured = measure_device(surveyor.describe(), lambda what: print_progress(f"trying: {what}"))
    surveyor.store(measured)
    return measured
