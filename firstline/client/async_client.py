"""`AsyncClient`: `Client` for asyncio, the same calls against either tier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx

from firstline.client import retries
from firstline.client.calls import Answered, Call
from firstline.client.connection import BaseClient, link_error, read_whole_async, this_loop
from firstline.client.infer_many import in_tasks
from firstline.client.retries import Steps
from firstline.client.sync_client import Client
from firstline_core.errors import FirstlineError, ProtocolError
from firstline_core.protocol.http_client import open_async_client

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Returns a method of `Client` for `AsyncClient`, whose `_send` and `_run` return what is to be awaited."""

    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast("Awaitable[T]", method(cast("Client", self), *args, **kwargs))

    return call


def _iterated(
    method: Callable[Concatenate[Client, P], Iterator[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """Returns a method of `Client` for `AsyncClient`, whose `_many` and `_follow` yield asynchronously."""
    return cast("Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]", method)


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """`Client` for asyncio: the same calls, awaited; in every event loop over connections of its own."""

    _open = staticmethod(open_async_client)
    _place = staticmethod(this_loop)
    _many = staticmethod(in_tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections of this process and event loop."""
        http = self._clients.get(self._place())
        if http is not None:
            await http.aclose()

    infer = _awaited(Client.infer)
    infer_many = _iterated(Client.infer_many)
    submit = _awaited(Client.submit)
    submit_file = _awaited(Client.submit_file)
    result = _awaited(Client.result)
    result_file = _awaited(Client.result_file)
    forget = _awaited(Client.forget)
    infer_file = _awaited(Client.infer_file)
    infer_document = _awaited(Client.infer_document)
    infer_files = _iterated(Client.infer_files)
    answer = _awaited(Client.answer)
    prediction = _awaited(Client.prediction)
    wait_for_final = _awaited(Client.wait_for_final)
    events = _iterated(Client.events)
    stream_file = _iterated(Client.stream_file)
    metadata = _awaited(Client.metadata)
    models = _awaited(Client.models)
    status = _awaited(Client.status)
    ready = _awaited(Client.ready)

    async def _send(self, call: Call[T]) -> T:
        try:
            async with self._http.stream(**self._arguments(call)) as streamed:
                response = await read_whole_async(streamed)
        except httpx.HTTPError as error:
            raise link_error(error, self.url) from error
        try:
            return call.read(response)
        except ProtocolError:  # what else comes over this connection may be wrong as well
            if (connection := response.extensions.get("network_stream")) is not None:
                await connection.aclose()
            raise

    async def _follow(
        self, first: Steps[Answered], later: Callable[[str], Call[Answered]], patience_s: float
    ) -> AsyncIterator[Answered]:
        answered = await self._run(first)
        yield answered
        if request_id := retries.provisional_id(answered):
            yield await self._run(self._followed(later(request_id), patience_s))

    async def _run(self, steps: Steps[T]) -> T:
        """Sends the calls of some steps, and waits between them."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    step = next(steps)
                    continue
                try:
                    answer = await self._send(step)
                except FirstlineError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
