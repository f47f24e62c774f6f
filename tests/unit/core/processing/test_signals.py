"""Steps for signals give what scipy gives."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from firstline_core.errors import InvalidTensorError, ModelLoadError
from firstline_core.processing.compile import compile_preprocess
from firstline_core.processing.signals import mel_filters
from firstline_core.processing.steps import BandEnergies, Detrend, Envelope, InputSpec, Mel, PreStep, Scale, Welch
from firstline_core.types import Tensor

RNG = np.random.default_rng(7)
SIGNALS = (RNG.normal(size=(3, 400, 2)) + np.linspace(0, 5, 400)[None, :, None]).astype(np.float32)


@pytest.fixture(scope="module")
def signal() -> Any:
    """Imported by the tests that use it, because it takes a second."""
    return pytest.importorskip("scipy.signal", reason="scipy is not installed")


def run(*steps: PreStep, of: Any = SIGNALS) -> Any:
    spec = InputSpec("x", "FP32", (-1, *([-1] * (of.ndim - 1))))
    found = compile_preprocess(steps, spec, lambda _: lambda a: a).run(Tensor("x", of)).rows
    assert found.dtype == np.float32
    return found


@pytest.mark.parametrize("kind", ["linear", "constant"])
@pytest.mark.parametrize("of", [SIGNALS, SIGNALS[:, :, 0]], ids=["channels", "samples"])
def test_detrend_subtracts_the_line_or_the_mean(signal: Any, kind: Any, of: Any) -> None:
    np.testing.assert_allclose(run(Detrend(kind), of=of), signal.detrend(of, axis=1, type=kind), atol=1e-5)


@pytest.mark.parametrize(("samples", "hop"), [(128, 0), (127, 0), (100, 25), (400, 0)])
def test_welch_is_the_power_spectral_density(signal: Any, samples: int, hop: int) -> None:
    overlap = samples - hop if hop else samples // 2
    _, expected = signal.welch(SIGNALS, 50.0, nperseg=samples, noverlap=overlap, axis=1)
    np.testing.assert_allclose(run(Welch(50.0, samples, hop)), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("count", [400, 399])
def test_band_energies_are_the_mean_power(signal: Any, count: int) -> None:
    of = SIGNALS[:, :count]
    edges = (0.0, 5.0, 12.5, 26.0)
    frequencies, power = signal.periodogram(of, 50.0, detrend=False, scaling="spectrum", axis=1)
    expected = [power[:, (frequencies >= low) & (frequencies < high)].sum(axis=1) for low, high in pairwise(edges)]
    found = run(BandEnergies(50.0, edges), of=of)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), rtol=1e-4)
    np.testing.assert_allclose(found.sum(axis=1), (of**2).mean(axis=1), rtol=1e-4)


@pytest.mark.parametrize("count", [400, 399, 1])
def test_the_envelope_is_the_analytic_signals_size(signal: Any, count: int) -> None:
    of = SIGNALS[:, :count]
    np.testing.assert_allclose(run(Envelope(), of=of), np.abs(signal.hilbert(of, axis=1)), atol=1e-5)


@pytest.mark.parametrize("log", [True, False])
def test_mel_bands_sum_the_power_spectrum(signal: Any, log: bool) -> None:
    step = Mel(8000, 64, 16, bands=6, low_hz=100, log=log)
    found = run(step)
    window = signal.get_window("hann", 64)
    frames = [SIGNALS[:, at : at + 64] * window[:, None] for at in range(0, 337, 16)]
    power = np.stack([np.abs(np.fft.rfft(frame, axis=1)) ** 2 for frame in frames])
    expected = np.einsum("tnfc,bf->ntbc", power, mel_filters(step))
    np.testing.assert_allclose(found, np.log(expected) if log else expected, rtol=1e-3, atol=1e-4)
    last = run(Mel(8000, 64, 16, bands=6, low_hz=100, log=log, frames="last"))
    np.testing.assert_array_equal(last, found.swapaxes(1, 2))


def test_a_tone_has_its_energy_in_its_mel_band() -> None:
    step = Mel(8000, 512, 256, bands=20, log=False)
    centres = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 4000 / 700), 22) / 2595) - 1)[1:-1]
    tone = np.sin(2 * np.pi * centres[9] * np.arange(2048) / 8000)[None].astype(np.float32)
    [energies] = run(step, of=tone)
    assert (energies.argmax(axis=1) == 9).all()
    assert mel_filters(step).max() <= 1


def test_silence_has_a_finite_logarithm() -> None:
    assert np.isfinite(run(Mel(8000, 512, 512), of=np.zeros((1, 512), np.float32))).all()


def test_rows_do_not_depend_on_each_other() -> None:
    steps = (Detrend(), Welch(50.0, 64), Scale((0.0,), (2.0,)))
    together = run(*steps)
    for row in range(3):
        np.testing.assert_array_equal(run(*steps, of=SIGNALS[row : row + 1])[0], together[row])


@pytest.mark.parametrize("of", [np.zeros((2, 3), np.float32), np.zeros((2, 3, 4, 5), np.float32)])
def test_signals_of_another_form_are_refused(of: Any) -> None:
    with pytest.raises(InvalidTensorError, match="take at least 64 samples"):
        run(Welch(50.0, 64), of=of)


def test_mel_bands_without_a_frequency_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="mel has 64 bands, and some have no frequency"):
        run(Mel(8000, 64, 64, bands=64))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Mel(8000, 1000, 10), "'hop' is at least 1/64"),
        (lambda: Mel(8000, 64, 64, low_hz=5000), "at most half of 'rate_hz'"),
        (lambda: Welch(50.0, 1000, 10), "'hop' is at least 1/64"),
        (lambda: BandEnergies(50.0, (0.0, 5.0, 5.0)), "above the one before"),
    ],
)
def test_contradictions_are_refused(build: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build()
