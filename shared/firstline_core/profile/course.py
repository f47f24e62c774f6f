"""How quick queries were one after the other: a machine has slow moments, and queries of one moment share them.

A distribution forgets the order. But where slow queries follow each other a queue gathers that no draws of one by one
make, and the longest waits are of such moments. So the order is kept, and a simulation goes along it: a trace-driven
one (Law, Simulation Modeling and Analysis, section 6.1), or a bootstrap of one block (Künsch, Annals of Statistics
17(3), 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from firstline_core.profile.distribution import Milliseconds

MOST = 4_096
"""Queries that are kept; of more, every so many-th."""
_STEPS = 256
_AROUND = 4


class Course(Struct, frozen=True):
    """Queries under load, in their order.

    Attributes:
        span_ms: in which they came, about evenly.
        ranks: of each one byte, where it stood among those of its kind (that waited, or had not to): in 256ths from the
            quickest to the slowest.
    """

    span_ms: Milliseconds
    ranks: Annotated[bytes, Meta(min_length=1, max_length=MOST)]

    @property
    def queries_per_ms(self) -> float:
        """How fine it is."""
        return len(self.ranks) / max(self.span_ms, 1e-6)

    def shares(self, at_ms: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
        """Luck of queries, 0 to 1 as quantiles take it, that come along this course; it begins anew at its end.

        Each has that of one of the queries around its moment, by chance: they share the moment, and not each other's
        own bad luck, which queries that come at once would otherwise all have.

        Args:
            at_ms: (n,) when each comes.
            random: where the course is entered, and luck beside it.
        """
        count, queries = len(self.ranks), len(at_ms)
        places = (at_ms / max(self.span_ms, 1e-6) + random.random()) % 1 * count
        around = (places.astype(np.intp) + random.integers(-_AROUND, _AROUND + 1, queries)) % count
        found: NDArray[np.float64] = (np.frombuffer(self.ranks, np.uint8)[around] + random.random(queries)) / _STEPS
        return found


def course(times: Sequence[float], waited: Sequence[bool], span_s: float) -> Course:
    """What was measured, in the form that is kept.

    Args:
        times: of each query, in their order.
        waited: whether it had to wait; those that had are another kind.
        span_s: from before the first to after the last.
    """
    every = -(-len(times) // MOST)
    taken, kinds = np.asarray(times), np.asarray(waited, np.bool_)
    ranks = np.empty(len(taken), np.uint8)
    for kind in (kinds, ~kinds):
        places = taken[kind].argsort(kind="stable").argsort()
        ranks[kind] = _STEPS * (places + 0.5) / max(len(places), 1)
    return Course(float(f"{1000 * span_s:.5g}"), ranks[::every].tobytes())
