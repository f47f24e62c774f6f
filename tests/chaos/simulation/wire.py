"""What leads away from the device: the link to the gateway, and the local broker that hears of corrections."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chaos.simulation.network import Gateway, SimulatedLink, Weather
from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, LinkDownError, RemoteTimeoutError
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.requests.deadline import within

if TYPE_CHECKING:
    from chaos.simulation.book import Book

_ANSWER_BYTES = 1200
_ACKNOWLEDGE_S = 0.003


class GatewayLink(SimulatedLink):
    """As its parent, to a gateway that may be gone, and seen by the book."""

    def __init__(self, weather: Weather, gateway: Gateway, clock: Clock, rng: random.Random, book: Book) -> None:
        super().__init__(weather, gateway, clock, rng)
        self._book = book

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        self._book.sent(request)
        ends_s = self._clock.monotonic_s() + timeout_s
        await self._cross("up", request.size_bytes + 700, ends_s)
        work = self._gateway.answer(replace(request, deadline_s=ends_s, principal="device:d1"))
        reply: InferResponse | FirstlineError
        try:
            reply = await within(self._clock, ends_s, work, "The gateway did not answer in time.")
        except LinkDownError:  # no listener, or the connection broke
            raise
        except FirstlineError as error:
            reply = error
        if self._clock.monotonic_s() >= ends_s:
            raise RemoteTimeoutError("The gateway did not answer in time.")
        await self._cross("down", _ANSWER_BYTES, ends_s)
        if isinstance(reply, FirstlineError):
            raise reply
        return reply

    async def probe(self, timeout_s: float) -> None:
        await super().probe(timeout_s)
        self._gateway.check_up()


class CorrectionPublisher:
    """The local broker: away in some stretches, and an acknowledgement may be lost with it.

    Args:
        mutes: (from, to) in seconds.
        clock: theirs.
        book: records received messages.
    """

    def __init__(self, mutes: tuple[tuple[float, float], ...], clock: Clock, book: Book) -> None:
        self._mutes = mutes
        self._clock = clock
        self._book = book

    async def wait_connected(self) -> None:
        while (until_s := self._mute_until_s()) is not None:
            await self._clock.sleep(until_s - self._clock.monotonic_s())

    async def publish(self, corrections: Sequence[InferResponse]) -> None:
        (correction,) = corrections
        if self._mute_until_s() is not None:
            raise LinkDownError("The broker is away.")
        self._book.announced(correction)
        await self._clock.sleep(_ACKNOWLEDGE_S)
        if self._mute_until_s() is not None:
            self._book.unacknowledged(correction)
            raise LinkDownError("The broker went away.")

    def _mute_until_s(self) -> float | None:
        now_s = self._clock.monotonic_s()
        return next((end for begin, end in self._mutes if begin <= now_s < end), None)
