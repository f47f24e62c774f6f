"""Checks regularly whether each server takes requests, and which models it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from firstline_core.clock import Clock, end_tasks
from firstline_core.errors import LinkError, RemoteTimeoutError
from firstline_core.protocol.http_client import HttpReply
from firstline_core.telemetry.logs import logger
from firstline_gateway.executors.oip.server import OipServer

_EVERY_S = 2.0
_WHILE_AWAY_S = 0.5
_TIMEOUT_S = 2.0
# One lost check does not make a server unavailable. One that accepts connections and does not answer is more likely
# busy than away, and is needed most then.
_FAILURES = 2
_SILENCES = 5
# How often the models of a server that takes requests are checked.
_MODELS_EVERY_S = 10.0
_START_S = 5.0

log = logger(__name__)


class ReadinessChecks:
    """Checks each server in a task of its own.

    Args:
        servers: to check.
        clock: for the pauses.
    """

    def __init__(self, servers: Sequence[OipServer], clock: Clock) -> None:
        self._servers = servers
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns once each server was checked, or after a time limit."""
        checked = [asyncio.Event() for _ in self._servers]
        self._tasks = [
            asyncio.create_task(self._follow(server, event))
            for server, event in zip(self._servers, checked, strict=True)
        ]
        try:
            async with asyncio.timeout(_START_S):
                await asyncio.gather(*(event.wait() for event in checked))
        except TimeoutError:
            pass  # it is checked all the same, and is unavailable until then

    async def look_for_models(self) -> None:
        """Checks the models of the available servers at once, because the models have changed."""
        for server in self._servers:
            if server.answers:
                try:
                    await self._look_for_models(server)
                except LinkError as error:
                    server.mark_unavailable(f"{server.url} is away: {error.message}.")

    async def close(self) -> None:
        await end_tasks(*self._tasks)

    async def _follow(self, server: OipServer, checked: asyncio.Event) -> None:
        failures = 0.0
        models_at_s = float("-inf")
        while True:
            try:
                before, known, now_s = server.answers, server.problem, self._clock.monotonic_s()
                problem, weight = await self._problem_of(server)
                failures = failures + weight if problem else 0
                if not problem:
                    if not before or now_s >= models_at_s:
                        await self._look_for_models(server)
                        models_at_s = now_s + _MODELS_EVERY_S
                    server.mark_available()
                elif failures >= 1 or not before:
                    server.mark_unavailable(problem)
                if server.answers and not before:
                    log.info("server answers", server=server.url)
                elif server.problem != known:
                    log.warning("server does not answer", server=server.url, problem=server.problem)
            except LinkError as error:  # it went away between two questions
                server.mark_unavailable(f"{server.url} is away: {error.message}.")
            except Exception:  # the outermost loop of a task that must never end
                log.exception("server not checked", server=server.url)
            checked.set()
            await self._clock.sleep(_EVERY_S if server.answers else _WHILE_AWAY_S)

    async def _problem_of(self, server: OipServer) -> tuple[str, float]:
        """Returns what is wrong with a server, and the weight of that evidence against it."""
        try:
            reply = await _get(server, "/v2/health/ready")
        except RemoteTimeoutError as error:
            return f"{server.url} is away: {error.message}.", 1 / _SILENCES
        except LinkError as error:
            return f"{server.url} is away: {error.message}.", 1 / _FAILURES
        if reply.status != 200:  # it says so itself
            return f"{server.url} takes no requests (HTTP status {reply.status}).", 1.0
        return "", 0.0

    async def _look_for_models(self, server: OipServer) -> None:
        replies: dict[str, HttpReply] = {}
        for key, model in tuple(server.models.items()):
            for question in model.questions:
                if question not in replies:
                    replies[question] = await _get(server, question)
            if problem := model.check(replies):
                server.record_model_problem(key, problem)
            else:
                server.record_model_usable(key)


async def _get(server: OipServer, path: str) -> HttpReply:
    return await server.transport.exchange("GET", path, {}, b"", _TIMEOUT_S)
