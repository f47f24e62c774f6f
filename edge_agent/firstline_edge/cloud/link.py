"""What a link to the gateway is, and which failures are the link's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from firstline_core.errors import CapacityError, FirstlineError, LinkError, NotReadyError, RemoteTimeoutError
from firstline_core.types import Attempt, InferRequest, InferResponse


class LinkBusyError(RemoteTimeoutError):
    """The link's own connections were all busy until the time was over: nothing was sent, the far side is unknown."""


class LinkStatus(StrEnum):
    """How a link is, for people."""

    UNKNOWN = "unknown"  # nothing has been heard of it yet
    UP = "up"
    REFUSED = "refused"  # the gateway is there, and does not take this device's credentials
    DOWN = "down"
    PROBING = "probing"  # down, and being tried


@dataclass(frozen=True, slots=True)
class LinkReport:
    """How a link is.

    Args:
        address: where it leads.
        problem: its last failure in a sentence, "" while nothing is wrong.
    """

    state: LinkStatus
    address: str
    problem: str = ""


class Uplink(Protocol):
    """The connection to the gateway, over whichever link works; `LinkChain` implements it."""

    async def infer(self, request: InferRequest, deadline_s: float | None, attempts: list[Attempt]) -> InferResponse:
        """The gateway's answer; each try is appended to `attempts` as it ends, also where this raises."""
        ...

    def predicted_s(self, size_bytes: int, quantile: float = 0.95) -> float | None:
        """Seconds within which this share of such requests is answered; None where nobody can tell now."""
        ...


def ignore() -> None:
    """Whom nobody listens to."""


class Link(Protocol):
    """One way to the gateway. Both ways raise the same tree, so that whoever asks need not know which it was."""

    @property
    def name(self) -> str:
        """For logs, metrics and `status`: "http", "mqtt"."""
        ...

    @property
    def address(self) -> str:
        """Where it leads, for people: a URL, or a broker's host and port."""
        ...

    @property
    def in_turn(self) -> bool:
        """Whether payloads go each after the other, as by one connection, rather than side by side."""
        ...

    async def start(self, on_lost: Callable[[], None] = ignore) -> None:
        """Makes the link usable; returns without waiting for the far side.

        Args:
            on_lost: called when the link learns by itself that the far side is gone.
        """
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
