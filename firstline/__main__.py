"""`firstline`, on the command line. Its commands need the workbench extra; the client library does not."""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich", "PIL", "onnxruntime", "starlette", "fastapi", "tuf", "securesystemslib")


def main() -> int:
    """Runs the command line.

    Returns:
        0 done; 1 a check failed; 2 wrong usage or configuration.
    """
    try:
        from firstline.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write("The firstline command needs more than the client library: install firstline[workbench].\n")
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
