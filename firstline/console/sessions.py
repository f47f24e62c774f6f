"""The persons who are signed in, in memory: a restart of the console signs everybody out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from firstline_core.fleet.persons import Person

COOKIE = "firstline-console"
SESSION_S = 12 * 3600.0
_MOST = 10_000


class _Session(NamedTuple):
    person: Person
    until_s: float


class Sessions:
    """Sessions by the token in the browser's cookie.

    Args:
        now_s: monotonic time.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._sessions: dict[str, _Session] = {}

    def begin(self, person: Person) -> str:
        """Returns the token of a new session."""
        if len(self._sessions) >= _MOST:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(32)
        self._sessions[token] = _Session(person, self._now_s() + SESSION_S)
        return token

    def person(self, token: str) -> Person | None:
        """Returns the person of a session; None if it has ended."""
        found = self._sessions.get(token)
        if found is None or found.until_s <= self._now_s():
            self._sessions.pop(token, None)
            return None
        return found.person

    def end(self, token: str) -> None:
        """Ends a session."""
        self._sessions.pop(token, None)
