"""A gateway's registry: signed bundles and configurations, their files and metadata, and aliases of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from firstline.fleet.api import Api
from firstline_core.bundle.trust_http import HttpMetadata
from firstline_core.errors import IntegrityError, NotFoundError, UnknownModelError
from firstline_core.fleet import registry as wire

_PART_BYTES = 1 << 18


class LocalFile(NamedTuple):
    """A file on this machine that is uploaded."""

    path: Path
    sha256: str
    size_bytes: int


class Registry(Api):
    """See `Fleet.registry`."""

    @property
    def metadata(self) -> HttpMetadata:
        """The source of metadata for a `Trust`."""
        return HttpMetadata(self._client, wire.METADATA_PATH)

    def status(self) -> wire.RegistryStatus:
        """Returns versions, expiries and warnings."""
        return self._send("GET", wire.REGISTRY_PATH, wire.RegistryStatus)

    def online_key(self, *, fresh: bool = False) -> wire.OnlineKey:
        """Returns the gateway's public key for the root metadata; `fresh` makes the gateway create a new one."""
        return self._send("POST" if fresh else "GET", wire.ONLINE_KEY_PATH, wire.OnlineKey)

    def publish(self, metadata: Sequence[bytes]) -> dict[str, int]:
        """Publishes signed metadata; returns the current version of each role."""
        return self._send(
            "POST", wire.METADATA_PATH, dict[str, int], wire.Publication(tuple(map(msgspec.Raw, metadata)))
        )

    def has(self, file: LocalFile) -> bool:
        """Returns whether the registry already has a file; one of another size is damaged, and `send` replaces it."""
        try:
            found = self._exchange("HEAD", f"{wire.BLOBS_PATH}/{file.sha256}")
        except (NotFoundError, UnknownModelError):  # the answer to HEAD has no body that tells them apart
            return False
        return found.headers.get("Content-Length") in (None, str(file.size_bytes))

    def send(self, file: LocalFile, report: Callable[[int], None]) -> None:
        """Uploads a file; calls `report` with the size of each part.

        Raises:
            IntegrityError: the file has changed since it was checked.
        """

        def parts() -> Iterator[bytes]:
            left = file.size_bytes
            with file.path.open("rb") as stream:
                while part := stream.read(_PART_BYTES):
                    left -= len(part)
                    yield part
                    report(len(part))
            if left:
                raise IntegrityError(f"{file.path} has changed while it was sent; push the bundle again.")

        self._exchange(
            "PUT",
            f"{wire.BLOBS_PATH}/{file.sha256}",
            parts(),
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(file.size_bytes)},
        )

    @contextmanager
    def part(self, sha256: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Opens a file's bytes from `start` on; yields where they begin (0 for the whole file) and the bytes."""
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": f'"{sha256}"'}
        with self._stream("GET", f"{wire.BLOBS_PATH}/{sha256}", headers=headers) as reply:
            yield (start if reply.status_code == httpx.codes.PARTIAL_CONTENT else 0), reply.iter_raw()

    def bundles(self, model: str = "") -> Iterator[wire.BundleEntry]:
        """Yields the signed bundles, by name and version."""
        for page in self._pages(wire.BUNDLES_PATH, wire.BundlePage, {"model": model}):
            yield from page.bundles

    def bundle(self, model: str, version: int) -> wire.BundleEntry:
        """Returns one bundle."""
        return self._send("GET", f"{wire.BUNDLES_PATH}/{quote(model, safe='')}/versions/{version}", wire.BundleEntry)

    def configurations(self, name: str = "") -> Iterator[wire.ConfigurationEntry]:
        """Yields the signed configurations, by name and version."""
        for page in self._pages(wire.CONFIGURATIONS_PATH, wire.ConfigurationPage, {"name": name}):
            yield from page.configurations

    def configuration(self, name: str, version: int) -> wire.ConfigurationEntry:
        """Returns one configuration.

        Raises:
            NotFoundError: it is not signed.
        """
        entry = next((one for one in self.configurations(name) if one.version == version), None)
        if entry is None:
            raise NotFoundError(
                f"The registry has no configuration {name} version {version}; `firstline config list` shows them."
            )
        return entry

    def aliases(self, model: str = "") -> tuple[wire.AliasChange, ...]:
        """Returns the current aliases."""
        return self._send("GET", wire.ALIASES_PATH, wire.AliasList, params={"model": model}).aliases

    def alias_history(self, model: str, alias: str) -> tuple[wire.AliasChange, ...]:
        """Returns the history of an alias, the newest change first."""
        return self._send("GET", _alias(model, alias), wire.AliasList).aliases

    def set_alias(self, model: str, alias: str, version: int) -> wire.AliasChange:
        """Points an alias to a version."""
        return self._send("PUT", _alias(model, alias), wire.AliasChange, wire.AliasRequest(version))

    def revert_alias(self, model: str, alias: str) -> wire.AliasChange:
        """Points an alias back to its previous version."""
        return self._send("POST", _alias(model, alias) + "/revert", wire.AliasChange)

    def remove_alias(self, model: str, alias: str) -> wire.AliasChange:
        """Deletes an alias."""
        return self._send("DELETE", _alias(model, alias), wire.AliasChange)


def _alias(model: str, alias: str) -> str:
    return f"{wire.ALIASES_PATH}/{quote(model, safe='')}/{quote(alias, safe='')}"
