"""`firstline audit`: the audit log of fleet decisions, and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions
from firstline.cli.output import date, table
from firstline_core.errors import ConfigError
from firstline_core.storage.files import naming
from firstline_core.storage.structs import read_json_file
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.fleet.audit_export import check_key, head_of, time_of, verify_export, write_export
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
    file: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    head: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    public_key: Annotated[str, typer.Option(metavar="HEX")] = "",
) -> Report:
    """Verify the whole audit log, or an export without the gateway; exits 1 if it was changed.

    Args:
        file: Verify this export with the head next to it instead.
        head: Head saved earlier; the log must contain it.
        keep: Save the current head of the gateway's log to this file, for the next verification.
        public_key: Public key of the gateway's log, which must have signed it.
    """
    saved = _read(head) if head is not None else None
    if file is not None:
        if keep is not None:
            raise ConfigError("--keep saves the head of the gateway's log; leave it out, or leave out --file.")
        return _of_export(file, saved, public_key)
    with gateway.fleet() as fleet:
        # The head first: what is added meanwhile comes after it.
        now = fleet.rollouts.head()
        check_key(now, public_key)
        if saved is not None and saved.public_key != now.public_key:
            typer.echo(
                f"another key signs now than signed {head}: was the gateway's identity folder replaced?", err=True
            )
        number, sha256 = verify_log(fleet.rollouts.audit_log(), list(filter(None, [now, saved])))
    if keep is not None:
        with naming(keep, "written"):
            keep.write_bytes(msgspec.json.encode(now))
    since = f", and contains the head of {date(saved.at_s)}" if saved is not None else ""
    return Report(
        {"entries": number, "sha256": sha256, "head": now},
        f"{counted(number, 'entry', 'entries')}, none changed{since}; the last is {sha256[:16]}",
    )


@command(app, "export", example="firstline audit export --since 2026-01-01 -o csv")
def export(
    gateway: GatewayOptions,
    since: Annotated[str, typer.Option(metavar="DATE")] = "",
    form: Annotated[Literal["jsonl", "csv"], typer.Option("--output", "-o")] = "jsonl",
    file: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
) -> None:
    """Export the audit log with a signed head, which proves the entries without the gateway.

    Args:
        since: Only entries since this day or time (ISO 8601, UTC).
        form: Format of the file.
        file: File to write; default: audit-log.FORMAT.
    """
    target, since_s = file or Path(f"audit-log.{form}"), time_of(since)
    with gateway.fleet() as fleet:
        head, entries = fleet.rollouts.export(since_s)
    write_export(target, entries, head)
    typer.echo(f"{counted(len(entries), 'entry', 'entries')} in {target}; their signed head is in {head_of(target)}")


def _of_export(file: Path, saved: Head | None, public_key: str) -> Report:
    with naming(file):
        file.stat()
    if not head_of(file).exists():
        raise ConfigError(
            f"{file} has no signed head: {head_of(file)} does not exist. Copy it next to the export (`firstline audit "
            "export` writes both), or name another export with --file."
        )
    signed = _read(head_of(file))
    check_key(signed, public_key)
    count, sha256 = verify_export(file, signed, saved)
    known = saved is not None or bool(public_key)
    text = f"{counted(count, 'entry', 'entries')}, none changed; signed on {date(signed.at_s)} by {signed.public_key}"
    if not known:
        text += (
            "\nThis key was not compared with a known one, so the whole export could be forged; "
            "pass --public-key, or --head with a head saved earlier."
        )
    return Report({"entries": count, "sha256": sha256, "head": signed, "key_known": known}, text)


def _read(file: Path) -> Head:
    advice = "; name the file that `firstline audit export` wrote next to the export"
    return read_json_file(file, Head, _HEAD_BYTES, "is not the head of an audit log", advice)
