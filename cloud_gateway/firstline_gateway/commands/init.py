"""`init`: writes a first configuration with the five settings that matter."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from firstline_core.command_line import Commands, add_command
from firstline_gateway.commands.base import show

CONFIGURATION = """\
# Settings of this gateway. Paths start at this file's folder. `firstline-gateway check --config FILE` checks them.
[api]
host = "127.0.0.1"                    # address to listen on; "0.0.0.0" is every network of this machine
port = 8080                           # TCP port

[tls]
enabled = true                        # HTTPS, with a certificate of this gateway's own authority
hosts = ["localhost", "127.0.0.1"]    # every name and address by which devices and applications reach it

[models]
directory = "models"                  # each subfolder with a manifest.json is a bundle
# Callers need keys: `firstline-gateway key create NAME`. Devices join with a token: `firstline device enroll NAME`.
"""


def add_commands(commands: Commands) -> None:
    """Adds it to the parser's."""
    text = "write a first configuration with the five settings that matter"
    init = add_command(commands, "init", text, example="firstline-gateway init --config gateway.toml")
    init.set_defaults(command=_init)
    init.add_argument(
        "--config", type=Path, default=Path("gateway.toml"), metavar="FILE", help="file to write; default: gateway.toml"
    )


def _init(arguments: argparse.Namespace) -> int:
    from firstline_core.storage.settings import create_initial

    file = arguments.config
    create_initial(file, CONFIGURATION)
    then = f"firstline-gateway run --config {shlex.quote(str(file))}"
    text = f"wrote {file}; copy a bundle into {file.parent / 'models'}, then type:\n  {then}"
    show(arguments, text, {"event": "written", "file": str(file), "next": then})
    return 0
