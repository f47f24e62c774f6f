"""`firstline audit`: the audit log of fleet decisions, and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from firstline.cli.dates import date
from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption, fleet_at
from firstline.cli.output import Output, OutputOption, print_json, print_table, table
from firstline_core.errors import ConfigError
from firstline_core.fleet.audit_log import Head, verify_log
from firstline_core.telemetry.wording import counted

_HEAD_BYTES = 64 * 1024

app = typer.Typer(help="Show and verify the audit log of fleet decisions.", no_args_is_help=True)


@app.command("ls")
def list_entries(
    *,
    subject: Annotated[str, typer.Option(help="Only entries about this subject, e.g. rollout:ID.")] = "",
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the audit log."""
    with fleet_at(gateway, key_file, ca) as fleet:
        entries = list(fleet.rollouts.trail(subject))
    if output is Output.JSON:
        print_json(entries)
        return
    made = table(">number", "when", "who", "what", "to")
    for entry in entries:
        made.add_row(str(entry.number), date(entry.at_s), entry.actor, entry.action, entry.subject)
    print_table(made)


@app.command()
def verify(
    *,
    head: Annotated[Path | None, typer.Option(metavar="FILE", help="Saved head that the log must contain.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the current head to this file, for the next verification.")
    ] = None,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Verify the whole audit log; exits 1 if it was changed."""
    kept = _read(head) if head is not None else None
    with fleet_at(gateway, key_file, ca) as fleet:
        # The head first: what is added meanwhile comes after it.
        now = fleet.rollouts.head()
        if kept is not None and kept.public_key != now.public_key:
            typer.echo(
                f"another key signs now than signed {head}: was the gateway's identity folder replaced?", err=True
            )
        number, sha256 = verify_log(fleet.rollouts.trail(), [now, *([kept] if kept is not None else [])])
    if keep is not None:
        try:
            keep.write_bytes(msgspec.json.encode(now))
        except OSError as error:
            raise ConfigError(f"The head cannot be kept in {keep}: {error.strerror}.") from error
    if output is Output.JSON:
        print_json({"entries": number, "sha256": sha256, "head": now})
    else:
        since = f", and contains the head of {date(kept.at_s)}" if kept is not None else ""
        typer.echo(f"{counted(number, 'entry', 'entries')}, none changed{since}; the last is {sha256[:16]}")


def _read(file: Path) -> Head:
    try:
        with file.open("rb") as stream:
            return msgspec.json.decode(stream.read(_HEAD_BYTES), type=Head)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} holds no head of an audit trail: {error}.") from error
