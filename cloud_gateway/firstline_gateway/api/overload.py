"""The refusal of requests that are not read, while more come than the gateway has room for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping

from firstline_core.errors import QueueFullError
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.identity import IdentityService


def overloaded() -> QueueFullError:
    """Returns the error of a request that is refused unread."""
    return QueueFullError(
        "More requests come than this gateway has room for, so this one was not read; retry after the time "
        "given with this error.",
        retry_after_s=1.0,
    )


def client_key(
    identity: IdentityService, address: str, certificate: ClientCertificate | None, headers: Mapping[str, str]
) -> int:
    """Returns a hash of a request's credentials, to tell clients apart.

    An API key that this gateway does not know counts as none. Otherwise a client could send another key with each
    request: it would look like many, and the average client would send less than those with a key.

    Args:
        identity: knows the API keys, the trusted proxies, and the header in which they pass on certificates.
        address: that the connection comes from; "" over a Unix socket.
        certificate: of the connection; None without one.
        headers: of the request, by lower-case names.
    """
    serial = certificate.serial if certificate is not None else ""
    key = headers.get("authorization", "").partition(" ")[2].strip()
    is_proxy = identity.proxy_header and identity.trusts(address)
    return hash(
        (
            serial,
            key if identity.gatekeeper.holds(key) else "",
            headers.get(identity.proxy_header) if is_proxy else None,
        )
    )


class OverloadGuard:
    """Refuses requests from their heads, so that a refusal costs less than an answer.

    Reading a request, authenticating it and finding that there is no room costs several times as much as refusing its
    head. At ten times the capacity that would take most of the machine. Two kinds of requests are refused unread:

    - Those of a client that was refused for lack of room many times this second and did not wait. For a quarter of
      the present waiting time its requests are refused; then one is read again. So the queue never runs empty.
    - Those of clients that send at least as often as the average, while the event loop is too far behind to read all
      (receive livelock: Mogul and Ramakrishnan, 1997), and many requests are in progress. With few in progress, other
      work on the machine delays the loop, and a refusal would not help. For the same reason the loop is at most as far
      behind as its thread worked: a process that is stopped, or waits for a processor, is not overloaded.

    Clients are distinguished by their credentials, see `client_key`; all without any are one client. So no client can
    cause the refusal of another one. They are distinguished, and their requests counted, only while the event loop is
    behind or the requests of a client are refused. Belongs to one event loop.

    Args:
        queue_wait_s: returns how long a request would wait for its turn now.
        on_refused: called for each request that is refused unread.

    Attributes:
        in_progress: requests that were not refused unread, and have not ended.
    """

    # Requests that are always read, because they are not what delays the loop. In a second: of one client, refusals
    # with a reason (1 % of a core), and requests of all clients. At the same moment: requests in progress.
    _READ_PER_S = _READ_TOGETHER = 20
    _LONGEST_HOLD_S = 0.1
    _PERIOD_S = 1.0
    _LAG_PERIOD_S = 0.02
    _LAG_LIMIT_S = 0.1

    def __init__(self, queue_wait_s: Callable[[], float], on_refused: Callable[[], None]) -> None:
        self._queue_wait_s = queue_wait_s
        self._on_refused = on_refused
        self._lags_s = (0.0, 0.0)
        self._due_s: float | None = None
        self._worked_s = 0.0
        self._period_start_s = 0.0
        self._sent: Counter[int] = Counter()
        self._sent_in_all = 0
        self.in_progress = 0
        self._queue_full: Counter[int] = Counter()
        self._held_until_s: dict[int, float] = {}

    @property
    def is_behind(self) -> bool:
        """Whether the event loop was late twice in a row; a single pause does not count."""
        return min(self._lags_s) > self._LAG_LIMIT_S

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measures from now on how late the event loop is."""
        now_s, worked_s = loop.time(), time.thread_time()
        if self._due_s is not None:
            self._lags_s = (self._lags_s[1], min(now_s - self._due_s, worked_s - self._worked_s))
        self._due_s, self._worked_s = now_s + self._LAG_PERIOD_S, worked_s
        loop.call_later(self._LAG_PERIOD_S, self.watch, loop)

    def queue_full(self, client: int, now_s: float) -> None:
        """Notes that a request of a client was read and there was no room for it.

        Args:
            client: from `client_key`.
            now_s: monotonic time.
        """
        self._end_period(now_s)
        self._queue_full[client] += 1
        if self._queue_full[client] > self._READ_PER_S:
            self._held_until_s[client] = now_s + min(self._LONGEST_HOLD_S, self._queue_wait_s() / 4)

    def refuses(self, client: Callable[[], int], now_s: float) -> bool:
        """Returns whether to refuse a request unread. If not, the caller calls `ended` at its end.

        Args:
            client: returns the `client_key`; called only while some client may be refused.
            now_s: monotonic time.
        """
        if (self.is_behind or self._held_until_s) and self._refuses_client(client(), now_s):
            self._on_refused()
            return True
        self.in_progress += 1
        return False

    def _refuses_client(self, client: int, now_s: float) -> bool:
        self._end_period(now_s)
        self._sent[client] += 1
        self._sent_in_all += 1
        is_held = self._held_until_s.get(client, now_s) > now_s
        is_overloaded = self.in_progress >= self._READ_TOGETHER and self.is_behind
        return is_held or (is_overloaded and self._sends_often(client))

    def ended(self) -> None:
        """Notes the end of a request that was not refused unread."""
        self.in_progress -= 1

    def _sends_often(self, client: int) -> bool:
        """Returns whether a client sends at least as often as the average; while few requests come, no client does."""
        sent = self._sent_in_all
        return sent > self._READ_PER_S and self._sent[client] * len(self._sent) >= sent

    def _end_period(self, now_s: float) -> None:
        """Begins the next period if the present one is over."""
        if now_s - self._period_start_s <= self._PERIOD_S:
            return
        self._period_start_s = now_s
        self._sent.clear()
        self._sent_in_all = 0
        self._queue_full.clear()
        self._held_until_s = {each: until_s for each, until_s in self._held_until_s.items() if until_s > now_s}
