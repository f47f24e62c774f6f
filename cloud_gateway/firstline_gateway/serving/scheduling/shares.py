"""The share of the room to wait that one client, and one level of priority, may take.

Clients: dynamic thresholds (Choudhury and Hahne, 1998). The waiting work of a client may take as much room as is left
free, or its equal part of all room if that is more. So there is room for the next client, however greedy one is, and
greedy clients end up with equal parts. Requests are served by due time, so equal room is an equal share of the machine.
There is nothing to configure, and no history: a client that returns has no debt and no savings.

Levels: each leaves a quarter of the room to those above it.

Room is reserved only for clients and levels that sent requests within the last seconds. A client that is alone may use
all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from firstline_gateway.serving.scheduling.pending import AUDIT_LEVEL

EXPECTED_S = 10.0
"""After a request the next one of its client, or level, is expected for so long."""

_LEAVES = 0.75
# Also if there are no other requests: an audit is never urgent, and no caller waits for its answer.
_AUDITS_SHARE = 0.5

Key = TypeVar("Key", bound=Hashable)


class RecentKeys(Generic[Key]):
    """The keys that were noted within the last `EXPECTED_S`, in constant time."""

    def __init__(self) -> None:
        self._noted_s: OrderedDict[Key, float] = OrderedDict()

    def note(self, key: Key, now_s: float) -> None:
        self._noted_s[key] = now_s
        self._noted_s.move_to_end(key)
        while now_s - next(iter(self._noted_s.values())) > EXPECTED_S:
            self._noted_s.popitem(last=False)

    def __len__(self) -> int:
        return len(self._noted_s)

    def __contains__(self, key: Key) -> bool:
        return key in self._noted_s


class Shares:
    """Belongs to one gateway: all models run on the same machine."""

    def __init__(self) -> None:
        self._clients: RecentKeys[str] = RecentKeys()
        self._levels: RecentKeys[int] = RecentKeys()

    def note(self, principal: str, level: int, now_s: float) -> None:
        """Records a request, whether or not it is admitted."""
        self._clients.note(principal, now_s)
        self._levels.note(level, now_s)

    @property
    def clients(self) -> int:
        """The number of clients that share the machine at the moment, at least 1."""
        return max(1, len(self._clients))

    def of_level(self, level: int) -> float:
        """Returns the share of the room that a level may fill."""
        share = 1.0
        for above in range(1, level):
            if above in self._levels:
                share *= _LEAVES
        return min(share, _AUDITS_SHARE) if level == AUDIT_LEVEL else share

    def allows(self, mine: float, taken: float, room: float) -> bool:
        """Returns whether a client may take room.

        Args:
            mine: the room of this client.
            taken: the room of all clients together.
            room: all room, in the same unit.
        """
        if self.clients == 1:
            return taken <= room
        return taken <= room and mine <= max(room - taken, room / self.clients)
