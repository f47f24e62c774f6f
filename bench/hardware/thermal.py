"""The temperature of a Raspberry Pi 4: a model of two thermal masses, fitted to a published curve.

The curve is stressberry's `rpi4b-stock.dat` (github.com/nschloe/stressberry, commit 8568cb7, MIT licence): a Pi 4B
without a case, 2.5 min idle, 5 min with all four cores under full load (1.5 GHz throughout), 2.5 min idle, read about
every 2 s in whole degrees. Above the idle temperature, under load and after it, the model is

    rise(t) = a * (1 - exp(-t / tau_a)) + b * (1 - exp(-t / tau_b))

with the chip, which follows in seconds, and the board, which follows in minutes. The root mean square error of the
least-squares fit is 0.57 degrees. It is 0.94 degrees on a curve that was not used for the fit: pastebin.com/9zGtFR1e
(June 2019, launch firmware, another room), read every 10 s.

Above 80 C the firmware lowers the clock of the cores, more with each degree, until 85 C
(raspberrypi.com/documentation, "frequency management and thermal control"). The documentation does not say how far at
which temperature. A straight line from 1.5 GHz at 80 C to 0.6 GHz at 85 C is assumed here.
"""

from __future__ import annotations

import math

CORES = 4
HOT_C, HOTTEST_C = 80.0, 85.0
SLOWEST_SHARE = 0.6 / 1.5

# The fit: final rise of each mass under full load of all cores, its time constant, and the temperature at rest.
_CHIP_C, _CHIP_S = 10.933, 8.998
_BOARD_C, _BOARD_S = 15.108, 121.63
_IDLE_C = 46.889


class Board:
    """A simulated board that becomes hot when its cores are busy.

    Args:
        warmer_c: ambient temperature minus that of the room where the curve was measured.
    """

    def __init__(self, warmer_c: float) -> None:
        self._rest_c = _IDLE_C + warmer_c
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
        self._chip_c = _drawn(self._chip_c, load * _CHIP_C, seconds / _CHIP_S)
        self._board_c = _drawn(self._board_c, load * _BOARD_C, seconds / _BOARD_S)


def _drawn(now: float, towards: float, times: float) -> float:
    return towards + (now - towards) * math.exp(-times)
