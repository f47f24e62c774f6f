"""`firstline`, on the command line. Its commands need an extra; the client library does not."""

from __future__ import annotations

import gc
import sys

from firstline.cli import interrupt
from firstline_core.errors import missing_package


def main() -> int:
    """Runs the command line.

    Returns:
        0 done; 1 a check failed; 2 wrong usage or configuration; 130 interrupted.
    """
    interrupt.start_command_line()
    alone = sys.argv[1:2] == ["console"]  # a service of its own, which starts without the workbench
    gc.disable()  # nothing of an import is garbage, and searching for it takes a fifth of the start
    try:
        if alone:
            from firstline.cli.console import run
        else:
            from firstline.cli.app import run
    except ModuleNotFoundError as error:
        program, extra = ("firstline console", "console") if alone else ("firstline", "workbench")
        sys.stderr.write(f"{missing_package(error, program, extra).message}\n")
        return 2
    finally:
        gc.freeze()
        gc.enable()
    return run()


if __name__ == "__main__":
    sys.exit(main())
