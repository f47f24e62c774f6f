import struct
import sys
from typing import Any

import numpy as np
import pytest
from support.audio import clip, clips, tone

from firstline_core.errors import InvalidTensorError, ModelLoadError, PayloadTooLargeError
from firstline_core.processing import audio
from firstline_core.processing.compile import compile_preprocess
from firstline_core.processing.cost import DecodingCost
from firstline_core.processing.steps import (
    Crop,
    DecodeAudio,
    DecodeText,
    Graph,
    InputSpec,
    Mono,
    Observed,
    Pad,
    PreStep,
    Resample,
    Resize,
    Scale,
    Standardize,
    Windows,
)
from firstline_core.processing.windows import WINDOWS, combine_windows
from firstline_core.protocol.limits import DecodingLimits

AUDIO = InputSpec("audio", "BYTES", (-1,), "audio")
START = (DecodeAudio(), Mono(), Resample(8000))


def compiled(*steps: PreStep, limits: DecodingLimits = DecodingLimits(), spec: InputSpec = AUDIO) -> Any:  # noqa: B008
    def no_graph(step: Graph) -> Any:
        raise AssertionError(step)

    return compile_preprocess(steps, spec, no_graph, limits)


def run(*steps: PreStep, of: bytes | tuple[bytes, ...], limits: DecodingLimits = DecodingLimits()) -> Any:  # noqa: B008
    return compiled(*steps, limits=limits).run(clips(*((of,) if isinstance(of, bytes) else of))).rows


def test_samples_of_16_bits_are_divided_by_32768() -> None:
    raw = np.array([0, 16384, -32768, 32767])
    found = run(*START, of=clip(raw / 32768))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [(raw / 32768).astype(np.float32)])


@pytest.mark.parametrize(
    ("form", "subtype", "within"),
    [("FLAC", "PCM_16", 1e-4), ("WAV", "FLOAT", 1e-6), ("WAV", "ULAW", 0.03), ("OGG", "VORBIS", 0.05)],
)
def test_formats_have_the_same_samples(form: str, subtype: str, within: float) -> None:
    wave = tone(440, 8000)
    [found] = run(*START, of=clip(wave, form=form, subtype=subtype))
    np.testing.assert_allclose(found, wave, atol=within)


@pytest.mark.parametrize("rate_hz", [8000, 11_025, 16_000, 44_100, 48_000, 96_000])
def test_every_rate_gives_the_wave_at_the_models_rate(rate_hz: int) -> None:
    [found] = run(*START, of=clip(tone(440, rate_hz), rate_hz))
    assert len(found) == 8000
    np.testing.assert_allclose(found[200:-200], tone(440, 8000)[200:-200], atol=2e-3)


def test_frequencies_above_the_models_rate_do_not_alias() -> None:
    [found] = run(*START, of=clip(tone(10_000, 44_100), 44_100))
    assert np.abs(found[200:-200]).max() < 1e-3


def test_mono_is_the_mean_of_the_channels() -> None:
    [found] = run(*START, of=clip([[0.5, -0.25], [0.25, 0.25]]))
    np.testing.assert_allclose(found, [0.125, 0.25])


def test_channels_stay_without_mono() -> None:
    [found] = run(DecodeAudio(), Resample(8000), Scale((0.0,), (0.5,)), of=clip([[0.5, -0.25], [0.25, 0.25]]))
    np.testing.assert_allclose(found, [[1, -0.5], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Crop(2), [1, 2]),
        (Crop(2, "center"), [2, 3]),
        (Crop(2, "end"), [3, 4]),
        (Pad(6), [1, 2, 3, 4, 0, 0]),
        (Pad(7, "both"), [0, 1, 2, 3, 4, 0, 0]),
        (Crop(8), [1, 2, 3, 4]),
        (Pad(3), [1, 2, 3, 4]),
    ],
)
def test_clips_are_cut_and_padded(step: PreStep, expected: list[int]) -> None:
    [found] = run(*START, step, of=clip(np.arange(1, 5) / 8))
    np.testing.assert_array_equal(found * 8, expected)


