"""When work will be done in lanes side by side, of which one may be quicker than another. Pure.

Each batch goes to where it is done first, so a slow lane takes part only once so much waits for the quick ones that
they would not be done sooner, and one that hangs takes no part until what it has should have ended. How many batches
lanes have ended by some time follows from that without placing one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firstline_gateway.executors.seating import Lane, Times


class Batches(NamedTuple):
    """Of one size, on a course.

    Args:
        seconds: that one takes where work is counted.
        lanes: of each, when it would have run one batch, and the work that it does in a second; the first comes first.
    """

    seconds: float
    lanes: Sequence[tuple[float, float]]

    @property
    def first_s(self) -> float:
        """When one is done that comes first."""
        return self.lanes[0][0]

    def done(self, work_s: float) -> tuple[float, float]:
        """When one is done that comes after so much work, and how much work is done in a second then."""
        at_s, speed = self.lanes[0]
        for ends_s, more in self.lanes[1:]:
            meanwhile_s = speed * (ends_s - at_s)
            if meanwhile_s >= work_s:
                break
            # By then that lane has done one whole batch; from then on it does its part of every second.
            work_s = max(0.0, work_s - meanwhile_s - self.seconds)
            at_s, speed = ends_s, speed + more
        return at_s + work_s / speed, speed

    def wait_s(self, work_s: float) -> float:
        """How long one waits that comes after so much work, if it then runs where work is counted."""
        return max(0.0, self.done(work_s)[0] - self.seconds)


class Course(NamedTuple):
    """Of one model's requests.

    Args:
        lanes: that run it, at least one.
        times: in which work is counted: 1 s of it is what a lane with these times does in 1 s.
    """

    lanes: Sequence[Lane]
    times: Times

    @property
    def slots(self) -> int:
        """Batches that run side by side."""
        return sum(lane.slots for lane in self.lanes)

    def of(self, rows: int) -> Batches:
        """Batches of so many rows."""
        batch_s = self.times.seconds(rows)
        wait_s, times, slots = self.lanes[0]
        if len(self.lanes) == 1 and times is self.times:
            return Batches(batch_s, ((wait_s + batch_s, slots),))
        found: dict[int, float] = {id(self.times): batch_s}
        lanes = []
        for wait_s, times, slots in self.lanes:
            run_s = found.get(id(times))
            if run_s is None:  # slots of one executor have their times in common
                run_s = found[id(times)] = times.seconds(rows)
            lanes.append((wait_s + run_s, slots * (batch_s / run_s if run_s else 1.0)))
        return Batches(batch_s, sorted(lanes))


def course(lanes: Sequence[Lane], max_rows: int) -> Course:
    """Work is counted in the seconds of a lane that does most of it.

    Args:
        lanes: at least one.
        max_rows: of a batch.
    """

    def rows_per_s(lane: Lane) -> float:
        rows = lane.times.worthwhile_rows(max_rows)
        seconds = lane.times.seconds(rows)
        return rows / seconds if seconds else 0.0

    return Course(lanes, max(lanes, key=rows_per_s).times)
