"""`edge-agent`: the commands that run on a device. Imports little until a command is known.

`doctor` must be able to report missing packages, so nothing here may need numpy or any other wheel.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from types import FrameType

from firstline_core.command_line import EXIT_INTERRUPTED, ended_by_signals, interruptible, run_with_output
from firstline_core.errors import ConfigError, FirstlineError, missing_package
from firstline_edge.cli.output import print_error
from firstline_edge.cli.parser import FAILED, USAGE, parse


def main() -> int:
    """Runs one command; returns the exit code that `edge-agent --help` explains."""
    arguments = parse(sys.argv[1:])
    try:
        if arguments.module != "run":
            with interruptible():
                return _run(arguments)
        signal.signal(signal.SIGHUP, _ignore)  # the start reads the latest configuration anyway
        with ended_by_signals():
            return _run(arguments)
    except ModuleNotFoundError as error:
        print_error(missing_package(error, arguments.command, "edge").message)
        return USAGE
    except FirstlineError as error:
        print_error(error.message)
        return USAGE if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    # Each command is a module, so that one needs no more than it uses.
    gc.disable()  # nothing of an import is garbage
    command: Callable[[argparse.Namespace], int] = import_module(f"firstline_edge.cli.{arguments.module}").command
    gc.freeze()
    gc.enable()
    return run_with_output(lambda: command(arguments), print_error)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignores a signal in this process only: started programs do not inherit a handler, as they would `SIG_IGN`."""


if __name__ == "__main__":
    sys.exit(main())
