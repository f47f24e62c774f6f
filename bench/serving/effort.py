"""How much is measured, and telling how far it is."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Effort:
    """The defaults are what the committed figures were made with.

    Attributes:
        rounds: in which everything is measured once; figures are ratios of medians over them.
        seconds: of each load.
        quick: everything once and briefly, to see that it works; its figures mean nothing.
    """

    rounds: int = 5
    seconds: int = 3
    quick: bool = False
    began_s: float = field(default_factory=time.monotonic)

    @property
    def warm_up_s(self) -> int:
        """Before each load."""
        return 0 if self.quick else 1

    def tell(self, what: str) -> None:
        """On stderr, with the time so far."""
        print(f"[{time.monotonic() - self.began_s:5.0f} s] {what}", file=sys.stderr, flush=True)


QUICK = Effort(rounds=1, seconds=1, quick=True)
