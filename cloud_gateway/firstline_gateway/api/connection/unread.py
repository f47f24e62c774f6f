"""Which requests for inference are refused from their heads: what a refusal costs must not be what answers cost.

To read a request, to find out whose it is and whether there is room, takes ten times as long as to refuse its head. At
ten times capacity that would be most of the machine. Two kinds are refused unread:

- Of a caller that was told to come back later, many times this second, and did not wait. Room has to come free first,
  and for a quarter of the present wait what it sends is refused; then it is read again, until it is told again. So
  the queue never runs empty over it, and a caller that sends little is never among these.
- Of callers that ask at least as often as the average, while the event loop is too far behind to read all (receive
  livelock: Mogul and Ramakrishnan, 1997). Where few ask at all, something else held the loop up, and all are read.

Callers are told apart by what they show, before anybody has judged it: nobody can have another one refused by it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from firstline_core.errors import QueueFullError
from firstline_core.protocol.http import error_reply
from firstline_gateway.api.connection.lag import LoopLag
from firstline_gateway.identity.buckets import Buckets

REFUSED = QueueFullError(
    "More requests come than this gateway has room for, so this one was not read; come back later.", retry_after_s=1.0
)
# Of one caller's refused requests so many a second are read, and get a reasoned answer: 1 % of a core. So many of all
# callers' requests are read however far behind the loop is: it is not they that hold it up.
_READ_PER_S = 20.0
_LONGEST_S = 0.1
_PERIOD_S = 1.0


def refusal(*, closing: bool = False) -> bytes:
    """The whole HTTP/1.1 response; the connection stays open but for `closing`."""
    reply = error_reply(REFUSED)
    fields = {**reply.headers, "Content-Length": str(len(reply.body))} | ({"Connection": "close"} if closing else {})
    lines = [f"HTTP/1.1 {reply.status} Service Unavailable", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join((*lines, "", "")).encode("ascii") + reply.body


class Unread:
    """Belongs to one event loop.

    Args:
        wait_s: how long a request would wait for its turn now.
        on_refused: told of each request that was refused unread.
        proxy_header: where a proxy says whose certificate it was shown; "" without one.
    """

    def __init__(self, wait_s: Callable[[], float], on_refused: Callable[[], None], proxy_header: str = "") -> None:
        self._wait_s = wait_s
        self._on_refused = on_refused
        self._headers = (b"authorization", proxy_header.encode("ascii"))
        self._lag = LoopLag()
        self._refusals = Buckets()
        self._until_s: dict[int, float] = {}
        self._asked: Counter[int] = Counter()
        self._period_s = 0.0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lag.watch(loop)

    def shown(self, serial: str, headers: list[tuple[bytes, bytes]]) -> int:
        """A caller's mark: of its certificate, or of the headers that say who it is."""
        return hash((serial, *(value for name, value in headers if name in self._headers)))

    def told(self, shown: int, now_s: float) -> None:
        """A request was read, and there was no room for it.

        Args:
            shown: by its caller.
            now_s: on the event loop's clock.
        """
        if self._refusals.take(str(shown), now_s, per_s=_READ_PER_S, burst=_READ_PER_S):
            self._until_s[shown] = now_s + min(_LONGEST_S, self._wait_s() / 4)

    def refuses(self, shown: int, now_s: float) -> bool:
        """Whether a request is refused from its head; it is counted, too."""
        if now_s - self._period_s > _PERIOD_S:
            self._period_s = now_s
            self._asked.clear()
            self._until_s = {each: until_s for each, until_s in self._until_s.items() if until_s > now_s}
        self._asked[shown] += 1
        held = self._until_s.get(shown, now_s) > now_s
        refused = held or (self._lag.is_long and self._is_often(shown))
        if refused:
            self._on_refused()
        return refused

    def _is_often(self, shown: int) -> bool:
        asked = self._asked.total()
        return asked > _READ_PER_S and self._asked[shown] * len(self._asked) >= asked
