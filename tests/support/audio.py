"""Audio files that tests use."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from firstline_core.types import Tensor

soundfile = pytest.importorskip("soundfile", reason="the extra audio is not installed")


def clip(samples: ArrayLike, rate_hz: int = 8000, form: str = "WAV", subtype: str = "PCM_16") -> bytes:
    """An encoded file of (samples,) or (samples, channels), in -1 to 1."""
    stream = io.BytesIO()
    soundfile.write(stream, np.asarray(samples, np.float64), rate_hz, format=form, subtype=subtype)
    return stream.getvalue()


def clips(*encoded: bytes) -> Tensor:
    array: Any = np.empty(len(encoded), object)
    array[:] = encoded
    return Tensor("audio", array)


def tone(hz: float, rate_hz: int, seconds: float = 1.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A sine of half the full scale."""
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate_hz * seconds)) / rate_hz)
