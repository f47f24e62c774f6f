"""The REST client of a gateway's registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from firstline.client import connection
from firstline.release.listing import File
from firstline_core.bundle.trust_http import HttpMetadata
from firstline_core.errors import IntegrityError, NotFoundError, ProtocolError
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
from firstline_core.protocol.http_errors import error_from

_TIMEOUT_S = 60.0
_PART_BYTES = 1 << 18

_T = TypeVar("_T")


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
        return self._asked("GET", REGISTRY_PATH, RegistryStatus)

    def online_key(self, *, fresh: bool = False) -> OnlineKey:
        """Returns the gateway's public key for the root metadata; `fresh` makes the gateway create a new one."""
        return self._asked("POST" if fresh else "GET", ONLINE_KEY_PATH, OnlineKey)

    def publish(self, metadata: Sequence[bytes]) -> dict[str, int]:
        """Publishes signed metadata; returns the current version of each role."""
        return self._asked("POST", METADATA_PATH, dict[str, int], Publication(tuple(map(msgspec.Raw, metadata))))

    def has(self, file: File) -> bool:
        """Returns whether the registry already has a file."""
        reply = self._reply("HEAD", f"{BLOBS_PATH}/{file.sha256}")
        if reply.status_code == httpx.codes.NOT_FOUND:
            return False
        if reply.status_code != httpx.codes.OK:
            raise error_from(reply.status_code, reply.content, reply.headers)
        return True

    def send(self, file: File, report: Callable[[int], None]) -> None:
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

        self._asked(
            "PUT",
            f"{BLOBS_PATH}/{file.sha256}",
            dict[str, object],
            content=parts(),
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
            raise connection.link_error(error, self._url) from error

    def bundles(self, model: str = "") -> Iterator[BundleEntry]:
        """Yields the signed bundles, by name and version."""
        after: str | None = ""
        while after is not None:
            query = f"?after={quote(after, safe='')}&model={quote(model, safe='')}"
            page = self._asked("GET", BUNDLES_PATH + query, BundlePage)
            yield from page.bundles
            after = page.after

    def bundle(self, model: str, version: int) -> BundleEntry:
        """Returns one bundle."""
        return self._asked("GET", f"{BUNDLES_PATH}/{quote(model, safe='')}/versions/{version}", BundleEntry)

    def configurations(self, name: str = "") -> Iterator[ConfigurationEntry]:
        """Yields the signed configurations, by name and version."""
        after: str | None = ""
        while after is not None:
            query = f"?after={quote(after, safe='')}&name={quote(name, safe='')}"
            page = self._asked("GET", CONFIGURATIONS_PATH + query, ConfigurationPage)
            yield from page.configurations
            after = page.after

    def configuration(self, name: str, version: int) -> ConfigurationEntry:
        """Returns one configuration.

        Raises:
            NotFoundError: it is not signed.
        """
        found = next((one for one in self.configurations(name) if one.version == version), None)
        if found is None:
            raise NotFoundError(f"The registry has no configuration {name} version {version}.")
        return found

    def aliases(self, model: str = "") -> tuple[AliasChange, ...]:
        """Returns the current aliases."""
        return self._asked("GET", f"{ALIASES_PATH}?model={quote(model, safe='')}", AliasList).aliases

    def alias_history(self, model: str, alias: str) -> tuple[AliasChange, ...]:
        """Returns the history of an alias, the newest change first."""
        return self._asked("GET", _alias(model, alias), AliasList).aliases

    def set_alias(self, model: str, alias: str, version: int) -> AliasChange:
        """Points an alias to a version."""
        return self._asked("PUT", _alias(model, alias), AliasChange, AliasRequest(version))

    def revert_alias(self, model: str, alias: str) -> AliasChange:
        """Points an alias back to its previous version."""
        return self._asked("POST", _alias(model, alias) + "/revert", AliasChange)

    def remove_alias(self, model: str, alias: str) -> AliasChange:
        """Deletes an alias."""
        return self._asked("DELETE", _alias(model, alias), AliasChange)

    @property
    def _url(self) -> str:
        return str(self._client.base_url).rstrip("/")

    def _asked(
        self,
        method: str,
        path: str,
        kind: type[_T],
        body: object = None,
        *,
        content: Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> _T:
        said = content if body is None else msgspec.json.encode(body)
        kinds = {"Content-Type": "application/json"} if body is not None else {}
        response = self._reply(method, path, said, kinds | (headers or {}))
        if not response.is_success:
            raise error_from(response.status_code, response.content, response.headers)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"{self._url} does not answer as a Firstline gateway: {error}.") from error

    def _reply(
        self, method: str, path: str, said: bytes | Iterator[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        try:
            return self._client.request(method, path, content=said, headers=headers)
        except httpx.HTTPError as error:
            raise connection.link_error(error, self._url) from error


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