def test_windows_overlap_and_the_last_one_ends_in_silence() -> None:
    prepared = compiled(*START, Windows(4, 3))
    tensor = clips(clip(np.arange(1, 9) / 16), clip(np.array([1, 2]) / 16))
    found, side = prepared.run(tensor)
    silence = [0, 0, 0, 0]
    expected = [[[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 0, 0]], [[1, 2, 0, 0], silence, silence]]
    np.testing.assert_array_equal(found * 16, expected)
    assert side[WINDOWS].tolist() == [3, 1]


def test_answers_to_windows_are_combined_without_the_silence() -> None:
    answers = np.array([[[0.2, 0.8], [0.6, 0.4]], [[1, 0], [9, 9]]], np.float32)
    counts = np.array([2, 1])
    np.testing.assert_allclose(combine_windows(answers, counts, "mean"), [[0.4, 0.6], [1, 0]])
    np.testing.assert_allclose(combine_windows(answers, counts, "max"), [[0.6, 0.8], [1, 0]])


def wav(samples: bytes, *, channels: int = 1, rate_hz: int = 8000, size: int | None = None) -> bytes:
    """A WAV file with a header of choice."""
    declared = len(samples) if size is None else size
    form = struct.pack("<HHIIHH", 1, channels, rate_hz, rate_hz * channels * 2, channels * 2, 16)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", declared) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "is empty; send WAV, FLAC or OGG"),
        (b"hello", "is not an audio file; send WAV"),
        (b"ID3\x04" + bytes(50), "is MP3; send WAV"),
        (b"RIFF\0\0\0\0WAVE", "cannot be read as audio"),
        (b"fLaC" + bytes(60), "cannot be read as audio"),
        (wav(b""), "has no samples"),
        (wav(bytes(100), size=200), "ends after 100 of 200 bytes"),
        (wav(bytes(100), rate_hz=10), "has a sample rate of 10 Hz"),
        (clip(tone(440, 8000), form="FLAC")[:-400], "row|Row"),
        (clip([0.5, np.nan], subtype="FLOAT"), "has NaN or infinity"),
        (clip([0.5, -3e38], subtype="FLOAT"), "has samples up to 3e"),
        (clip([0.5, 1e300], subtype="DOUBLE"), "has NaN or infinity"),
    ],
    ids=range(12),
)
def test_a_damaged_clip_is_refused_by_its_row(encoded: bytes, reason: str) -> None:
    with pytest.raises(InvalidTensorError, match="Row 1 of input 'audio'") as refused:
        run(*START, of=(clip([0.5]), encoded))
    if "|" not in reason:
        assert reason in refused.value.message


def test_a_file_of_another_format_is_not_opened_because_it_says_wave() -> None:
    disguised = bytearray(clip([0.5], form="AU"))
    disguised[8:12] = b"WAVE"  # where AU has the size of its samples
    with pytest.raises(InvalidTensorError, match="Row 0 is AU; send WAV, FLAC or OGG"):
        audio.read_header(bytes(disguised), "Row 0")


def test_a_wav_of_unknown_length_is_read_to_its_end() -> None:
    raw = np.array([16384, -16384], "<i2")
    np.testing.assert_array_equal(run(*START, of=wav(raw.tobytes(), size=0xFFFF_FFFF)), [[0.5, -0.5]])


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (wav(bytes(64), channels=17), "has 17 channels; at most 16"),
        (clip(np.zeros(40_000), 48_000, "FLAC"), "declares 40000 samples"),
        (clip(np.zeros(5000), 1000, "FLAC"), "has 40000 samples after it is resampled"),
    ],
    ids=["channels", "long", "resampled"],
)
def test_a_long_clip_is_refused_by_its_header(encoded: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "decode", None)  # nothing is decoded
    monkeypatch.setattr(audio, "SAMPLES_LIMIT", 30_000)
    with pytest.raises(PayloadTooLargeError, match=reason):
        run(*START, of=encoded)


