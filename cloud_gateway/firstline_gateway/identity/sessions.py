"""The HTTPS connections that are open at this moment, by the certificate that opened them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Session(Protocol):
    """One connection."""

    def abort(self) -> None:
        """Closes it at once, whatever is on the way."""
        ...


class Sessions:
    """All of them; used on the event loop alone."""

    def __init__(self) -> None:
        self._open: dict[str, set[Session]] = {}

    def add(self, serial: str, session: Session) -> None:
        self._open.setdefault(serial, set()).add(session)

    def remove(self, serial: str, session: Session) -> None:
        sessions = self._open.get(serial, set())
        sessions.discard(session)
        if not sessions:
            self._open.pop(serial, None)

    def end(self, serials: Iterable[str]) -> int:
        """Closes the connections that these certificates opened.

        Returns:
            How many there were.
        """
        ended = [session for serial in serials for session in self._open.get(serial, ())]
        for session in ended:
            session.abort()
        return len(ended)
