"""Whether the declared steps make values that a quantised input can hold, and which scale step would."""

from __future__ import annotations

from msgspec import Struct

from firstline.workbench.step_syntax import spell
from firstline_core.bundle.loading import LoadedModel
from firstline_core.processing.steps import Scale
from firstline_core.types import Array, Tensor

_CLIPPED_SHARE = 0.1
_USED_SHARE = 0.6
# Half a quantisation step, and what resizing and rounding do at the ends.
_SLACK = 0.01


class Misfit(Struct, frozen=True):
    """A range that does not fit; `hopeless` if most values are clipped."""

    sentence: str
    hopeless: bool


def misfit(loaded: LoadedModel, tensor: Tensor, rows: Array) -> Misfit | None:
    """Compares what noise in 0..255 becomes with what the model's input can hold.

    Args:
        loaded: the model.
        tensor: the noise; anything but pixels says nothing of the range, and is passed over.
        rows: the result of the model's steps.
    """
    held = loaded.runtime.ranges.get(loaded.input.name)
    if held is None or tensor.datatype != "UINT8":
        return None
    low, high = held
    slack = _SLACK * (high - low)
    clipped = float(((rows < low - slack) | (rows > high + slack)).mean())
    first, last = float(rows.min()), float(rows.max())
    used = (min(last, high) - max(first, low)) / (high - low)
    if clipped <= _CLIPPED_SHARE and used >= _USED_SHARE:
        return None
    wrong = f"{clipped:.0%} of them are clipped" if clipped > _CLIPPED_SHARE else f"they use {used:.0%} of it"
    declared = [step for step in loaded.model.preprocess if isinstance(step, Scale)]
    instead = f"instead of {spell(declared)}" if declared else "to its preprocessing"
    return Misfit(
        f"its quantised input holds {low:.4g} to {high:.4g}, but pixels become {first:.4g} to {last:.4g}, so {wrong}; "
        f"add {_fitting(low, high)} {instead}",
        hopeless=clipped > 0.5,
    )


def _fitting(low: float, high: float) -> str:
    """The step that turns 0..255 into low..high."""
    std = 255 / (high - low)
    return f"scale:{_short(-low * std)}:{_short(std)}"


def _short(value: float) -> str:
    return f"{value + 0.0:.5g}"  # + 0.0: no minus zero