def test_memory_and_the_clips_of_a_request_are_limited() -> None:
    minute = clip(np.zeros(480_000), form="FLAC")
    with pytest.raises(PayloadTooLargeError, match=r"decoding\.memory_limit_bytes"):
        run(*START, of=minute, limits=DecodingLimits(memory_bytes=1 << 20))
    with pytest.raises(PayloadTooLargeError, match="more than 60000000 samples or 4096 windows by row 125"):
        compiled(*START).audio.check_and_measure(clips(*[minute] * 200))
    with pytest.raises(PayloadTooLargeError, match="by row 0"):
        compiled(*START, Windows(4, 1)).audio.check_and_measure(clips(minute))


def test_silence_after_short_clips_counts_as_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = compiled(*START, Windows(8, 8))
    long, short = clip(np.zeros(8 * 1000)), clip([0.5])
    tensor = clips(long, *[short] * 3)
    costs = prepared.audio.check_and_measure(tensor)
    assert DecodingCost((costs,)).memory_bytes >= prepared.audio.run(tensor, costs).nbytes == 4 * 1000 * 8 * 4
    with pytest.raises(PayloadTooLargeError, match="4096 windows by row 4"):
        prepared.audio.check_and_measure(clips(*[short] * 4, long))
    monkeypatch.setattr(audio, "TOTAL_SAMPLES_LIMIT", 4 * 8000 - 1)
    with pytest.raises(PayloadTooLargeError, match="samples or 4096 windows by row 3"):
        prepared.audio.check_and_measure(tensor)


@pytest.mark.parametrize("at", [12, -1], ids=["before", "after"])
@pytest.mark.parametrize("kind", [b"RIFF", b"RIFX", b"RF64"])
def test_wav_files_of_many_chunks_are_refused_unopened(kind: bytes, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "_opened", None)
    whole = wav(bytes(4))
    if kind == b"RIFX":
        whole = whole[:12]
    at = len(whole) if at < 0 else at
    with pytest.raises(PayloadTooLargeError, match="Row 0 has more than 1000 chunks"):
        audio.read_header(kind + whole[4:at] + b"JUNK\0\0\0\0" * 1000 + whole[at:], "Row 0")


def test_clips_of_different_lengths_need_pad_and_crop() -> None:
    with pytest.raises(InvalidTensorError, match="Row 1 of input 'audio' has 1 samples and row 0 has 2 samples"):
        run(*START, of=(clip([0.5, 0.5]), clip([0.5])))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((DecodeAudio(),), "needs one resample:RATE"),
        ((Resample(8000),), "start with decode_audio"),
        ((Crop(4), DecodeAudio(), Resample(8000)), "start with decode_audio"),
        ((DecodeAudio(), Crop(4), Resample(8000)), "resample comes before crop"),
        ((*START, Windows(4, 2), Crop(4)), "windows is the last"),
        ((*START, Mono()), "mono comes once"),
        ((*START, Scale(), Pad(4)), "audio steps come before scale"),
        ((*START, Resize(4, 4)), "do not go with image steps"),
        ((*START, Observed(1)), "observed comes first, once, and takes numbers"),
        ((*START, Scale(), Standardize()), "standardize comes first after the audio steps, and once"),
        ((*START, DecodeText()), "decode_text does not go with this input"),
    ],
)
def test_audio_steps_have_an_order(steps: tuple[PreStep, ...], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        compiled(*steps)


def test_audio_steps_need_encoded_clips() -> None:
    with pytest.raises(ModelLoadError, match="of an input of type BYTES"):
        compiled(*START, spec=InputSpec("x", "FP32", (-1, 4)))


def test_a_tier_without_the_packages_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.delitem(sys.modules, "firstline_core.processing.audio")
    with pytest.raises(ModelLoadError, match=r"needs the package 'soundfile'.*: pip install 'firstline\[audio\]'\."):
        compiled(*START)
