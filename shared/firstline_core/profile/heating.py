"""Keeps a machine under full load until its temperature and clocks settle."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Protocol

import numpy as np

from firstline_core.hardware.readings import Measured
from firstline_core.hardware.sensors.snapshot import Snapshot

_READ_S = 1.0
_WINDOW_S = 30.0
_SETTLED_C = 1.0
_SETTLED_SHARE = 0.02
_SIDE = 256


class Sensors(Protocol):
    """Reads the sensors; `firstline_core.hardware.sensors.device` implements it."""

    def read(self, now_s: float) -> Snapshot: ...


def heat_up(sensors: Sensors, limit_s: float) -> float:
    """Keeps every core busy until temperature and frequency have settled, and returns the seconds that this took.

    They have settled when in half a minute the highest temperature changed by less than 1 degree and the slowest
    cluster's frequency by less than 2 %. If no sensor measures a temperature, it takes all of the time.
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
            if seen[-1].at_s - seen[0].at_s > _WINDOW_S - 2 * _READ_S and settled(list(seen)):
                break
            over.wait(min(_READ_S, limit_s))
    finally:
        over.set()
        for burner in burners:
            burner.join()
    return time.monotonic() - began_s


def settled(seen: list[Snapshot]) -> bool:
    """Whether temperature and clocks are steady; never if no temperature is measured."""
    hottest = [one.hottest_c.value for one in seen if isinstance(one.hottest_c, Measured)]
    if len(hottest) < len(seen) or max(hottest) - min(hottest) >= _SETTLED_C:
        return False
    for cluster in seen[-1].frequency_hz:
        readings = [one.frequency_hz.get(cluster) for one in seen]
        hertz = [one.value for one in readings if isinstance(one, Measured)]
        # Compare the means of both halves: the steps of a governor are no trend.
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
