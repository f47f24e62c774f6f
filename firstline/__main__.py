"""`firstline`, on the command line. Its commands need an extra; the client library does not."""

from __future__ import annotations

import gc
import sys
from importlib.metadata import version

from firstline.cli import interrupt
from firstline_core.errors import ConfigError, missing_package


def main() -> int:
    """Runs the command line.

    Returns:
        0 done; 1 a check failed; 2 wrong usage or configuration; 130 interrupted.
    """
    interrupt.start_command_line()
    gc.disable()  # nothing of an import is garbage, and searching for it takes a fifth of the start
    try:
        from firstline.cli.app import run

        return run()
    except ModuleNotFoundError as error:
        if sys.argv[1:] == ["--version"]:  # of the client alone, which has no package for options
            sys.stdout.write(f"firstline {version('firstline')}\n")
            return 0
        alone = sys.argv[1:2] == ["console"]  # a service of its own, which needs no workbench
        try:
            raise missing_package(error, *(("firstline console", "console") if alone else ("firstline", "workbench")))
        except ConfigError as lacking:
            sys.stderr.write(f"{lacking.message}\n")
            return 2


if __name__ == "__main__":
    sys.exit(main())
