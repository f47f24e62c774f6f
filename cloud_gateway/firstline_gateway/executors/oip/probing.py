"""Checks regularly whether each server takes requests, and which models it has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from firstline_core.clock import Clock
from firstline_core.errors import LinkError, RemoteTimeoutError
from firstline_core.protocol.http_client import HttpReply
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.executors.oip.calls import Transport
from firstline_gateway.executors.oip.dialects import FarModel
from firstline_gateway.executors.oip.endpoints import Endpoint

_EVERY_S = 2.0
_WHILE_AWAY_S = 0.5
_TIMEOUT_S = 2.0
# One lost probe does not make a server unavailable. One that accepts connections and does not answer is more likely
# busy than away, and is needed most then.
_FAILURES = 2
_SILENCES = 5
# How often the models of a server that takes requests are checked.
_MODELS_EVERY_S = 10.0
_START_S = 5.0

log = logger(__name__)


class Probing:
    """One task for each server.

    Args:
        transports: the way to each.
        models: that they should have.
        clock: for the pauses.
    """

    def __init__(
        self, transports: Mapping[Endpoint, Transport], models: Mapping[ModelKey, FarModel], clock: Clock
    ) -> None:
        self._transports = transports
        self._models = models
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns once each server was probed, or after a time limit."""
        probed = [asyncio.Event() for _ in self._transports]
        self._tasks = [
            asyncio.create_task(self._follow(endpoint, event))
            for endpoint, event in zip(self._transports, probed, strict=True)
        ]
        try:
            async with asyncio.timeout(_START_S):
                await asyncio.gather(*(event.wait() for event in probed))
        except TimeoutError:
            pass  # it is probed all the same, and is unavailable until then

    async def look_for_models(self) -> None:
        """Checks the models of the available servers at once, because the models have changed."""
        for endpoint in self._transports:
            if endpoint.answers:
                try:
                    await self._look_for_models(endpoint)
                except LinkError as error:
                    endpoint.lost(f"{endpoint.url} is away: {error.message}.")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, endpoint: Endpoint, probed: asyncio.Event) -> None:
        failures = 0.0
        models_at_s = float("-inf")
        while True:
            try:
                before, known, now_s = endpoint.answers, endpoint.problem, self._clock.monotonic_s()
                problem, weight = await self._problem_of(endpoint)
                failures = failures + weight if problem else 0
                if not problem:
                    if not before or now_s >= models_at_s:
                        await self._look_for_models(endpoint)
                        models_at_s = now_s + _MODELS_EVERY_S
                    endpoint.found()
                elif failures >= 1 or not before:
                    endpoint.lost(problem)
                if endpoint.answers and not before:
                    log.info("server answers", server=endpoint.url)
                elif endpoint.problem != known:
                    log.warning("server does not answer", server=endpoint.url, problem=endpoint.problem)
            except LinkError as error:  # it went away between two questions
                endpoint.lost(f"{endpoint.url} is away: {error.message}.")
            except Exception:  # the outermost loop of a task that must never end
                log.exception("server not probed", server=endpoint.url)
            probed.set()
            await self._clock.sleep(_EVERY_S if endpoint.answers else _WHILE_AWAY_S)

    async def _problem_of(self, endpoint: Endpoint) -> tuple[str, float]:
        """Returns what is wrong with a server, and the weight of that evidence against it."""
        try:
            reply = await self._get(endpoint, "/v2/health/ready")
        except RemoteTimeoutError as error:
            return f"{endpoint.url} is away: {error.message}.", 1 / _SILENCES
        except LinkError as error:
            return f"{endpoint.url} is away: {error.message}.", 1 / _FAILURES
        if reply.status != 200:  # it says so itself
            return f"{endpoint.url} takes no requests (HTTP status {reply.status}).", 1.0
        return "", 0.0

    async def _look_for_models(self, endpoint: Endpoint) -> None:
        replies: dict[str, HttpReply] = {}
        for key, model in tuple(self._models.items()):
            for question in model.questions:
                if question not in replies:
                    replies[question] = await self._get(endpoint, question)
            problem = model.check(replies)
            if not problem:
                endpoint.has(key)
            elif endpoint.lacks(key, f"{endpoint.url} does not answer for '{key.name}': {problem}"):
                log.error("server does not answer for a model", model=key.name, server=endpoint.url, problem=problem)

    async def _get(self, endpoint: Endpoint, path: str) -> HttpReply:
        return await self._transports[endpoint].exchange("GET", path, {}, b"", _TIMEOUT_S)
