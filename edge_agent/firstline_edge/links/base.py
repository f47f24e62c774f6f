"""What a link to the gateway is, and which failures are the link's own."""

from __future__ import annotations

from typing import Protocol

from firstline_core.errors import CapacityError, FirstlineError, LinkError, NotReadyError
from firstline_core.types import InferRequest, InferResponse


class Link(Protocol):
    """One way to the gateway. Both ways raise the same tree, so that whoever asks need not know which it was."""

    @property
    def name(self) -> str:
        """For logs, metrics and `status`: "http", "mqtt"."""
        ...

    async def start(self) -> None:
        """Makes the link usable; returns without waiting for the far side."""
        ...

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """Has the gateway answer, within `timeout_s`; the request's own deadline is not looked at.

        Raises:
            LinkDownError, RemoteTimeoutError, ProtocolError: the link's fault.
            RequestError, CapacityError, RuntimeFailure: what the gateway said.
        """
        ...

    async def probe(self, timeout_s: float) -> None:
        """Finds out cheaply whether the far side is there.

        Raises:
            FirstlineError: it is not.
        """
        ...

    async def close(self) -> None: ...


def is_link_fault(error: FirstlineError) -> bool:
    """Whether an error says that the link does not work, rather than how the gateway judged one request.

    A refused token, an unknown model or a full queue are the gateway's own words: the link brought them. A
    gateway that is not ready, and a bare 503 (a proxy with nobody behind it), are no better than a dead line.
    """
    return isinstance(error, LinkError | NotReadyError) or type(error) is CapacityError
