"""The order in which queries were slow: a machine has slow moments that queries share.

A distribution does not contain the order. When slow queries follow each other, a queue builds up that independent draws
do not produce, and the longest waits occur then. A simulation therefore follows the measured order: it is trace-driven
(Law, Simulation Modeling and Analysis, section 6.1), or a bootstrap of one block (Künsch, Annals of Statistics 17(3),
1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from firstline_core.profile.distribution import Milliseconds

MOST = 4_096
"""Most queries that are stored; of more, evenly spaced ones."""
_STEPS = 256
_AROUND = 4


class Course(Struct, frozen=True):
    """Queries under load, in their order.

    Attributes:
        span_ms: time in which they came, about evenly.
        ranks: one byte for each query: its rank among queries of its kind (that waited, or did not), in 256ths from the
            fastest to the slowest.
    """

    span_ms: Milliseconds
    ranks: Annotated[bytes, Meta(min_length=1, max_length=MOST)]

    @property
    def queries_per_ms(self) -> float:
        """The resolution of the course."""
        return len(self.ranks) / max(self.span_ms, 1e-6)

    def shares(self, at_ms: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
        """Returns the quantile shares (0 to 1) of queries that arrive along this course, which repeats at its end.

        Each query takes the rank of a random neighbour of its moment, so that simultaneous queries share the moment but
        not one outlier.

        Args:
            at_ms: (n,) arrival times.
            random: source of the starting place and of the neighbours.
        """
        count, queries = len(self.ranks), len(at_ms)
        places = (at_ms / max(self.span_ms, 1e-6) + random.random()) % 1 * count
        around = (places.astype(np.intp) + random.integers(-_AROUND, _AROUND + 1, queries)) % count
        found: NDArray[np.float64] = (np.frombuffer(self.ranks, np.uint8)[around] + random.random(queries)) / _STEPS
        return found


def course(times: Sequence[float], waited: Sequence[bool], span_s: float) -> Course:
    """Returns the course of measured queries.

    Args:
        times: of each query, in their order.
        waited: whether it had to wait; those that had to are ranked separately.
        span_s: from before the first to after the last.
    """
    every = -(-len(times) // MOST)
    taken, kinds = np.asarray(times), np.asarray(waited, np.bool_)
    ranks = np.empty(len(taken), np.uint8)
    for kind in (kinds, ~kinds):
        places = taken[kind].argsort(kind="stable").argsort()
        ranks[kind] = _STEPS * (places + 0.5) / max(len(places), 1)
    return Course(float(f"{1000 * span_s:.5g}"), ranks[::every].tobytes())
