"""The temperature of a Raspberry Pi 4: a model of two thermal masses, fitted to a published curve.

The curve is stressberry's `rpi4b-stock.dat` (github.com/nschloe/stressberry, commit 8568cb7, MIT licence): a Pi 4B
without a case, 2.5 min idle, 5 min with all four cores under full load (1.5 GHz throughout), 2.5 min idle, read about
every 2 s in whole degrees. Above the idle temperature, under load and after it, the model is

    rise(t) = a * (1 - exp(-t / tau_a)) + b * (1 - exp(-t / tau_b))

with the chip, which follows in seconds, and the board, which follows in minutes. The model is validated with a curve
that was not used for the fit: pastebin.com/9zGtFR1e (June 2019, launch firmware, another room), read every 10 s.

Above 80 C the firmware lowers the clock of the cores, more with each degree, until 85 C
(raspberrypi.com/documentation, "frequency management and thermal control"). The documentation does not say how far at
which temperature. A straight line from 1.5 GHz at 80 C to 0.6 GHz at 85 C is assumed here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CORES = 4
HOT_C, HOTTEST_C = 80.0, 85.0
SLOWEST_SHARE = 0.6 / 1.5

_STEP_LOAD_S, _STEP_COOL_S, _BEFORE_COOL_S = 2.08, 2.05, 1.5
_LOADED_C = (
    "51 52 54 55 56 57 56 58 59 59 59 59 59 60 60 60 61 61 62 62 62 62 62 64 62 63 64 64 63 63 64 65 64 65 64 65 65 66 "
    "65 65 66 65 66 67 66 66 68 67 67 67 67 66 67 67 67 67 67 67 67 67 67 68 68 68 69 68 68 68 67 68 69 69 69 68 69 69 "
    "69 69 69 69 69 69 69 70 69 70 70 69 70 69 70 69 70 70 70 70 70 70 70 70 71 70 71 70 71 71 71 70 70 71 72 70 72 71 "
    "70 70 71 71 70 72 71 71 71 71 71 71 72 70 72 72 71 72 71 71 72 72 71 71 71 72 72 71 72 72"
)
_COOLING_C = (
    "68 66 65 64 62 62 61 60 60 60 58 58 58 58 57 57 57 57 56 57 56 56 56 55 56 55 55 55 54 56 55 55 55 55 54 54 54 54 "
    "54 54 54 53 54 54 54 53 53 52 53 53 53 53 53 53 53 53 52 52 52 53 51 52 52 52 51 51 51 52 51 51 51 51 51"
)
_OTHER_C = "62 64 65 67 68 70 71 71 72 72 72 73 73 74 74 74 75 76 75 75 76 77 76 78 77 78"
_OTHER_IDLE_C, _OTHER_STEP_S = 52.0, 10.0


class Heat(NamedTuple):
    """The thermal parameters of one board.

    Attributes:
        chip_c, board_c: final temperature rise of each under full load of all cores (degrees).
        chip_s, board_s: their time constants.
        idle_c: the temperature at rest, in the room where it was measured.
    """

    chip_c: float
    chip_s: float
    board_c: float
    board_s: float
    idle_c: float

    def risen(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the temperature rise above idle (degrees) after these seconds under full load."""
        chip = self.chip_c * (1 - np.exp(-seconds / self.chip_s))
        return np.asarray(chip + self.board_c * (1 - np.exp(-seconds / self.board_s)))


class Fit(NamedTuple):
    """The fitted model and its errors.

    Attributes:
        rmse_c: root mean square error on the curve of the fit (degrees).
        other_rmse_c: the same on the other curve, of which only the start temperature is used.
        samples: number of samples of the first curve.
    """

    heat: Heat
    rmse_c: float
    other_rmse_c: float
    samples: int


def fitted() -> Fit:
    """Returns the least-squares fit, which is deterministic."""
    from scipy.optimize import curve_fit  # type: ignore[import-untyped]

    loaded, cooling = _degrees(_LOADED_C), _degrees(_COOLING_C)
    up_s = _STEP_LOAD_S * np.arange(1, len(loaded) + 1, dtype=np.float64)
    end_s = float(up_s[-1])
    down_s = _BEFORE_COOL_S + _STEP_COOL_S * np.arange(1, len(cooling) + 1)

    def curve(_: object, *of: float) -> NDArray[np.float64]:
        chip_c, chip_s, board_c, board_s, idle_c = of
        heat = Heat(*of)
        fallen = chip_c * (1 - math.exp(-end_s / chip_s)) * np.exp(-down_s / chip_s)
        fallen += board_c * (1 - math.exp(-end_s / board_s)) * np.exp(-down_s / board_s)
        return np.concatenate([idle_c + heat.risen(up_s), idle_c + fallen])

    measured = np.concatenate([loaded, cooling])
    found, _ = curve_fit(curve, np.arange(len(measured)), measured, p0=(10.0, 10.0, 15.0, 150.0, 46.0))
    heat = Heat(*map(float, found))
    other = _degrees(_OTHER_C)
    expected = _OTHER_IDLE_C + heat.risen(_OTHER_STEP_S * np.arange(1, len(other) + 1, dtype=np.float64))
    return Fit(heat, _rmse(curve(None, *found) - measured), _rmse(expected - other), len(measured))


class Board:
    """A simulated board that becomes hot when its cores are busy.

    Args:
        heat: see `fitted`.
        warmer_c: ambient temperature minus that of the room where the curve was measured.
    """

    def __init__(self, heat: Heat, warmer_c: float) -> None:
        self._heat = heat
        self._rest_c = heat.idle_c + warmer_c
        self._chip_c = self._board_c = 0.0

    @property
    def hottest_c(self) -> float:
        """The reading of its sensor."""
        return self._rest_c + self._chip_c + self._board_c

    @property
    def speed(self) -> float:
        """The clock frequency as a share of the highest one."""
        over = (self.hottest_c - HOT_C) / (HOTTEST_C - HOT_C)
        return 1.0 - (1.0 - SLOWEST_SHARE) * min(1.0, max(0.0, over))

    def live(self, seconds: float, load: float) -> None:
        """Advances the time under a load, which is a share of all cores' full power."""
        self._chip_c = _drawn(self._chip_c, load * self._heat.chip_c, seconds / self._heat.chip_s)
        self._board_c = _drawn(self._board_c, load * self._heat.board_c, seconds / self._heat.board_s)


def _drawn(now: float, towards: float, times: float) -> float:
    return towards + (now - towards) * math.exp(-times)


def _degrees(text: str) -> NDArray[np.float64]:
    return np.array(text.split(), np.float64)


def _rmse(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt((errors**2).mean()))
