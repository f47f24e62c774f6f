"""`Client` and `AsyncClient`, asked in one way."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

from firstline import AsyncClient, Client


class Asker:
    """One of the two clients, for as long as its `async with` block.

    Args:
        kind: "sync" or "async".
        url: of a tier, or of another server.
        arguments: further ones of the client.
    """

    def __init__(self, kind: str, url: str, **arguments: Any) -> None:
        self.client: Client | AsyncClient = (Client if kind == "sync" else AsyncClient)(url, **arguments)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self("close")

    async def __call__(self, name: str, *arguments: Any, **named: Any) -> Any:
        """The result of a method."""
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncClient):
            return await method(*arguments, **named)
        return await asyncio.to_thread(method, *arguments, **named)

    async def begin(self, name: str, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        """What a method yields, as it comes."""
        found = getattr(self.client, name)(*arguments, **named)
        if isinstance(self.client, AsyncClient):
            async for item in found:
                yield item
        else:
            nothing = object()
            while (item := await asyncio.to_thread(next, found, nothing)) is not nothing:
                yield item

    async def all(self, name: str, *arguments: Any, **named: Any) -> list[Any]:
        """All that a method yields."""
        return [item async for item in self.begin(name, *arguments, **named)]
