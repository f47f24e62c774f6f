"""`edge-agent`: the commands that run on a device. Imports little until a command is known.

`doctor` must be able to report missing packages, so nothing here may need numpy or any other wheel.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

from firstline_core.command_line import run_program, run_with_output
from firstline_edge.cli.output import print_error
from firstline_edge.cli.parser import parse


def main() -> int:
    """Runs one command; returns the exit code that `edge-agent --help` explains."""
    arguments = parse(sys.argv[1:])
    serves = arguments.command == "edge-agent run"
    return run_program(partial(_run, arguments), print_error, name=arguments.command, extra="edge", serves=serves)


def _run(arguments: argparse.Namespace) -> int:
    # `edge-agent update list` is in `cli/update_list.py`: a command needs no more than it uses.
    module = "_".join(arguments.command.split()[1:])
    gc.disable()  # nothing of an import is garbage
    command: Callable[[argparse.Namespace], int] = import_module(f"firstline_edge.cli.{module}").command
    gc.freeze()
    gc.enable()
    return run_with_output(lambda: command(arguments), print_error)


if __name__ == "__main__":
    sys.exit(main())
