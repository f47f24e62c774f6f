"""`edge-agent hardware record`: writes a board's files as a test fixture."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.hardware.kernel_files import read_in_time
from firstline_core.hardware.recording import Recording
from firstline_core.hardware.sensors import Sensors
from firstline_core.hardware.survey import describe_device
from firstline_core.telemetry.wording import counted
from firstline_edge.cli.output import show
from firstline_edge.cli.parser import OK, load_settings

_SOURCES = (
    "# Layout: recorded by edge-agent hardware record. Say here in which state, and where its drivers are described."
)


def command(arguments: argparse.Namespace) -> int:
    """Records one reading; counters are recorded as they are.

    Raises:
        ConfigError: the file cannot be written.
        DeadlineExceededError: a driver hangs.
    """
    settings, path = load_settings(arguments), arguments.file
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
    more = f"; {unread} more could not be read, and are remarks in it" if unread else ""
    text = (
        f"{path}: {counted(len(lines) - unread, 'file')} of this board{more}",
        "Serial numbers, UUIDs, MACs and the host's name are left out; look through it before you hand it on.",
    )
    show(arguments, {"file": str(path), "files": len(lines) - unread, "unread": unread}, text)
    return OK
