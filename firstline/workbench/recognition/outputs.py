"""An output of a model: its shape, and the numbers of one trial run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from firstline_core.types import DATATYPES, Array, TensorSpec

_ROUNDED = 0.01  # of a sum of percentages


class Output(NamedTuple):
    """An output of a model.

    Attributes:
        name: of the output.
        real: whether its numbers are real.
        shape: without the axis of rows; () if rows are not its first axis.
        values: of the trial run, without the axis of rows; None without a run, for text, and with NaN, infinity or no
            number.
    """

    name: str
    real: bool
    shape: tuple[int, ...]
    values: Array | None

    @classmethod
    def of(cls, spec: TensorSpec, found: Array | None) -> Output:
        if found is not None and found.shape[:1] != (1,):  # nothing says which row a part of it belongs to
            return cls(spec.name, False, (), None)
        shape = found.shape[1:] if found is not None else spec.shape[1:]
        real = DATATYPES[spec.datatype].kind == "f"
        if found is not None and (not found.size or found.dtype.hasobject or (real and not np.isfinite(found).all())):
            found = None
        return cls(spec.name, real, tuple(shape), None if found is None else found[0])

    def largest(self, *index: Any) -> float | None:
        """Returns the largest absolute value of a part; None without a trial run."""
        return None if self.values is None else float(np.abs(self.values[index]).max(initial=0))

    @property
    def probable(self) -> bool:
        """Returns whether the values of the trial run are from 0 to 1 and sum to 1, as far as a quantised model can."""
        return self._sums_within(0.5, 1.05)

    @property
    def sums_to_one(self) -> bool:
        """Returns whether the values of the trial run are from 0 to 1 and sum to 1, as those of a model of floats."""
        return self._sums_within(0.99, 1.01)

    @property
    def percentages(self) -> bool:
        """Returns whether the values of the trial run are percentages that sum to 100."""
        return self._sums_within(100 - _ROUNDED, 100 + _ROUNDED, most=100)

    def _sums_within(self, low: float, high: float, most: float = 1) -> bool:
        """Returns whether the values of the trial run are from 0 to `most`, and their sum from `low` to `high`."""
        if self.values is None:
            return False
        values = self.values.astype(np.float64)
        return bool(values.min() >= -1e-6 and values.max() <= most + 1e-6 and low <= values.sum() <= high)

    @property
    def whole(self) -> bool:
        """Returns whether all values are whole numbers, and any is above 1."""
        return self.values is not None and bool((self.values == np.rint(self.values)).all() and self.values.max() > 1)
