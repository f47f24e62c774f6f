"""Erasing what was kept: the places where payloads live, and what was learned from them.

An agent that runs erases for itself, asked over its API by whoever may write in its state directory; the files of one
that does not run are erased here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.errors import CapacityError, RequestError
from firstline_core.storage.files import erase, erase_all
from firstline_edge import state

if TYPE_CHECKING:
    from firstline_edge.parts import Parts

PLACES = ("outbox", "cache", "samples", "decisions")
"""What can be named: requests and answers, results, scores of audited answers, the decision log."""


def paths(state_dir: Path) -> dict[str, Path]:
    """Where each place's files begin."""
    return {
        "outbox": state.outbox_path(state_dir),
        "cache": state.cache_path(state_dir),
        "samples": state.samples_path(state_dir),
        "decisions": state.decisions_path(state_dir),
    }


def sizes_bytes(state_dir: Path) -> dict[str, int]:
    """What the files of each place take.

    Raises:
        OSError: this user may not look.
    """
    return {name: sum(map(_size_bytes, path.parent.glob(path.name + "*"))) for name, path in paths(state_dir).items()}


def erase_files(state_dir: Path, places: Collection[str]) -> None:
    """Erases places of an agent that does not run; the caller holds its lock.

    Raises:
        OSError: the disk refuses.
    """
    for place in places:
        erase(paths(state_dir)[place])


async def erase_running(parts: Parts, places: Collection[str]) -> None:
    """Erases places of this agent, which goes on; promises end without an answer.

    Raises:
        RequestError: a place that there is not.
        CapacityError: the disk refuses.
    """
    if unknown := set(places) - set(PLACES):
        raise RequestError(f"There is nothing called {sorted(unknown)[0]!r} to erase; there are {', '.join(PLACES)}.")
    given_up: list[Path] = []
    try:
        if "outbox" in places:
            await parts.outbox.purge()
        if "cache" in places:
            given_up += parts.cache.clear()
        if "samples" in places:
            given_up += parts.audits.clear_samples()
        if "decisions" in places:
            given_up += parts.recorder.clear()
        await asyncio.to_thread(erase_all, given_up)  # as slow as the disk
    except (OSError, CapacityError) as error:
        raise CapacityError(
            f"Not all could be erased: {error} Stop the agent and purge again; that needs no room on the disk."
        ) from error


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
