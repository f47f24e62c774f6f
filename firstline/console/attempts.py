"""The rate limit of wrong passwords.

They are limited per minute, from one address and from all addresses together. Above the limit even the right password
is refused: otherwise guessing would continue. Addresses that have sent the right password are exempt from the common
limit, so that attackers elsewhere cannot lock them out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

_WINDOW_S = 60.0
_KNOWN = 1024  # addresses
PER_ADDRESS = 10
IN_ALL = 100


class PasswordAttempts:
    """Wrong passwords of the present minute. The limit also bounds the number of addresses.

    Args:
        now_s: monotonic time.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s = 0.0
        self._wrong: Counter[str] = Counter()
        self._known: dict[str, None] = {}

    def wait_s(self, address: str) -> float:
        """Returns the seconds until an address may try again; 0 if it may now."""
        left_s = self._until_s - self._now_s()
        if left_s <= 0:
            self._wrong.clear()
            return 0.0
        spent = self._wrong[address] >= PER_ADDRESS
        crowded = self._wrong.total() >= IN_ALL and address not in self._known
        return left_s if spent or crowded else 0.0

    def wrong(self, address: str) -> None:
        """Notes a wrong password."""
        if not self._wrong:
            self._until_s = self._now_s() + _WINDOW_S
        self._wrong[address] += 1

    def right(self, address: str) -> None:
        """Notes the right password."""
        self._known.pop(address, None)
        self._known[address] = None
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
