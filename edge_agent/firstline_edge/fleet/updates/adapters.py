"""The updater's ports on the real world: signed metadata and blobs of a registry, and the agent's own models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from firstline_core.bundle.trust_http import HttpMetadata
from firstline_core.errors import IntegrityError, LinkDownError, ProtocolError, SelfTestError, SignatureError
from firstline_core.fleet.registry import BLOBS_PATH, METADATA_PATH
from firstline_core.fleet.target import Hardware, ListedBundle, find_bundle
from firstline_core.runtime.threads import in_daemon_thread
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.updates.ports import BYTES_NEED_HTTP
from firstline_edge.fleet.updates.self_test import self_test
from firstline_edge.fleet.updates.verifying import verified
from firstline_edge.models.held import HeldModel
from firstline_edge.models.reloading import Reloading

_ROOT_LIMIT_BYTES = 512_000
_WHOLE, _PARTIAL = 200, 206
# A trial's answers that got none, of at least so many.
_LEAST_ROWS, _FAILED_SHARE = 20, 0.5


class SignedCatalogue:
    """A `Catalogue` of the targets in The Update Framework's metadata.

    Args:
        folder: where verified metadata is kept.
        http: to the registry.
        root: the root metadata that the device was given; None where it was given none.
        now_s: the time that expiry is judged by.
    """

    def __init__(self, folder: Path, http: FleetHttp, root: Path | None, now_s: Callable[[], float]) -> None:
        self._folder = folder
        self._http = http
        self._root = root
        self._now_s = now_s
        self._turn = threading.Lock()  # one look at a time, though nobody may wait for the one before any more

    async def listed(self, name: str, version: int) -> ListedBundle:
        """See `Catalogue`."""
        return find_bundle(await self.files(), name, version)

    async def files(self) -> dict[str, SignedFile]:
        """All that is signed now, by path; raises as `find_bundle` does."""
        return await in_daemon_thread(self._files)  # a slow registry holds up nobody's end

    def _files(self) -> dict[str, SignedFile]:
        with self._turn, self._http.blocking_client() as client:
            return verified(
                self._folder, HttpMetadata(client, METADATA_PATH), anchor=self._anchor(), now_s=self._now_s()
            )

    def _anchor(self) -> bytes:
        if self._root is None:
            raise SignatureError("This device does not know whose signatures count; set fleet.root_file.")
        try:
            with self._root.open("rb") as stream:
                return stream.read(_ROOT_LIMIT_BYTES)
        except OSError as error:
            raise SignatureError(f"fleet.root_file {self._root} cannot be read: {error.strerror}.") from error


class RegistryBytes:
    """A `ByteSource`: blobs by their sha256, from where they broke off."""

    def __init__(self, http: FleetHttp) -> None:
        self._http = http

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """See `ByteSource`."""
        headers = {"Range": f"bytes={offset}-{size_bytes - 1}"} if offset else {}
        async with self._http.streaming("GET", f"{BLOBS_PATH}/{sha256}", headers) as response:
            if response.status_code not in (_WHOLE, _PARTIAL):
                raise ProtocolError(
                    f"A file is answered with HTTP status {response.status_code}; does somebody between here and the "
                    "registry want a login?"
                )
            passed = 0 if response.status_code == _PARTIAL or not offset else offset
            async for part in response.aiter_raw():
                if passed < len(part):
                    yield part[passed:]
                passed = max(0, passed - len(part))


class NoRegistry:
    """A `Catalogue` and a `ByteSource` of a device without a connection to a registry."""

    async def listed(self, name: str, version: int) -> ListedBundle:
        """See `Catalogue`."""
        raise LinkDownError(BYTES_NEED_HTTP)

    async def files(self) -> dict[str, SignedFile]:
        """See `SignedCatalogue`."""
        raise LinkDownError(BYTES_NEED_HTTP)

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """See `ByteSource`."""
        raise LinkDownError(BYTES_NEED_HTTP)
        yield b""


class AgentServing:
    """A `Serving`: the models that this agent holds.

    Args:
        reloading: exchanges them.
        hold: opens, loads and measures one bundle; blocks.
        running: returns the model that answers for a name now.
        answered: rows of a version so far, and those that got no answer.
        hardware: returns the device's runtimes and capacity; blocks.
    """

    def __init__(
        self,
        reloading: Reloading,
        hold: Callable[[Path], HeldModel],
        *,
        running: Callable[[str], HeldModel | None],
        answered: Callable[[HeldModel], tuple[int, int]],
        hardware: Callable[[], Hardware],
    ) -> None:
        self._reloading = reloading
        self._hold = hold
        self._running = running
        self._answered = answered
        self._hardware = hardware
        self._before: dict[str, tuple[int, int]] = {}

    def place(self, name: str) -> Path | None:
        """See `Serving`."""
        return self._reloading.place(name)

    async def prepare(self, path: Path, *, trial: bool) -> HeldModel:
        """See `Serving`."""
        held = await asyncio.to_thread(self._hold, path)
        if trial:
            await asyncio.to_thread(self_test, held, self._running(held.manifest.name))
        elif held.edge is None and held.manifest.edge:
            raise SelfTestError(f"{held.manifest.name} version {held.version} does not run here: {held.problem}")
        return held

    async def exchange(self, name: str, prepared: HeldModel | None) -> None:
        """See `Serving`."""
        if prepared is not None:
            if prepared.manifest.name != name:
                raise IntegrityError(f"What is to answer as {name} calls itself {prepared.manifest.name}.")
            self._before[name] = self._answered(prepared)
        own = prepared is None or prepared.bundle.path == self.place(name)
        await self._reloading.exchange(name, prepared, None if own or prepared is None else prepared.bundle.path)

    def failed(self, name: str) -> bool:
        """See `Serving`."""
        held = self._running(name)
        if held is None:
            return False
        rows, errors = (
            now - then for now, then in zip(self._answered(held), self._before.get(name, (0, 0)), strict=True)
        )
        return rows >= _LEAST_ROWS and errors > _FAILED_SHARE * rows

    async def hardware(self) -> Hardware:
        """See `Serving`."""
        return await asyncio.to_thread(self._hardware)
