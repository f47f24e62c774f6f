"""`edge-agent init`: writes a first configuration with the five settings that matter."""

from __future__ import annotations

import argparse
import shlex

from firstline_core.storage.settings import create_initial
from firstline_edge.cli.output import show
from firstline_edge.cli.parser import OK

CONFIGURATION = """\
# Settings of this device. Paths start at this file's folder. `edge-agent doctor --config FILE` checks them.
# The device's name and its links to a gateway come from `edge-agent join`.
[agent]
state_dir = "state"       # this device's identity, stored requests and results; keep it over upgrades

[api]
host = "127.0.0.1"        # address to listen on; "0.0.0.0" is every network, and needs token_file
port = 8070               # TCP port
token_file = ""           # file with one NAME:TOKEN a line, for the applications that may ask; "" admits this machine

[models]
directories = ["models"]  # bundles, or folders of bundles
"""


def command(arguments: argparse.Namespace) -> int:
    """Writes the file; an existing one is never changed."""
    file = arguments.config
    create_initial(file, CONFIGURATION)
    then = f"edge-agent run --config {shlex.quote(str(file))}"
    text = f"wrote {file}; copy a bundle into {file.parent / 'models'}, then type:\n  {then}"
    show(arguments, {"event": "written", "file": str(file), "next": then}, [text])
    return OK
