"""For one request: the variant that is in time, and of several such the one whose answer takes the least energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

_PATIENT = 4.0  # runs of the best variant: who has that much time can give way to those who have not


class Prices(Struct, frozen=True):
    """What answers take of the device's energy, in millijoules a row.

    Attributes:
        run_mj: by rung: to run the variant.
        asked: by rung: the share of rows that its certificate does not keep, so that the full model is asked.
        ask_mj: to send a row and to receive its answer.
    """

    run_mj: tuple[float, ...]
    asked: tuple[float, ...]
    ask_mj: float

    def of(self, rung: int, link_ms: float, room_ms: float) -> float:
        """The expected energy of an answer, where asking is the dearer the less time is to spare for it.

        The link is everybody's: the closer its time comes to what is left, the fewer should ask. So the price of asking
        is divided by the share of the time that would be left over, as the wait in a queue is by its idle share.
        """
        asked = self.asked[rung]
        if not asked:
            return self.run_mj[rung]
        spare = 1 - link_ms / room_ms if room_ms > 0 else 0.0
        return self.run_mj[rung] + asked * self.ask_mj / spare if spare > 0 else math.inf


def in_time(
    runs_ms: Sequence[float],
    busy: float,
    wait_ms: float,
    left_ms: float,
    link_ms: float = math.inf,
    *,
    prices: Prices | None = None,
) -> int:
    """The rung that answers a request.

    Where there is time to ask the full model too, should the answer not be kept, the request is in time with any
    variant. So it takes the one whose answer takes the least energy; where nobody knows that, it gives way: the busier
    the device, the further down, and the best only where nothing else runs.
    Where there is none, only a variant that is sure is in time, and the best that is done by then is taken; but the one
    after it, while all threads are taken, by a request that could wait for several runs.

    Args:
        runs_ms: by rung, from the best that may be used (`Controller`) on: what the request takes there.
        busy: of the threads that run models, the part that is taken, 0 to 1.
        wait_ms: until its turn comes.
        left_ms: until the deadline, without what is kept back to write the answer.
        link_ms: within which the full model mostly answers; infinite where it is not asked, or nobody knows.
        prices: by the same rungs; None where they are not known of all.

    Returns:
        The rung; the quickest, where none is done in time.
    """
    last = len(runs_ms) - 1
    done_ms = [wait_ms + run_ms for run_ms in runs_ms]
    asking = [rung for rung in range(last + 1) if done_ms[rung] + link_ms <= left_ms]
    if prices is not None and asking:
        return min(asking, key=lambda rung: prices.of(rung, link_ms, left_ms - done_ms[rung]))
    for rung in asking:
        if rung >= math.ceil(busy * last):
            return rung
    could_wait = math.isfinite(link_ms) and busy >= 1 and left_ms > _PATIENT * runs_ms[0]
    first = min(last, int(could_wait))
    for rung in chain(range(first, last + 1), range(first)):
        if done_ms[rung] <= left_ms:
            return rung
    return min(range(last + 1), key=runs_ms.__getitem__)
