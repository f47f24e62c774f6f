"""`edge-agent update list`: how the fleet's updates stand; the agent need not run."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

import msgspec

from firstline_core.fleet.twin import Update
from firstline_edge.cli.output import explained_refusal, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.fleet.configuration.installed_configuration import open_configuration
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.state import StatePaths


def command(arguments: argparse.Namespace) -> int:
    """Prints one line for each model that the fleet ever updated here, and one for its configuration."""
    settings = load_settings(arguments)
    with explained_refusal(settings.state_dir, "read"):
        store = ModelStore(StatePaths(settings.state_dir).updates_path, repair=False)
        states = [store.file(name).state for name in store.names]
        configuration = open_configuration(StatePaths(settings.state_dir).configuration_path, repair=False).state
    updates, documents = [], list[dict[str, Any]]()
    for state in states:
        if state.record is not None:
            updates.append(state.record.update())
            slots = {"slot": state.running or "", "previous": state.previous or ""}
            documents.append(msgspec.to_builtins(updates[-1]) | slots)
    if configuration.record is not None:
        updates.append(configuration.record.update())
        documents.append(msgspec.to_builtins(updates[-1]))
    running = configuration.running and {"name": configuration.running.name, "version": configuration.running.version}
    lines = list(map(_line, updates)) or ["the fleet has never updated this device"]
    show(arguments, {"updates": documents, "configuration": running}, lines)
    return OK


def _line(update: Update) -> str:
    since = datetime.fromtimestamp(update.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    why = f"  {update.message or update.reason}" if update.reason else ""
    name = update.name if update.what == "model" else f"{update.what} {update.name}"
    return f"{name:24} version {update.version:<8} {update.state.value:12} since {since}{why}"
