"""The REST client of a gateway's registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from firstline.client import connection
from firstline.fleet.request import base_url, exchange, pages, send
from firstline_core.bundle.trust_http import HttpMetadata
from firstline_core.errors import IntegrityError, NotFoundError, UnknownModelError
from firstline_core.fleet.registry import (
    ALIASES_PATH,
    BLOBS_PATH,
    BUNDLES_PATH,
    CONFIGURATIONS_PATH,
    METADATA_PATH,
    ONLINE_KEY_PATH,
    REGISTRY_PATH,
    AliasChange,
    AliasList,
    AliasRequest,
    BundleEntry,
    BundlePage,
    ConfigurationEntry,
    ConfigurationPage,
    OnlineKey,
    Publication,
    RegistryStatus,
)
from firstline_core.protocol.http import error_from

_TIMEOUT_S = 60.0
_PART_BYTES = 1 << 18


class LocalFile(NamedTuple):
    """A file on this machine that is uploaded."""

    path: Path
    sha256: str
    size_bytes: int


class Registry:
    """The registry of one gateway; see `open_registry`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    @property
    def metadata(self) -> HttpMetadata:
        """The source of metadata for a `Trust`."""
        return HttpMetadata(self._client, METADATA_PATH)

    def status(self) -> RegistryStatus:
        """Returns versions, expiries and warnings."""
        return send(self._client, "GET", REGISTRY_PATH, RegistryStatus)

    def online_key(self, *, fresh: bool = False) -> OnlineKey:
        """Returns the gateway's public key for the root metadata; `fresh` makes the gateway create a new one."""
        return send(self._client, "POST" if fresh else "GET", ONLINE_KEY_PATH, OnlineKey)

    def publish(self, metadata: Sequence[bytes]) -> dict[str, int]:
        """Publishes signed metadata; returns the current version of each role."""
        return send(self._client, "POST", METADATA_PATH, dict[str, int], Publication(tuple(map(msgspec.Raw, metadata))))

    def has(self, file: LocalFile) -> bool:
        """Returns whether the registry already has a file."""
        try:
            exchange(self._client, "HEAD", f"{BLOBS_PATH}/{file.sha256}")
        except (NotFoundError, UnknownModelError):  # the answer to HEAD has no body that tells them apart
            return False
        return True

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

        exchange(
            self._client,
            "PUT",
            f"{BLOBS_PATH}/{file.sha256}",
            parts(),
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(file.size_bytes)},
        )

    @contextmanager
    def part(self, sha256: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Opens a file's bytes from `start` on; yields where they begin (0 for the whole file) and the bytes."""
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": f'"{sha256}"'}
        try:
            with self._client.stream("GET", f"{BLOBS_PATH}/{sha256}", headers=headers) as reply:
                if reply.status_code == httpx.codes.PARTIAL_CONTENT:
                    yield start, reply.iter_raw()
                elif reply.status_code == httpx.codes.OK:
                    yield 0, reply.iter_raw()
                else:
                    raise error_from(reply.status_code, reply.read(), reply.headers)
        except httpx.HTTPError as error:
            raise connection.link_error(error, base_url(self._client)) from error

    def bundles(self, model: str = "") -> Iterator[BundleEntry]:
        """Yields the signed bundles, by name and version."""

        def page(after: str) -> BundlePage:
            return send(self._client, "GET", BUNDLES_PATH, BundlePage, params={"after": after, "model": model})

        return (entry for found in pages(page) for entry in found.bundles)

    def bundle(self, model: str, version: int) -> BundleEntry:
        """Returns one bundle."""
        return send(self._client, "GET", f"{BUNDLES_PATH}/{quote(model, safe='')}/versions/{version}", BundleEntry)

    def configurations(self, name: str = "") -> Iterator[ConfigurationEntry]:
        """Yields the signed configurations, by name and version."""

        def page(after: str) -> ConfigurationPage:
            return send(
                self._client, "GET", CONFIGURATIONS_PATH, ConfigurationPage, params={"after": after, "name": name}
            )

        return (entry for found in pages(page) for entry in found.configurations)

    def configuration(self, name: str, version: int) -> ConfigurationEntry:
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

    def aliases(self, model: str = "") -> tuple[AliasChange, ...]:
        """Returns the current aliases."""
        return send(self._client, "GET", ALIASES_PATH, AliasList, params={"model": model}).aliases

    def alias_history(self, model: str, alias: str) -> tuple[AliasChange, ...]:
        """Returns the history of an alias, the newest change first."""
        return send(self._client, "GET", _alias(model, alias), AliasList).aliases

    def set_alias(self, model: str, alias: str, version: int) -> AliasChange:
        """Points an alias to a version."""
        return send(self._client, "PUT", _alias(model, alias), AliasChange, AliasRequest(version))

    def revert_alias(self, model: str, alias: str) -> AliasChange:
        """Points an alias back to its previous version."""
        return send(self._client, "POST", _alias(model, alias) + "/revert", AliasChange)

    def remove_alias(self, model: str, alias: str) -> AliasChange:
        """Deletes an alias."""
        return send(self._client, "DELETE", _alias(model, alias), AliasChange)


def _alias(model: str, alias: str) -> str:
    return f"{ALIASES_PATH}/{quote(model, safe='')}/{quote(alias, safe='')}"


@contextmanager
def open_registry(url: str, key: str, ca_file: Path | None = None) -> Iterator[Registry]:
    """Opens the registry of a gateway.

    Args:
        url: of the gateway; https unless the gateway runs on this machine.
        key: an API key with the scope "fleet".
        ca_file: CA certificates used to verify the gateway (PEM); None for those that this system trusts.

    Raises:
        ConfigError: the URL, the key or the file is not valid.
    """
    with connection.open_gateway(url, connection.authorization(key), ca_file, _TIMEOUT_S) as client:
        yield Registry(client)
