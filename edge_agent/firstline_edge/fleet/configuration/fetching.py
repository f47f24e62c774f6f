"""A configuration over the link, verified: the bytes that were signed, or none."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Protocol

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.fleet.configuration import LIMIT_BYTES
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.configuration.kept import Held


class Configurations(Protocol):
    """The signed configurations and their bytes."""

    async def configuration(self, name: str, version: int) -> SignedFile:
        """A configuration as signed metadata lists it now.

        Raises:
            NotFoundError: it is not listed.
            UpdateError: the metadata must not be believed.
            LinkError: it cannot be had now.
        """
        ...

    def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """See `updater.ports.ByteSource`."""
        ...


async def find(source: Configurations, wanted: DesiredConfiguration) -> SignedFile:
    """Returns the signed file of the desired configuration.

    Raises:
        IntegrityError: it is signed as something else.
        FirstlineError: see `Configurations.configuration`.
    """
    file = await source.configuration(wanted.name, wanted.version)
    if file.sha256 != wanted.sha256 or file.size_bytes > LIMIT_BYTES:
        raise IntegrityError(
            f"Configuration {wanted.name} version {wanted.version} is signed as {file.sha256[:12]} of "
            f"{file.size_bytes} bytes, and {wanted.sha256[:12]} is desired; start the rollout anew."
        )
    return file


async def fetch(source: Configurations, file: SignedFile, wanted: DesiredConfiguration) -> Held:
    """Brings it here.

    Raises:
        IntegrityError: other bytes came than were signed.
        ConfigError: it is not text.
        FirstlineError: it cannot be had now.
    """
    content = b""
    async for part in source.read(file.sha256, 0, file.size_bytes):
        content += part
        if len(content) > file.size_bytes:
            break
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise IntegrityError(f"{file.path} came with other bytes than were signed; is this the registry?")
    try:
        return Held(wanted.name, wanted.version, content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"Configuration {wanted.name} version {wanted.version} is no text.") from error
