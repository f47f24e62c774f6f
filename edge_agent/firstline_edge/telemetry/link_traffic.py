"""The bytes that one call sends and receives, counted in the links."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Traffic:
    """The traffic of one call over the links, in order.

    Args:
        crossed: (name of the link, bytes sent, bytes received).
    """

    crossed: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def last_bytes(self) -> int:
        """Bytes of the last request and the last answer, without earlier failed tries."""
        sent = next((sent for _, sent, _ in reversed(self.crossed) if sent), 0)
        return sent + next((received for _, _, received in reversed(self.crossed) if received), 0)


# A call tries several links, each of which may try several connections: what they all send is one call's.
_current: ContextVar[Traffic | None] = ContextVar("traffic", default=None)


@contextmanager
def counting_traffic() -> Iterator[Traffic]:
    """Counts what the links do from here on, in this task and those that it starts."""
    traffic = Traffic()
    token = _current.set(traffic)
    try:
        yield traffic
    finally:
        _current.reset(token)


def count_traffic(link: str, *, sent: int = 0, received: int = 0) -> None:
    """Counts the bytes of requests and answers, protocol overhead included."""
    traffic = _current.get()
    if traffic is not None:
        traffic.crossed.append((link, sent, received))
