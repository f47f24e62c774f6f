"""Erases stored payloads, and data that was derived from them.

A running agent erases its own data on request of a caller who may write in its state directory. The files of an agent
that does not run are erased directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firstline_core.errors import CapacityError, ForbiddenError, RequestError
from firstline_core.protocol import http
from firstline_core.protocol.asgi import Request
from firstline_core.protocol.http import Reply
from firstline_core.protocol.limits import Limits
from firstline_core.storage.files import erase, erase_all
from firstline_edge.audits.samples import SampleLog
from firstline_edge.cache.results import ResultCache
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.requests.recorder import Recorder
from firstline_edge.state import StateDirectory, StatePaths

PLACES = ("outbox", "cache", "samples", "decisions")
"""What can be named: requests and answers, results, scores of audited answers, the decision log."""


def paths(state_dir: Path) -> dict[str, Path]:
    """Returns the path with which the files of each place begin."""
    state = StatePaths(state_dir)
    return {place: getattr(state, f"{place}_path") for place in PLACES}


def sizes_bytes(state_dir: Path) -> dict[str, int]:
    """Returns the size of each place's files.

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


@dataclass(eq=False)
class Erasure:
    """Erases places of the agent that runs.

    Args:
        state: knows who may write in the state directory.
        outbox: promises end without an answer.
        cache: results.
        samples: scores of audited answers; the certificates' records stay.
        recorder: the decision log.
    """

    state: StateDirectory
    outbox: Outbox
    cache: ResultCache
    samples: SampleLog
    recorder: Recorder

    def check(self, proof: str) -> None:
        """Checks that the caller may write in the state directory.

        Args:
            proof: a value that the caller wrote there.

        Raises:
            ForbiddenError: the proof is wrong.
        """
        if not self.state.takes_proof(proof):
            raise ForbiddenError(
                "Only a user who may write in the agent's state directory may erase: use `edge-agent purge`."
            )

    async def erase(self, places: Collection[str]) -> None:
        """Erases places while the agent runs.

        Args:
            places: names of `PLACES`.

        Raises:
            RequestError: an unknown place.
            CapacityError: the disk refuses.
        """
        if unknown := set(places) - set(PLACES):
            raise RequestError(f"There is nothing called {min(unknown)!r} to erase; there are {', '.join(PLACES)}.")
        files: list[Path] = []
        try:
            if "outbox" in places:
                await self.outbox.purge()
            if "cache" in places:
                files += self.cache.clear()
            if "samples" in places:
                files += self.samples.clear()
            if "decisions" in places:
                files += self.recorder.clear()
            await asyncio.to_thread(erase_all, files)  # as slow as the disk
        except (OSError, CapacityError) as error:
            raise CapacityError(
                f"Not all could be erased: {error} Stop the agent and purge again; that needs no room on the disk."
            ) from error


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


_PURGE_LIMITS = Limits(body_bytes=4096)


class _PurgeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places to erase, and the content of the proof file that the caller has just written."""

    places: list[str]
    proof: str


async def purge_reply(erasure: Erasure, request: Request) -> Reply:
    """Erases the places that the body names, and returns their names.

    Raises:
        RequestError: the body is not valid, or names an unknown place.
        ForbiddenError: the caller has not proved that it may erase.
        CapacityError: the disk refuses.
    """
    body = await request.body(_PURGE_LIMITS)
    try:
        purge = msgspec.json.decode(body, type=_PurgeRequest)
    except msgspec.MsgspecError as error:
        raise RequestError(f"The body is not a valid purge request: {error}.") from error
    erasure.check(purge.proof)
    await erasure.erase(purge.places)
    return http.json_reply({"erased": purge.places})
