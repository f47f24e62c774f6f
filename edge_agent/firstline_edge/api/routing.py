"""Finds the handler of a request by its method and path. Parameters are whole, unquoted parts of the path."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from firstline_core.protocol.asgi import Request, Streamed
from firstline_core.protocol.http import Reply

Handler = Callable[[Request, str], Awaitable[Reply | Streamed]]
"""Answers a request of an authenticated principal."""

_REMEMBERED_PATHS, _REMEMBERED_CHARACTERS = 1024, 256
_SHOWN_CHARACTERS = 200


class Route(NamedTuple):
    """One endpoint.

    Args:
        path: with `{name}` for a parameter.
        handler: of its requests.
        method: GET includes HEAD.
        open_to_all: whether callers need no authentication.
    """

    path: str
    handler: Handler
    method: str = "GET"
    open_to_all: bool = False


class Found(NamedTuple):
    """The endpoint of a request.

    Args:
        route: its route.
        parameters: of the path, by name.
    """

    route: Route
    parameters: Mapping[str, str]


class NoRouteError(Exception):
    """Raised when no endpoint has this path and method.

    Args:
        sentence: the reason.
        allowed: the methods of this path; empty if the path does not exist.
    """

    def __init__(self, sentence: str, allowed: Sequence[str]) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.allowed = allowed


class Router:
    """Finds routes, and remembers the latest paths.

    Args:
        routes: every endpoint.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(_pattern(route.path), route) for route in routes]
        self._find_remembered = lru_cache(_REMEMBERED_PATHS)(self._find)

    def find(self, method: str, path: str) -> Found:
        """Returns the endpoint of a request.

        Args:
            method: of the request.
            path: unquoted.

        Raises:
            NoRouteError: there is none.
        """
        return (self._find if len(path) > _REMEMBERED_CHARACTERS else self._find_remembered)(method, path)

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
