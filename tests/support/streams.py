"""A TCP server on a test's event loop, whose connections end with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from firstline.demo.cuttable_link import close_listener


@asynccontextmanager
async def serving_streams(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serves each connection with `serve`; yields the port.

    Before Python 3.13 `asyncio.Server` leaves connections open: of a client in a thread, one may come late.
    """
    connections: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.current_task()] = writer
        await serve(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await close_listener(server)
        for writer in connections.values():
            writer.transport.abort()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.gather(*[writer.wait_closed() for writer in connections.values()], return_exceptions=True)
