"""`edge-agent purge`: erases what a stopped agent stored: requests, answers, results, scores and the decision log."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from firstline_core.errors import CapacityError
from firstline_core.storage.files import erase
from firstline_edge.cli.output import check_has_run, explained_refusal, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.state import StateDirectory, StatePaths, is_in_use


def command(arguments: argparse.Namespace) -> int:
    """Erases, or prints what would be erased.

    Raises:
        CapacityError: an agent runs, or this user may not erase.
    """
    state_dir = load_settings(arguments).state_dir
    state = StatePaths(state_dir)
    paths = {
        "outbox": state.outbox_path,
        "cache": state.cache_path,
        "samples": state.samples_path,
        "decisions": state.decisions_path,
    }
    places = list(dict.fromkeys(arguments.what or paths))
    with explained_refusal(state_dir, "erased"):
        before = {place: _size_bytes(paths[place]) for place in places}
        if arguments.yes:
            check_has_run(state_dir)
            _erase(state_dir, [paths[place] for place in places])
        after = {place: _size_bytes(paths[place]) for place in places}
    counts = {place: {"before_bytes": before[place], "after_bytes": after[place]} for place in places}
    lines = [
        f"{place:10}{before[place]} bytes" + (f", {after[place]} now" if arguments.yes else "") for place in places
    ]
    if not arguments.yes:
        lines.append(f"nothing was erased in {state_dir}; add --yes to erase this, promised corrections included")
    show(arguments, {"state_dir": str(state_dir), "erased": arguments.yes, "places": counts}, lines)
    return OK


def _size_bytes(path: Path) -> int:
    """Returns the size of the files that `erase` would remove."""
    found = [file for named in path.parent.glob(path.name + "*") for file in (named, *named.rglob("*"))]
    return sum(file.stat().st_size for file in found if file.is_file())


def _erase(state_dir: Path, paths: list[Path]) -> None:
    if is_in_use(state_dir):
        raise CapacityError(f"An agent runs with {state_dir}; stop it, and purge again.")
    with contextlib.closing(StateDirectory(state_dir)):  # so that no agent starts meanwhile
        for path in paths:
            erase(path)
