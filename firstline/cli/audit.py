"""`firstline audit`: the audit log of fleet decisions, and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions
from firstline.cli.output import date, table
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:
    from firstline_core.fleet.audit_log import Head, verify_log

_HEAD_BYTES = 64 * 1024

app = command_group("Show and verify the audit log of fleet decisions.")


@command(app, "list", example="firstline audit list --subject rollout:ID")
def list_entries(
    gateway: GatewayOptions,
    subject: Annotated[str, typer.Option(help="Only entries about this subject, e.g. rollout:ID.")] = "",
) -> Report:
    """List the audit log."""
    with gateway.fleet() as fleet:
        entries = list(fleet.rollouts.audit_log(subject))
    rows = ((str(entry.number), date(entry.at_s), entry.actor, entry.action, entry.subject) for entry in entries)
    return Report(entries, table(">number", "when", "who", "what", "to", rows=rows))


@command(app, "verify", example="firstline audit verify --keep head.json")
def verify(
    gateway: GatewayOptions,
    head: Annotated[Path | None, typer.Option(metavar="FILE", help="Saved head that the log must contain.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the current head to this file, for the next verification.")
    ] = None,
) -> Report:
    """Verify the whole audit log; exits 1 if it was changed."""
    saved = _read(head) if head is not None else None
    with gateway.fleet() as fleet:
        # The head first: what is added meanwhile comes after it.
        now = fleet.rollouts.head()
        if saved is not None and saved.public_key != now.public_key:
            typer.echo(
                f"another key signs now than signed {head}: was the gateway's identity folder replaced?", err=True
            )
        number, sha256 = verify_log(fleet.rollouts.audit_log(), [now, *([saved] if saved is not None else [])])
    if keep is not None:
        try:
            keep.write_bytes(msgspec.json.encode(now))
        except OSError as error:
            raise ConfigError(f"The head cannot be kept in {keep}: {error.strerror}.") from error
    since = f", and contains the head of {date(saved.at_s)}" if saved is not None else ""
    return Report(
        {"entries": number, "sha256": sha256, "head": now},
        f"{counted(number, 'entry', 'entries')}, none changed{since}; the last is {sha256[:16]}",
    )


def _read(file: Path) -> Head:
    try:
        with file.open("rb") as stream:
            return msgspec.json.decode(stream.read(_HEAD_BYTES), type=Head)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} holds no head of an audit log: {error}.") from error
