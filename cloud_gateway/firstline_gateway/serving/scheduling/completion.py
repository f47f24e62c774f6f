"""When work completes on slots side by side, of which one may be faster than another. Pure.

Each batch goes where it completes first. So a slow slot takes part only if so much work waits for the fast ones that
they would not complete earlier, and one that hangs takes no part until its batch should have ended. The number of
batches that have ended by some time follows without placing them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firstline_gateway.executors.dispatch.placement import Lane, Times


class BatchForecast(NamedTuple):
    """The completion of batches of one size.

    Args:
        seconds: of a batch where work is counted.
        lanes: of each, when it would have run one batch, and the work that it does in a second; the first comes first.
    """

    seconds: float
    lanes: Sequence[tuple[float, float]]

    @property
    def first_s(self) -> float:
        """When a batch completes that is next."""
        return self.lanes[0][0]

    def done(self, work_s: float) -> tuple[float, float]:
        """Returns when a batch completes that comes after so much work, and the work done in a second then."""
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
        """Returns how long a batch waits that comes after so much work and runs where work is counted."""
        return max(0.0, self.done(work_s)[0] - self.seconds)


class CompletionForecast(NamedTuple):
    """The completion of one model's requests.

    Args:
        lanes: the slots that run it, at least one.
        times: in which work is counted: a lane with these times does 1 s of work in 1 s.
    """

    lanes: Sequence[Lane]
    times: Times

    def of(self, rows: int) -> BatchForecast:
        """Returns the forecast of batches of so many rows."""
        batch_s = self.times.seconds(rows)
        lanes = []
        for wait_s, times in self.lanes:
            run_s = batch_s if times is self.times else times.seconds(rows)
            lanes.append((wait_s + run_s, batch_s / run_s if run_s else 1.0))
        return BatchForecast(batch_s, sorted(lanes))


def completion(lanes: Sequence[Lane], max_rows: int) -> CompletionForecast:
    """Returns the forecast of a model; work is counted in the seconds of a lane that does most of it.

    Args:
        lanes: at least one.
        max_rows: of a batch.
    """

    def rows_per_s(lane: Lane) -> float:
        rows = lane.times.worthwhile_rows(max_rows)
        seconds = lane.times.seconds(rows)
        return rows / seconds if seconds else 0.0

    return CompletionForecast(lanes, max(lanes, key=rows_per_s).times)
