"""`edge-agent update list`: how the fleet's updates stand; the agent need not run."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

import msgspec

from firstline_edge.cli.output import explained_refusal, print_json, print_line
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.fleet.configuration.configuration_store import read_state
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.state import StatePaths


def command(arguments: argparse.Namespace) -> int:
    """Prints one line for each model that the fleet ever updated here, and one for its configuration."""
    settings = load_settings(arguments)
    with explained_refusal(settings.state_dir, "read"):
        store = ModelStore(StatePaths(settings.state_dir).updates_path, repair=False)
        configuration = read_state(StatePaths(settings.state_dir).configuration_path)
    updates = [(record.update(), store.pointer(name)) for name, record in sorted(store.records.items())]
    own = [configuration.record.update()] if configuration.record is not None else []
    if arguments.output == "json":
        documents: list[dict[str, Any]] = [
            msgspec.to_builtins(update) | {"slot": pointer.slot, "previous": pointer.previous}
            for update, pointer in updates
        ]
        running = configuration.running
        print_json(
            {
                "updates": documents + [msgspec.to_builtins(update) for update in own],
                "configuration": running and {"name": running.name, "version": running.version},
            }
        )
        return OK
    if not updates and not own:
        print_line("the fleet has never updated this device")
    for update in [update for update, _ in updates] + own:
        since = datetime.fromtimestamp(update.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = f"  {update.message or update.reason}" if update.reason else ""
        name = update.name if update.what == "model" else f"{update.what} {update.name}"
        print_line(f"{name:24} version {update.version:<8} {update.state.value:12} since {since}{why}")
    return OK
