"""The rate limit of failed attempts to sign in.

They are limited per minute, from one address and from all addresses together. Above the limit even the right password
is refused: otherwise guessing would continue. Addresses that have signed in are exempt from the common limit, so that
attackers elsewhere cannot lock them out. An attempt counts before it is checked, so that simultaneous attempts do not
pass the limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

_WINDOW_S = 60.0
_MOST_TRUSTED = 1024  # addresses
PER_ADDRESS = 10
IN_ALL = 100


class Attempts:
    """Failed attempts of the present minute, and those under way. The limit also bounds the number of addresses.

    Args:
        now_s: monotonic time.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s = 0.0
        self._counted: Counter[str] = Counter()
        self._trusted: dict[str, None] = {}

    def begin(self, address: str) -> float:
        """Counts an attempt.

        Returns:
            0 if it may be checked now; otherwise the seconds until the address may try again.
        """
        left_s = self._until_s - self._now_s()
        if left_s <= 0:
            self._counted.clear()
            left_s = _WINDOW_S
            self._until_s = self._now_s() + left_s
        spent = self._counted[address] >= PER_ADDRESS
        crowded = self._counted.total() >= IN_ALL and address not in self._trusted
        if spent or crowded:
            return left_s
        self._counted[address] += 1
        return 0.0

    def succeeded(self, address: str) -> None:
        """Takes an attempt back, which was right, and exempts the address from the common limit."""
        if self._counted[address]:
            self._counted[address] -= 1
        self._trusted.pop(address, None)
        self._trusted[address] = None
        if len(self._trusted) > _MOST_TRUSTED:
            del self._trusted[next(iter(self._trusted))]
