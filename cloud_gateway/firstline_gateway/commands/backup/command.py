"""`backup FILE` and `restore FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from firstline_core.command_line import Commands
from firstline_core.telemetry.wording import counted
from firstline_gateway.commands.base import add_action, settings_of, show


def add_commands(commands: Commands) -> None:
    """Adds them to the parser's."""
    purpose = "write the store and the certificate authority into one file"
    backup = add_action(commands, "backup", _backup, purpose, "backup gateway.backup --config gateway.toml")
    backup.add_argument("file", type=Path, metavar="FILE", help="file to write; must not exist; contains private keys")
    purpose = "restore a backup where there is no store and no authority"
    restore = add_action(commands, "restore", _restore, purpose, "restore gateway.backup --config gateway.toml")
    restore.add_argument("file", type=Path, metavar="FILE")
    one = restore.add_mutually_exclusive_group()
    one.add_argument("--authority-only", action="store_true", help="restore only the authority, keep the store")
    one.add_argument("--store-only", action="store_true", help="restore only the store, keep the authority")


def _backup(arguments: argparse.Namespace) -> int:
    from firstline_gateway.commands.backup.backup import back_up

    manifest = back_up(settings_of(arguments), arguments.file)
    file, parts, schema, size_bytes = arguments.file, len(manifest.modes), manifest.schema, manifest.size_bytes
    text = f"{file}: {counted(parts, 'part')}, {size_bytes} bytes of schema {schema}"
    show(arguments, text, {"file": str(file), "schema": schema, "members": parts, "bytes": size_bytes})
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    from firstline_gateway.commands.backup.backup import restore

    only: Literal["store", "authority"] | None = (
        "authority" if arguments.authority_only else "store" if arguments.store_only else None
    )
    restored = restore(settings_of(arguments), arguments.file, only=only)
    created = restored.manifest.created.isoformat()
    what = "the authority" if arguments.authority_only else counted(sum(restored.rows.values()), "row")
    lines = [f"restored {what} as of {created}"]
    lines += [f"paused rollout {each}: resume it, or roll it back" for each in restored.paused]
    report = {"created": created, "schema": restored.manifest.schema, "rows": restored.rows}
    show(arguments, "\n".join(lines), report | {"paused_rollouts": restored.paused})
    return 0
