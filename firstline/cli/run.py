"""`firstline run`: serves a bundle on loopback, with as many tiers as it has models for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstline.cli.command import command, command_group
from firstline.cli.options import BundleArgument, PortOption, require_bundle
from firstline.cli.output import Output, OutputOption

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.cli.serving import serve
    from firstline_core.bundle.store import open_bundle

app = command_group()


@command(app, "run", example="firstline run pair/bundle")
def run_command(path: BundleArgument, *, port: PortOption = 0, output: OutputOption = Output.TEXT) -> None:
    """Serve a bundle on this machine: an agent and a gateway, or one of them if the bundle has one model.

    Prints the addresses and a curl command, and serves until SIGINT (Ctrl-C) or SIGTERM, which ends both tiers and
    deletes their state, a folder in TMPDIR, with the answers that were still to be corrected. Exits with 1 if the tier
    that answers stops on its own. If only the gateway behind an agent stops, the agent continues.
    """
    serve(open_bundle(require_bundle(path)), port, output)
