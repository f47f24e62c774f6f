"""The protocol of a link to the gateway, its status for people, and which errors are the link's fault."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from firstline_core.errors import (
    CapacityError,
    FirstlineError,
    LinkError,
    NotReadyError,
    ProtocolError,
    RemoteTimeoutError,
)
from firstline_core.types import InferRequest, InferResponse


class LinkBusyError(RemoteTimeoutError):
    """All connections of the link were busy until the timeout: nothing was sent, and the gateway's state is unknown."""


class MessageRefusedError(ProtocolError):
    """The broker or an intermediary refused one message; the link may carry others."""


class LinkStatus(StrEnum):
    """The status of a link, for people."""

    UNKNOWN = "unknown"  # no answer yet
    UP = "up"
    REFUSED = "refused"  # the gateway answers, but refuses this device's credentials
    DOWN = "down"
    PROBING = "probing"  # down, with a probe in progress


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The status of a link.

    Args:
        address: URL, or host and port of the broker.
        problem: the last failure as a sentence; "" if there is none.
    """

    state: LinkStatus
    address: str
    problem: str = ""


class Link(Protocol):
    """One way to the gateway. Every link raises the same errors, so callers need not know which link it was.

    A link reports the bytes of each request and answer to `telemetry/link_traffic.py: count_traffic` under its name.
    Budgets of bytes, money and energy spend what it reports, so traffic that it leaves out is free.
    """

    @property
    def name(self) -> str:
        """For logs, metrics and `status`: "http", "mqtt"."""

    @property
    def address(self) -> str:
        """Where it leads, for people: a URL, or a broker's host and port."""

    @property
    def in_turn(self) -> bool:
        """Whether payloads are sent one after the other over one connection, rather than in parallel."""

    @property
    def probe_wanted(self) -> asyncio.Event:
        """Set when the link should be probed: by the link when it loses its connection, and by `LinkChain`."""

    async def start(self) -> None:
        """Starts the link; returns without waiting for the other side."""

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """Returns the gateway's answer, unchecked; waits up to `timeout_s` and ignores the request's own deadline.

        Calls `count_traffic`, also for bytes that were sent in vain.

        Raises:
            LinkDownError, RemoteTimeoutError, ProtocolError: the link's fault.
            RequestError, CapacityError, RuntimeFailure: the gateway's error.
        """

    async def probe(self, timeout_s: float) -> None:
        """Checks cheaply whether the other side answers.

        Raises:
            FirstlineError: it does not.
        """

    async def discard_connections(self) -> None:
        """Uses other connections for new requests, because one of them carried an answer that was not accepted."""

    async def reconnect(self) -> None:
        """Uses the device's current certificate from now on; requests in progress may end on the old connections."""

    async def close(self) -> None: ...


def is_link_fault(error: FirstlineError) -> bool:
    """Returns whether an error means that the link does not work, rather than that the gateway refused one request.

    A refused token, an unknown model or a full queue are answers of the gateway, so the link works. A gateway that is
    not ready, and a 503 of a proxy without a server behind it, count as a dead link.
    """
    return isinstance(error, LinkError | NotReadyError) or type(error) is CapacityError
