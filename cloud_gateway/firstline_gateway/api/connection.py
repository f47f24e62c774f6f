"""What an endpoint knows of the connection that its request came over, beside what ASGI says.

ASGI tells that a client has left to whoever waits for the next message; a task for each request that waits for it
would cost as much as all else that is done for a small one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Scope

SCOPE_KEY = "firstline.connection"
"""Where a request's scope has it; other servers than ours put nothing there."""

T = TypeVar("T")


class Connection(Protocol):
    """One connection, whose requests are answered one after the other.

    Attributes:
        is_lost: whether it has ended.
        has_whole_body: whether the request that is answered now has come in whole; False also where that is not known.
        on_lost: called when it ends.
    """

    is_lost: bool
    on_lost: Callable[[], object] | None

    @property
    def has_whole_body(self) -> bool: ...


def connection_of(scope: Scope) -> Connection | None:
    """The connection of a request."""
    found: Connection | None = scope.get(SCOPE_KEY)
    return found


async def while_connected(connection: Connection | None, work: Awaitable[T]) -> T:
    """Waits for `work`, and cancels it when the client leaves, so that nothing runs for nobody.

    Raises:
        ClientDisconnect: the client left first.
    """
    if connection is None:
        return await work
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 (a coroutine always runs in one)
    connection.on_lost = task.cancel
    if connection.is_lost:
        task.cancel()
    try:
        return await work
    except asyncio.CancelledError:
        if connection.is_lost and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        connection.on_lost = None
