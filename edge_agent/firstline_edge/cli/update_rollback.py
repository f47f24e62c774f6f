"""`edge-agent update rollback`: restores the previous model or configuration, offline too."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any
from urllib.parse import quote

from firstline_edge.cli.agent_api import agent_url, call_agent
from firstline_edge.cli.output import check_has_run, explained_refusal, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.fleet.configuration.installed_configuration import open_configuration
from firstline_edge.fleet.updates.installed import BY_REQUEST, InstalledFile
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory

_TIMEOUT_S = 120.0


def command(arguments: argparse.Namespace) -> int:
    """Rolls back, and prints the result."""
    settings = load_settings(arguments)
    check_has_run(settings.state_dir)
    model, url = arguments.model, agent_url(settings)
    if url is not None:
        what = f"updates/{quote(model, safe='')}" if model else "configuration"
        advice = "stop it, and roll back again"
        path = f"/firstline/v1/{what}/rollback"
        call_agent(settings, url, "POST", path, timeout_s=_TIMEOUT_S, advice=advice)
    else:
        _roll_back_on_disk(settings, model)
    what = model or "configuration"
    show(arguments, {"rolled_back": what}, [f"{what}: rolled back to the previous version"])
    return OK


def _roll_back_on_disk(settings: EdgeSettings, model: str | None) -> None:
    with contextlib.closing(StateDirectory(settings.state_dir)) as state:
        path = state.updates_path if model else state.configuration_path
        with explained_refusal(path, "written"):
            file: InstalledFile[Any, Any] = (
                ModelStore(path, repair=False).known(model) if model else open_configuration(path, repair=False)
            )
            file.state.check_rollback(f"Model {model}" if model else "The configuration")
            file.write(file.state.rolled_back(BY_REQUEST, "Rolled back on the device.", time.time()))
