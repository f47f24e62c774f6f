"""Which handler an address has. What it takes out of the address are whole parts, unquoted."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from firstline_core.protocol.asgi import Request, Streamed
from firstline_core.protocol.http import Reply

Handler = Callable[[Request, str], Awaitable[Reply | Streamed]]
"""From a request and its principal to the answer."""

_PATHS_KNOWN, _KNOWN_CHARACTERS = 1024, 256
_SHOWN_CHARACTERS = 200


class Route(NamedTuple):
    """One address.

    Args:
        path: with `{name}` for any part.
        handler: of those who ask there.
        method: GET also means HEAD.
        open_to_all: whether anybody may ask.
    """

    path: str
    handler: Handler
    method: str = "GET"
    open_to_all: bool = False


class Found(NamedTuple):
    """What a request is addressed to.

    Args:
        route: there.
        parameters: the parts with names.
    """

    route: Route
    parameters: Mapping[str, str]


class NoRouteError(Exception):
    """No such address, or not with this method.

    Args:
        sentence: that says why.
        allowed: the methods that there are at this address; none where it is no address.
    """

    def __init__(self, sentence: str, allowed: Sequence[str]) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.allowed = allowed


class Router:
    """Finds routes, and knows the latest addresses.

    Args:
        routes: all that there are.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(_pattern(route.path), route) for route in routes]
        self._find_again = lru_cache(_PATHS_KNOWN)(self._find)

    def find(self, method: str, path: str) -> Found:
        """What is there.

        Args:
            method: of the request.
            path: unquoted.

        Raises:
            NoRouteError: nothing.
        """
        return (self._find if len(path) > _KNOWN_CHARACTERS else self._find_again)(method, path)

    def _find(self, method: str, path: str) -> Found:
        wanted = "GET" if method == "HEAD" else method
        allowed: list[str] = []
        for pattern, route in self._routes:
            if (match := pattern.fullmatch(path)) is not None:
                if route.method == wanted:
                    return Found(route, match.groupdict())
                allowed += ("GET", "HEAD") if route.method == "GET" else (route.method,)
        said = f"is not allowed; use {' or '.join(allowed)}" if allowed else "is not an address of this agent"
        raise NoRouteError(f"{method} {path[:_SHOWN_CHARACTERS]} {said}.", allowed)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))
