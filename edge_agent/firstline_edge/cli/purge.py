"""`edge-agent purge`: erases stored requests, answers, results and logs, with a running agent or without."""

from __future__ import annotations

import argparse
import contextlib
import secrets

from firstline_edge.api import erasure
from firstline_edge.cli.agent_api import agent_url, call_agent
from firstline_edge.cli.output import check_has_run, explained_refusal, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory, StatePaths, leave_proof

_TIMEOUT_S = 600.0  # a slow card, and much to overwrite


def command(arguments: argparse.Namespace) -> int:
    """Erases, or prints what would be erased."""
    settings = load_settings(arguments)
    places = list(dict.fromkeys(arguments.what or erasure.PLACES))
    with explained_refusal(settings.state_dir, "erased"):
        before = erasure.sizes_bytes(settings.state_dir)
        if arguments.yes:
            check_has_run(settings.state_dir)
            _erase(settings, places)
        after = erasure.sizes_bytes(settings.state_dir)
    counts = {place: {"before_bytes": before[place], "after_bytes": after[place]} for place in places}
    lines = [
        f"{place:10}{before[place]} bytes" + (f", {after[place]} now" if arguments.yes else "") for place in places
    ]
    if not arguments.yes:
        lines.append(
            f"nothing was erased in {settings.state_dir}; add --yes to erase this, promised corrections included"
        )
    show(arguments, {"state_dir": str(settings.state_dir), "erased": arguments.yes, "places": counts}, lines)
    return OK


def _erase(settings: EdgeSettings, places: list[str]) -> None:
    url = agent_url(settings)
    if url is None:
        with contextlib.closing(StateDirectory(settings.state_dir)) as state:
            erasure.erase_files(state.path, places)
        return
    proof = secrets.token_urlsafe(32)
    leave_proof(settings.state_dir, proof)
    try:
        request = {"places": places, "proof": proof}
        advice = "stop it, and purge again"
        call_agent(settings, url, "POST", "/firstline/v1/purge", timeout_s=_TIMEOUT_S, advice=advice, json=request)
    finally:
        StatePaths(settings.state_dir).proof_path.unlink(missing_ok=True)
