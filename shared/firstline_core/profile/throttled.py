"""Machines that are held back: heated until they hold themselves back, or stopped for a share of the time."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGCONT, SIGSTOP
from typing import Protocol

import numpy as np

from firstline_core.hardware.readings import Measured
from firstline_core.hardware.sensors.snapshot import Snapshot

_PERIOD_S = 0.01
"""Of stops: shorter than what is felt as a stop, longer than the scheduler's own turns."""
_LOOK_S = 1.0
_WINDOW_S = 30.0
_SETTLED_C = 1.0
_SETTLED_SHARE = 0.02
_SIDE = 256


class Sensors(Protocol):
    """Of `firstline_core.hardware.sensors.device`."""

    def read(self, now_s: float) -> Snapshot: ...


@contextmanager
def held_back(child: subprocess.Popen[bytes], share: float) -> Iterator[None]:
    """Lets a process run for a share of every hundredth of a second (SIGSTOP, SIGCONT), as a slower clock would.

    It needs no right that its parent does not have, as a control group's quota does. A query takes 1 / share of its
    time in the mean; one much shorter than the period takes its own time or waits for a stop to end.

    Args:
        child: of one process; may end meanwhile.
        share: of the time, above 0 to 1; at 1 it is let alone.
    """
    over = threading.Event()

    def turns() -> None:
        while not over.wait(_PERIOD_S * share):
            child.send_signal(SIGSTOP)
            over.wait(_PERIOD_S * (1 - share))
            child.send_signal(SIGCONT)

    thread = threading.Thread(target=turns, daemon=True)
    if share < 1:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if share < 1:
            thread.join()


def heat(sensors: Sensors, limit_s: float) -> float:
    """Keeps every core busy until temperature and frequency have settled, and says for how many seconds.

    They have where in half a minute the hottest part changed by less than 1 degree and the slowest cluster's frequency
    by less than 2 %. Where nothing measures either, it takes all of the time.
    """
    over = threading.Event()
    burners = [threading.Thread(target=_burn, args=(over,), daemon=True) for _ in range(_cores())]
    began_s = time.monotonic()
    seen: deque[Snapshot] = deque()
    for burner in burners:
        burner.start()
    try:
        while (now_s := time.monotonic()) - began_s < limit_s:
            seen.append(sensors.read(now_s))
            while seen[-1].at_s - seen[0].at_s > _WINDOW_S:
                seen.popleft()
            if seen[-1].at_s - seen[0].at_s > _WINDOW_S - 2 * _LOOK_S and settled(list(seen)):
                break
            over.wait(min(_LOOK_S, limit_s))
    finally:
        over.set()
        for burner in burners:
            burner.join()
    return time.monotonic() - began_s


def settled(seen: list[Snapshot]) -> bool:
    """Whether what was read, of some time, stays as it is; never where nothing measures a temperature."""
    hottest = [one.hottest_c.value for one in seen if isinstance(one.hottest_c, Measured)]
    if len(hottest) < len(seen) or max(hottest) - min(hottest) >= _SETTLED_C:
        return False
    for cluster in seen[-1].frequency_hz:
        readings = [one.frequency_hz.get(cluster) for one in seen]
        hertz = [one.value for one in readings if isinstance(one, Measured)]
        # The mean of each half: a governor's steps up and down are no trend.
        half = len(hertz) // 2
        if half and abs(np.mean(hertz[:half]) / np.mean(hertz[half:]) - 1) >= _SETTLED_SHARE:
            return False
    return True


def _burn(over: threading.Event) -> None:
    square = np.full((_SIDE, _SIDE), 0.5, np.float32)
    while not over.is_set():
        np.dot(square, square)  # outside the interpreter's lock


def _cores() -> int:
    with suppress(AttributeError):  # no Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
