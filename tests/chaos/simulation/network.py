"""A link to a gateway that is not there: delays, a bottleneck, losses, stalls and dead stretches, on a clock.

It implements `firstline_edge.cloud.link.Link`, so that the agent's own chain, breaker and cascade run over it. The far
side answers with what the full model said of the same row when the pool was collected.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from firstline_core.clock import Clock
from firstline_core.errors import RemoteTimeoutError
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.telemetry.link_traffic import count_traffic

_PACKET_BYTES = 1448
_HEAD_BYTES = 700  # of a request: HTTP head and tensor description
_ANSWER_BYTES = 1200
_RETRANSMIT_S = 0.2  # the shortest wait of TCP on Linux before it sends again what was lost


@dataclass(frozen=True, slots=True)
class Weather:
    """What a link is like.

    Args:
        name: for people.
        rtt_ms: round trip of an empty packet.
        jitter_ms: mean of what comes on top, exponentially distributed.
        mbit_s: of the bottleneck, in either direction; transfers queue for it.
        loss: share of packets lost; each costs a retransmission's wait, doubled while it is lost again.
        stalls: (from, to) in seconds: nothing moves, what was under way comes through afterwards.
        off: (from, to) in seconds: nothing comes through, without an error.
    """

    name: str
    rtt_ms: float
    mbit_s: float
    jitter_ms: float = 2.0
    loss: float = 0.0
    stalls: Sequence[tuple[float, float]] = ()
    off: Sequence[tuple[float, float]] = ()


class Gateway(Protocol):
    """What stands at the far end."""

    async def answer(self, request: InferRequest) -> InferResponse: ...


class SimulatedLink:
    """One way to the gateway.

    Args:
        weather: what it is like.
        gateway: at its far end.
        clock: all its times are on it.
        rng: for jitter and losses.

    Attributes:
        sent_bytes: so far, retransmissions and probes included.
        requests, probes: begun so far.
    """

    name = "simulated"
    address = "simulated://gateway"
    in_turn = True

    def __init__(self, weather: Weather, gateway: Gateway, clock: Clock, rng: random.Random) -> None:
        self._weather = weather
        self._gateway = gateway
        self._clock = clock
        self._rng = rng
        self.probe_wanted = asyncio.Event()
        self._free_at_s = {"up": 0.0, "down": 0.0}
        self.sent_bytes = 0
        self.requests = 0
        self.probes = 0

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def reconnect(self) -> None:
        pass

    async def discard_connections(self) -> None:
        pass

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """The full model's answer.

        Raises:
            RemoteTimeoutError: it is not there in time.
        """
        self.requests += 1
        ends_s = self._clock.monotonic_s() + timeout_s
        sent = request.size_bytes + _HEAD_BYTES
        count_traffic(self.name, sent=sent)
        await self._cross("up", sent, ends_s)
        response = await self._gateway.answer(request)
        await self._cross("down", _ANSWER_BYTES, ends_s)
        count_traffic(self.name, received=_ANSWER_BYTES)
        return response

    async def probe(self, timeout_s: float) -> None:
        """As `infer`, with next to nothing."""
        self.probes += 1
        ends_s = self._clock.monotonic_s() + timeout_s
        await self._cross("up", _HEAD_BYTES, ends_s)
        await self._cross("down", _HEAD_BYTES, ends_s)

    async def _cross(self, direction: str, size_bytes: int, ends_s: float) -> None:
        """Returns once `size_bytes` bytes have arrived.

        Raises:
            RemoteTimeoutError: they have not by `ends_s`.
        """
        now_s = self._clock.monotonic_s()
        lost = self._lost(-(-size_bytes // _PACKET_BYTES))
        if direction == "up":
            self.sent_bytes += size_bytes + len(lost) * _PACKET_BYTES
        on_the_line_s = size_bytes * 8 / (self._weather.mbit_s * 1e6)
        starts_s = max(now_s, self._free_at_s[direction])
        arrives_s = self._awake(starts_s + on_the_line_s)
        self._free_at_s[direction] = min(arrives_s, max(ends_s, now_s))  # who gives up makes room
        arrives_s += self._weather.rtt_ms / 2000 + self._rng.expovariate(1) * self._weather.jitter_ms / 1000
        arrives_s = self._awake(arrives_s + max(lost, default=0.0))
        if self._within(self._weather.off, now_s) or self._within(self._weather.off, arrives_s) or arrives_s > ends_s:
            await self._clock.sleep(max(0.0, ends_s - now_s))
            raise RemoteTimeoutError("The gateway did not answer in time.")
        await self._clock.sleep(arrives_s - now_s)

    def _lost(self, packets: int) -> list[float]:
        """Of each packet that is lost, how long its last retransmission is waited for."""
        waits_s = []
        for _ in range(packets):
            wait_s = 0.0
            while self._rng.random() < self._weather.loss:
                wait_s = 2 * wait_s + _RETRANSMIT_S + self._weather.rtt_ms / 1000
            if wait_s:
                waits_s.append(wait_s)
        return waits_s

    def _awake(self, when_s: float) -> float:
        """The same moment, or the end of the stall that it falls into."""
        return next((end for begin, end in self._weather.stalls if begin <= when_s < end), when_s)

    @staticmethod
    def _within(stretches: Sequence[tuple[float, float]], when_s: float) -> bool:
        return any(begin <= when_s < end for begin, end in stretches)
