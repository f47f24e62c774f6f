"""`edge-agent updates`: how the fleet's updates stand; the agent need not run."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import msgspec

from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import OK
from firstline_edge.settings_load import load
from firstline_edge.state import updates_path
from firstline_edge.updater.history import History


def command(arguments: argparse.Namespace) -> int:
    """Prints one line for each model that the fleet ever updated here."""
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    history = History(updates_path(settings.state_dir), repair=False)
    if arguments.output == "json":
        told = [
            msgspec.to_builtins(record.update())
            | {"slot": history.pointer(name).slot, "previous": history.pointer(name).previous}
            for name, record in sorted(history.records.items())
        ]
        say_json({"updates": told})
        return OK
    if not history.records:
        say("no model of this device was ever updated by a fleet")
    for name, record in sorted(history.records.items()):
        since = datetime.fromtimestamp(record.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = f"  {record.message or record.reason}" if record.reason else ""
        say(f"{name:24} version {record.target.version:<8} {record.state.value:12} since {since}{why}")
    return OK
