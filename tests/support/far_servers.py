"""Servers behind a gateway, in simulated time: they implement the transport, and answer by the real codec."""

import asyncio

import numpy as np
import orjson
from support.gateway import served_as

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, InvalidTensorError, LinkDownError, RemoteTimeoutError
from firstline_core.protocol.http import error_reply, headers_for
from firstline_core.protocol.http_client import HttpReply
from firstline_core.protocol.oip import Origin, decode_request, encode_response
from firstline_core.types import Answer, InferRequest, InferResponse, ModelKey, Reason, Status, Tensor, Tier

SERVED = served_as(ModelKey("m", 3))
M, MANIFEST = SERVED.key, SERVED.manifest


def row(value: float) -> list[float]:
    """What every server says of a row."""
    return [value, 1 - value]


class FarGateway:
    """A Firstline gateway, as its transport shows it. Attributes may be changed at any moment."""

    def __init__(self, clock: Clock, seconds: float = 0.01) -> None:
        self._clock = clock
        self.seconds = seconds
        self.there = True  # else connections are refused, and what is under way is cut off
        self.ready = True
        self.silent = False
        self.digest = MANIFEST.full_digest
        self.said_digest = ""  # in answers, where it differs
        self.error: FirstlineError | None = None
        self.fails_every = 1  # of how many requests one gets the error
        self.requests: list[InferRequest] = []
        self.timeouts_s: list[float] = []
        self.running = self.cancelled = 0
        self.closed = False

    async def exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes, timeout_s: float
    ) -> HttpReply:
        if not self.there:
            raise LinkDownError("it cannot be reached (Connection refused)")
        if method == "GET":
            return self._about(path)
        self.running += 1
        try:
            return await self._infer(path, headers, body, timeout_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.closed = True

    def _about(self, path: str) -> HttpReply:
        if path == "/v2/health/ready":
            return HttpReply(200 if self.ready else 400, {}, b"{}")
        assert path == "/firstline/v1/models"
        listed = [{"name": "m", "version": "3", "full_model_digest": self.digest}]
        return HttpReply(200, {}, orjson.dumps({"models": listed}))

    async def _infer(self, path: str, headers: dict[str, str], body: bytes, timeout_s: float) -> HttpReply:
        assert path == "/v2/models/m/versions/3/infer"
        length = headers.get("Inference-Header-Content-Length")
        request = decode_request("m", body, int(length) if length else None, Origin(now_s=self._clock.monotonic_s()))
        self.requests.append(request)
        number = len(self.requests)
        self.timeouts_s.append(timeout_s)
        seconds = timeout_s if self.silent else self.seconds
        await self._clock.sleep(min(seconds, timeout_s))
        if not self.there:
            raise LinkDownError("it closed the connection (without an answer)")
        if seconds >= timeout_s:
            raise RemoteTimeoutError(f"it did not answer within {timeout_s:.3g} s")
        error = self.error if number % self.fails_every == 0 else None
        if error is None and (request.inputs[0].array < 0).any():
            error = InvalidTensorError("A row is negative.")
        if error is not None:
            reply = error_reply(error)
            return HttpReply(reply.status, {name.lower(): value for name, value in reply.headers.items()}, reply.body)
        return self._answer(request)

    def _answer(self, request: InferRequest) -> HttpReply:
        rows = np.array([row(float(value)) for value in request.inputs[0].array[:, 0]], np.float32)
        digest = self.said_digest or self.digest
        answer = Answer("r", Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, digest)
        response = InferResponse("m", "3", (Tensor("probabilities", rows),), id=request.id, answer=answer)
        encoded = encode_response(request, response)
        return HttpReply(200, {name.lower(): value for name, value in headers_for(encoded).items()}, encoded.body)
