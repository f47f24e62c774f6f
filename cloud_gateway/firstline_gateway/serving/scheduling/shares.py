"""How much of the room to wait one client, and one level of priority, may take from the others.

Clients: dynamic thresholds (Choudhury and Hahne, 1998). A client's waiting work may take up as much room as is left
free, or its equal part of all room if that is more. So room stays for the next, however greedy one is, and greedy
clients end up with equal parts; as what waits is served by due time, equal room is an equal share of the machine. There
is nothing to configure and no history to keep: a client that comes back owes nothing, and has saved nothing up.

Levels: each leaves a quarter of the room to those above it.

Room is kept free only for whom there is reason to expect: clients and levels that asked within the last seconds. A
client that is alone may use all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from firstline_gateway.serving.scheduling.pending import AUDIT_LEVEL

EXPECTED_S = 10.0
"""How long whoever asked is expected to ask again."""

_LEAVES = 0.75
# Also where nothing else was asked: an audit is never urgent, and no caller waits for its answer.
_AUDITS_SHARE = 0.5

Key = TypeVar("Key", bound=Hashable)


class Lately(Generic[Key]):
    """Who asked within the last `EXPECTED_S`, in constant time."""

    def __init__(self) -> None:
        self._asked_s: OrderedDict[Key, float] = OrderedDict()

    def note(self, key: Key, now_s: float) -> None:
        self._asked_s[key] = now_s
        self._asked_s.move_to_end(key)
        while now_s - next(iter(self._asked_s.values())) > EXPECTED_S:
            self._asked_s.popitem(last=False)

    def __len__(self) -> int:
        return len(self._asked_s)

    def __contains__(self, key: Key) -> bool:
        return key in self._asked_s


class Shares:
    """Belongs to one gateway: all models run on the same machine."""

    def __init__(self) -> None:
        self._clients: Lately[str] = Lately()
        self._levels: Lately[int] = Lately()

    def note(self, principal: str, level: int, now_s: float) -> None:
        """Somebody asked, whether or not there was room."""
        self._clients.note(principal, now_s)
        self._levels.note(level, now_s)

    @property
    def clients(self) -> int:
        """How many clients share the machine at the moment, at least 1."""
        return max(1, len(self._clients))

    def of_level(self, level: int) -> float:
        """The share of the room that a level may fill."""
        share = 1.0
        for above in range(1, level):
            if above in self._levels:
                share *= _LEAVES
        return min(share, _AUDITS_SHARE) if level == AUDIT_LEVEL else share

    def allows(self, mine: float, taken: float, room: float) -> bool:
        """Whether a client may take room.

        Args:
            mine: what it takes.
            taken: what all take together.
            room: what there is of it, in the same unit.
        """
        if self.clients == 1:
            return taken <= room
        return taken <= room and mine <= max(room - taken, room / self.clients)
