"""Steps for signals of sensors and for sound: detrend, Welch's spectrum, band energies, envelope, mel. Pure.

Every function takes (rows, samples) or (rows, samples, channels), computes in FP64 row by row, so that the memory for
the windows of one row is used at a time, and returns FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError, ModelLoadError
from firstline_core.processing.steps import BandEnergies, Detrend, Envelope, Mel, SignalStep, Welch
from firstline_core.types import Array

Floats: TypeAlias = NDArray[np.float64]

BLOCK_VALUES = 1 << 17
"""Of the windows that are computed at a time: overlapping ones take many times the signal."""

_QUIETEST = 1e-10  # of mel energies, before the logarithm


def compile_signal(step: SignalStep) -> Callable[[Array], NDArray[np.float32]]:
    """Returns the function of a step.

    Raises:
        ModelLoadError: a mel band has no frequency of the spectrum.
    """
    match step:
        case Detrend():
            return _by_row(lambda row: detrend(row, linear=step.kind == "linear"))
        case Welch():
            return _by_row(lambda row: welch(row, step), least=step.samples)
        case BandEnergies():
            return _by_row(lambda row: band_energies(row, step))
        case Envelope():
            return _by_row(envelope)
        case Mel():
            if not mel_filters(step).any(axis=1).all():
                raise ModelLoadError(
                    f"Preprocessing: mel has {step.bands} bands, and some have no frequency of a window of "
                    f"{step.samples} samples; use fewer bands or longer windows."
                )
            return _by_row(lambda row: mel(row, step), least=step.samples)


def detrend(row: Floats, *, linear: bool) -> Floats:
    """Returns a signal (samples, ...) minus its mean, or minus the line that fits it best (least squares)."""
    centred: Floats = row - row.mean(axis=0)
    if not linear:
        return centred
    time = np.arange(len(row)) - (len(row) - 1) / 2
    slope = np.tensordot(time, centred, 1) / max((time**2).sum(), 1)
    return np.asarray(centred - np.multiply.outer(time, slope))


def welch(row: Floats, step: Welch) -> Floats:
    """Returns the power spectral density of a signal by Welch's method, (samples // 2 + 1, ...), in units² a hertz.

    Windows are Hann's, overlap by half unless the step says so, and lose their mean. P. Welch, IEEE Transactions on
    Audio and Electroacoustics 15, 1967.
    """
    window = _hann(step.samples)
    frames = _frames(row, step.samples, welch_hop(step))
    power = np.zeros((*frames.shape[1:-1], step.samples // 2 + 1))
    for block in _blocks(frames):
        spectra = np.fft.rfft((block - block.mean(axis=-1, keepdims=True)) * window)
        power += (np.abs(spectra) ** 2).sum(axis=0)
    density = _one_sided(power / len(frames), step.samples) / (step.rate_hz * (window**2).sum())
    return np.moveaxis(density, -1, 0)


def band_energies(row: Floats, step: BandEnergies) -> Floats:
    """Returns the mean power of a signal in each band, (bands, ...): the sum over all frequencies is its mean square.

    A band has its lower edge, and not its upper one.
    """
    count = len(row)
    power = _one_sided(np.moveaxis(np.abs(np.fft.rfft(row, axis=0)) ** 2, 0, -1), count) / count**2
    frequencies = np.fft.rfftfreq(count, 1 / step.rate_hz)
    bands = zip(step.edges_hz[:-1], step.edges_hz[1:], strict=True)
    return np.stack([power[..., (frequencies >= low) & (frequencies < high)].sum(axis=-1) for low, high in bands])


def envelope(row: Floats) -> Floats:
    """Returns the amplitude of a signal (samples, ...) over time: the size of its analytic signal (Hilbert)."""
    count = len(row)
    weights = np.zeros(count)
    weights[0] = 1
    weights[1 : (count + 1) // 2] = 2
    if count % 2 == 0:
        weights[count // 2] = 1
    spectrum = np.fft.fft(row, axis=0) * weights.reshape(-1, *(1,) * (row.ndim - 1))
    return np.asarray(np.abs(np.fft.ifft(spectrum, axis=0)))


def mel(row: Floats, step: Mel) -> Floats:
    """Returns the energies of a signal in mel bands over time, (frames, bands, ...), or (bands, frames, ...)."""
    frames = _frames(row, step.samples, step.hop)
    window, filters = _hann(step.samples), mel_filters(step).T
    energies, at = np.empty((*frames.shape[:-1], step.bands)), 0
    for block in _blocks(frames):
        np.matmul(np.abs(np.fft.rfft(block * window)) ** 2, filters, out=energies[at : at + len(block)])
        at += len(block)
    if step.log:
        np.log(np.maximum(energies, _QUIETEST, out=energies), out=energies)
    energies = np.moveaxis(energies, -1, 1)
    return energies if step.frames == "first" else np.swapaxes(energies, 0, 1)


@lru_cache(maxsize=16)
def mel_filters(step: Mel) -> Floats:
    """Returns the weights of each frequency in each band, (bands, samples // 2 + 1): triangles on HTK's mel scale.

    mel(f) = 2595 log10(1 + f / 700). The triangles have the height 1 and meet at the centres of their neighbours.
    """
    highest = step.high_hz or step.rate_hz / 2
    low, high = (2595 * np.log10(1 + hz / 700) for hz in (step.low_hz, highest))
    edges = 700 * (10 ** (np.linspace(low, high, step.bands + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(step.samples, 1 / step.rate_hz)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - left) / (centre - left), (right - frequencies) / (right - centre)
    filters = np.clip(np.minimum(rising, falling), 0, None)
    filters.flags.writeable = False
    return filters


def _by_row(function: Callable[[Floats], Floats], *, least: int = 1) -> Callable[[Array], NDArray[np.float32]]:
    """Returns a function of one row, (samples, ...), as a function of all rows."""

    def run(array: Array) -> NDArray[np.float32]:
        if array.ndim not in (2, 3) or array.shape[1] < least:
            raise InvalidTensorError(
                f"The input has rows of shape {list(array.shape[1:])}; steps for signals take at least {least} "
                "samples, in [samples] or [samples, channels]."
            )
        first = function(array[0].astype(np.float64))
        done = np.empty((len(array), *first.shape), np.float32)
        done[0] = first
        for at in range(1, len(array)):
            done[at] = function(array[at].astype(np.float64))
        return done

    return run


def frame_count(samples: int, window: int, hop: int) -> int:
    """Returns the number of whole windows of a signal."""
    return max(0, (samples - window) // hop + 1)


def welch_hop(step: Welch) -> int:
    """Returns the samples from the start of a window to the start of the next one."""
    return step.hop or max(1, step.samples - step.samples // 2)


def _frames(row: Floats, samples: int, hop: int) -> Floats:
    """Returns the whole windows of a signal, (frames, ..., samples)."""
    return sliding_window_view(row, samples, axis=0)[::hop]


def _blocks(frames: Floats) -> Iterator[Floats]:
    """Yields the windows in blocks of limited size."""
    count = max(1, BLOCK_VALUES // frames[0].size)
    return (frames[at : at + count] for at in range(0, len(frames), count))


@lru_cache(maxsize=16)
def _hann(samples: int) -> Floats:
    """Returns Hann's window, periodic."""
    window: Floats = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(samples) / samples)
    window.flags.writeable = False
    return window


def _one_sided(power: Floats, samples: int) -> Floats:
    """Returns power (..., samples // 2 + 1) with that of the negative frequencies."""
    doubled = power.copy()
    doubled[..., 1 : (samples + 1) // 2] *= 2
    return doubled
