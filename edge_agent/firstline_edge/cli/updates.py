"""`edge-agent updates`: how the fleet's updates stand; the agent need not run."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

import msgspec

from firstline_core.errors import CapacityError
from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import OK
from firstline_edge.fleet.configuration.kept import read_kept
from firstline_edge.fleet.updates.history import History
from firstline_edge.settings.load import load
from firstline_edge.state import configuration_path, updates_path


def command(arguments: argparse.Namespace) -> int:
    """Prints one line for each model that the fleet ever updated here, and one for its configuration."""
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    try:
        history = History(updates_path(settings.state_dir), repair=False)
        kept = read_kept(configuration_path(settings.state_dir))
    except OSError as error:
        raise CapacityError(
            f"{settings.state_dir} cannot be read: {error.strerror}; ask as the user that the agent runs as."
        ) from error
    updates = [record.update() for _, record in sorted(history.records.items())]
    updates += [kept.record.update()] if kept.record is not None else []
    if arguments.output == "json":
        told: list[dict[str, Any]] = [
            msgspec.to_builtins(record.update())
            | {"slot": history.pointer(name).slot, "previous": history.pointer(name).previous}
            for name, record in sorted(history.records.items())
        ]
        told += [msgspec.to_builtins(kept.record.update())] if kept.record is not None else []
        running = kept.running
        say_json({"updates": told, "configuration": running and {"name": running.name, "version": running.version}})
        return OK
    if not updates:
        say("nothing of this device was ever updated by a fleet")
    for update in updates:
        since = datetime.fromtimestamp(update.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = f"  {update.message or update.reason}" if update.reason else ""
        name = update.name if update.what == "model" else f"{update.what} {update.name}"
        say(f"{name:24} version {update.version:<8} {update.state.value:12} since {since}{why}")
    return OK
