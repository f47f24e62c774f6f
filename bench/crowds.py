"""Where calls that do not wait for each other meet: one way, one link or one gateway for all, or room for each.

Simulated, for `timing.py`: a call is sent at its time, and is through once its payload has come by.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol


class Medium(Protocol):
    """What carries calls; `in_turn` as the agent knows it of a link."""

    in_turn: bool

    def send(self, at_s: float, size_bytes: int, call: int) -> None: ...
    def ended(self, until_s: float) -> list[tuple[float, int]]:
        """Calls that are through by then, and when."""
        ...


class Apart:
    """Each as if it were alone.

    Args:
        took_s: of a payload, by its size.
        in_turn: see `Medium`.
    """

    def __init__(self, took_s: Callable[[int], float], *, in_turn: bool = False) -> None:
        self.in_turn = in_turn
        self._took_s = took_s
        self._left: list[tuple[float, int]] = []

    def send(self, at_s: float, size_bytes: int, call: int) -> None:
        heapq.heappush(self._left, (at_s + self._took_s(size_bytes), call))

    def ended(self, until_s: float) -> list[tuple[float, int]]:
        found = []
        while self._left and self._left[0][0] <= until_s:
            found.append(heapq.heappop(self._left))
        return found


class InTurn(Apart):
    """Each after the other, as by one connection, or by a gateway that runs one at a time."""

    _free_s = 0.0

    def send(self, at_s: float, size_bytes: int, call: int) -> None:
        self._free_s = max(self._free_s, at_s) + self._took_s(size_bytes)
        heapq.heappush(self._left, (self._free_s, call))


class Shared:
    """All at once, each with an equal part of the link, as by connections of their own.

    Args:
        bytes_per_s: of all together.
    """

    in_turn = False

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._at_s = self._each = 0.0  # what each has got so far, in bytes
        self._left: list[tuple[float, int]] = []  # a call is through once each has got so much

    def send(self, at_s: float, size_bytes: int, call: int) -> None:
        heapq.heappush(self._left, (self._each + size_bytes, call))

    def ended(self, until_s: float) -> list[tuple[float, int]]:
        found = []
        while self._left:
            next_s = self._at_s + (self._left[0][0] - self._each) * len(self._left) / self._bytes_per_s
            if next_s > until_s:
                self._each += (until_s - self._at_s) * self._bytes_per_s / len(self._left)
                break
            self._at_s = next_s
            self._each, call = heapq.heappop(self._left)
            found.append((next_s, call))
        self._at_s = until_s
        return found
