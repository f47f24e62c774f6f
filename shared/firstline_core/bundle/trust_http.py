"""Metadata over HTTP, from a gateway's registry or any other file server: a source for `trust.py`."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from firstline_core.errors import LinkDownError, NotFoundError, RemoteTimeoutError
from firstline_core.protocol.http import error_of_gateway
from firstline_core.protocol.http_client import HTTP_FAILURES

TIMEOUT_S = 15.0
_REFUSAL_BYTES = 65_536


class HttpMetadata:
    """A `MetadataSource`.

    Args:
        client: with trusted authorities and credentials.
        folder: base address of the files.
    """

    def __init__(self, client: httpx.Client, folder: str) -> None:
        self._client = client
        self._folder = folder.rstrip("/") + "/"

    def fetch(self, name: str) -> Iterator[bytes]:
        """See `MetadataSource`."""
        try:
            with self._client.stream(
                "GET", self._folder + name, headers={"Accept-Encoding": "identity"}, timeout=TIMEOUT_S
            ) as response:
                if response.status_code == httpx.codes.NOT_FOUND:
                    raise NotFoundError(f"There is no {name}")
                if response.status_code != httpx.codes.OK:
                    refusal = next(response.iter_raw(_REFUSAL_BYTES), b"")
                    raise error_of_gateway(response.status_code, refusal, response.headers)
                yield from response.iter_raw()
        except httpx.TimeoutException as error:
            raise RemoteTimeoutError(f"The registry did not answer within {TIMEOUT_S:g} s ({name}).") from error
        except HTTP_FAILURES as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise LinkDownError(f"The registry cannot be reached for {name}: {reason}.") from error
