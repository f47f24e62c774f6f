"""The interfaces of the updater to its surroundings: simulations and tests implement it as `adapters.py` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from firstline_core.fleet.target import Hardware, ListedBundle

BYTES_NEED_HTTP = (
    "Models and configurations are fetched over HTTP, and this device has no HTTP link; add [[links]] with kind = "
    '"http" and the gateway\'s url below the MQTT one, which goes on to be asked first.'
)
"""Why a device that has no HTTP link gets nothing, and what to do."""


class Catalogue(Protocol):
    """The signed bundles."""

    async def listed(self, name: str, version: int) -> ListedBundle:
        """A bundle as signed metadata lists it now.

        Raises:
            NotFoundError: it is not listed.
            UpdateError: the metadata must not be believed.
            LinkError: it cannot be had now.
        """
        ...


class ByteSource(Protocol):
    """Where files come from, by what is in them."""

    def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """The rest of a file of that size, in parts as they come.

        Raises:
            NotFoundError: there is no such file.
            FirstlineError: the file is not available now; the received bytes are valid.
        """
        ...


class Serving(Protocol):
    """The models that answer requests on this device."""

    def place(self, name: str) -> Path | None:
        """Returns the folder of the bundle that the device was set up with; None if there is none."""
        ...

    async def prepare(self, path: Path, *, trial: bool) -> Any:
        """A bundle, loaded and ready to answer; with `trial`, after its self test against the one that runs.

        Raises:
            UpdateError: it must not, or cannot, run here; SelfTestError where it does not answer as it should.
        """
        ...

    async def exchange(self, name: str, prepared: Any | None) -> None:
        """Has the prepared model answer from now on; None removes the model. Requests under way keep what they have."""
        ...

    def failed(self, name: str) -> bool:
        """Whether what answers now has failed so often since the exchange that it cannot stay."""
        ...

    async def hardware(self) -> Hardware:
        """Returns the runtimes and the capacity of this device."""
        ...
