"""`edge-agent`: the commands that run on a device. Imports little until a command is known.

What a device lacks must be told by `doctor`, so nothing here may need numpy or any other wheel.
"""

from __future__ import annotations

import sys

from firstline_edge.cli.parser import parse


def main() -> int:
    """Runs one command; returns the exit code that `edge-agent --help` explains."""
    arguments = parse(sys.argv[1:])
    if arguments.command == "doctor":
        from firstline_edge.cli.doctor import command
    elif arguments.command == "run":
        from firstline_edge.cli.run import command
    elif arguments.command == "status":
        from firstline_edge.cli.status import command
    else:
        from firstline_edge.cli.explain import command
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
