"""Runs the audio steps (decode_audio, mono, resample, crop, pad, windows) on one clip after the other: WAV, FLAC, OGG.

Every header is checked before any clip is decoded: a file of a few bytes may declare hours of silence.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.processing.audio_header import AudioHeader, MeasuredClip, check_format
from firstline_core.processing.memory import steps_memory
from firstline_core.processing.steps import AudioStep, Crop, DecodeAudio, Mono, Pad, PreStep, Resample, Windows
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits
from firstline_core.types import Array, Tensor

ENCODED_LIMIT_BYTES = 64 << 20
"""Of one clip."""

CHANNELS_LIMIT = 16
RATES_HZ = (1000, 384_000)
"""Lowest and highest sample rate of a clip."""

SAMPLES_LIMIT = 30_000_000
"""Of all channels of one clip, before and after it is resampled: ten minutes of mono at 48 kHz."""

TOTAL_SAMPLES_LIMIT = 60_000_000
"""Of all clips of a request, before and after: two seconds of one core."""

WINDOWS_LIMIT = 4096
"""Of all clips of a request, each with as many as the longest one."""

SAMPLE_LIMIT = 2.0**32
"""Of one sample: whole numbers stored as floats are accepted, and sums and squares of them stay finite."""

CHUNKS_LIMIT = 1000
"""Of a WAV file: they are read one by one."""

_FLOAT_BYTES = 4


class AudioProcessing:
    """The audio steps of a model, from encoded clips to FP32 (rows, samples), or (rows, samples, channels).

    With windows, the result is (rows, windows, samples, ...); clips that have fewer windows than the longest one are
    followed by silence, which counts as their samples.

    Args:
        steps: `decode_audio` first, and one `resample`.
        limits: `memory_bytes` of one clip.
        later: the steps after these.
    """

    def __init__(
        self,
        steps: Sequence[AudioStep],
        limits: DecodingLimits = DEFAULT_DECODING_LIMITS,
        later: Sequence[PreStep] = (),
    ) -> None:
        self._later = later
        self._steps = [step for step in steps if not isinstance(step, DecodeAudio | Windows)]
        self._windows = next((step for step in steps if isinstance(step, Windows)), None)
        self._limits = limits

    def check_and_measure(self, tensor: Tensor) -> tuple[MeasuredClip, ...]:
        """Checks the clips of a request against the limits, and returns what each costs; reads only their headers.

        Raises:
            InvalidTensorError: not a clip that can be decoded, as far as its header says.
            PayloadTooLargeError: a clip, or all together, over a limit.
        """
        measured: list[MeasuredClip] = []
        samples = windows = window_bytes = later_bytes = 0
        for row, element in enumerate(tensor.array):
            where = f"Row {row} of input '{tensor.name}'"
            header = read_header(element, where)
            clip, later = self._measured(header, where)
            measured.append(clip)
            later_bytes = max(later_bytes, later)
            samples += max(header.frames * header.channels, clip.result_bytes // _FLOAT_BYTES)
            windows, window_bytes = max(windows, clip.windows), max(window_bytes, clip.result_bytes // clip.windows)
            padded = (row + 1) * windows * window_bytes // _FLOAT_BYTES if self._windows is not None else 0
            if max(samples, padded) > TOTAL_SAMPLES_LIMIT or (row + 1) * windows > WINDOWS_LIMIT:
                raise PayloadTooLargeError(
                    f"Input '{tensor.name}' has more than {TOTAL_SAMPLES_LIMIT} samples or {WINDOWS_LIMIT} windows by "
                    f"row {row}; send fewer or shorter clips."
                )
        # The result of each clip, its copy among those of all clips, and what the later steps make of it.
        more_bytes = windows * (window_bytes + later_bytes)
        return tuple([clip._replace(result_bytes=clip.result_bytes + more_bytes) for clip in measured])

    def run(self, tensor: Tensor, costs: Sequence[MeasuredClip] | None = None) -> Array:
        """Runs the steps.

        Args:
            tensor: encoded clips.
            costs: from `check_and_measure`, of this tensor; None to read the headers now.

        Raises:
            InvalidTensorError: a row that is not a clip, or of another length than the others.
            PayloadTooLargeError: see `check_and_measure`.
        """
        costs = self.check_and_measure(tensor) if costs is None else costs
        done: list[Array] = []
        for row, (element, clip) in enumerate(zip(tensor.array, costs, strict=True)):
            where = f"Row {row} of input '{tensor.name}'"
            samples = decode(element, where)
            rate_hz = clip.header.rate_hz
            for step in self._steps:
                samples, rate_hz = _applied(step, samples, rate_hz)
            if self._windows is not None:
                samples = split(samples, self._windows)
            elif done and samples.shape != done[0].shape:
                raise InvalidTensorError(
                    f"{where} has {_described(samples)} and row 0 has {_described(done[0])}; this model takes clips "
                    "of one length, so send them so, or add pad and crop to its preprocessing."
                )
            done.append(samples)
        if len(done) == 1:
            return done[0][None]
        if self._windows is None:
            return np.stack(done)
        stacked = np.zeros((len(done), max(len(each) for each in done), *done[0].shape[1:]), np.float32)
        for row, each in enumerate(done):
            if each.shape[1:] != stacked.shape[2:]:
                raise InvalidTensorError(
                    f"Row {row} of input '{tensor.name}' has other channels than row 0; add mono to the preprocessing."
                )
            stacked[row, : len(each)] = each
        return stacked

    def _measured(self, header: AudioHeader, where: str) -> tuple[MeasuredClip, int]:
        """Returns the cost of one clip within the limits, and the bytes that the later steps hold of a window."""
        check_header(header, where)
        longest = frames = header.frames
        for step in self._steps:
            match step:
                case Resample():  # comes before the steps that change the length
                    frames = _resampled_length(frames, header.rate_hz, step.rate_hz)
                    longest = max(longest, frames)
                case Crop():
                    frames = min(frames, step.samples)
                case Pad():
                    frames = max(frames, step.samples)
        mono = any(isinstance(step, Mono) for step in self._steps)
        channels, windows = 1 if mono else header.channels, 1
        if self._windows is not None:
            windows = window_count(frames, self._windows)
            frames = windows * self._windows.samples
        result = frames * channels
        if longest * channels > SAMPLES_LIMIT or result > SAMPLES_LIMIT:
            raise PayloadTooLargeError(
                f"{where} has {max(longest * channels, result)} samples after it is resampled; at most "
                f"{SAMPLES_LIMIT} are used. Send a shorter clip."
            )
        later = steps_memory(self._later, (frames // windows,) if mono else (frames // windows, channels))
        # The decoded clip, its mono or resampled copies, and the result; then the later steps.
        decoding_bytes = _FLOAT_BYTES * (header.frames * header.channels + 2 * longest * channels + result)
        later_bytes = _FLOAT_BYTES * result + windows * later.row_bytes + later.once_bytes
        working_bytes = max(decoding_bytes, later_bytes)
        if working_bytes > self._limits.memory_bytes:
            raise PayloadTooLargeError(
                f"{where} has {header.frames} samples in {header.channels} channels, which take {working_bytes} bytes "
                f"of memory; at most {self._limits.memory_bytes} are used (decoding.memory_limit_bytes). Send a "
                "shorter clip."
            )
        return MeasuredClip(header, working_bytes, _FLOAT_BYTES * result, windows), later.row_bytes


def read_header(encoded: bytes, where: str) -> AudioHeader:
    """Reads the header of one WAV, FLAC or OGG file; nothing is decoded.

    Args:
        encoded: the file's bytes.
        where: the row, for messages, e.g. "Row 3 of input 'audio'".

    Raises:
        InvalidTensorError: another format, or a header that cannot be read.
        PayloadTooLargeError: too many bytes.
    """
    check_format(encoded, where)
    if len(encoded) > ENCODED_LIMIT_BYTES:
        raise PayloadTooLargeError(f"{where} has {len(encoded)} bytes; at most {ENCODED_LIMIT_BYTES} are read.")
    if encoded[8:12] == b"WAVE":
        _check_chunks(encoded, where)
    with _opened(encoded, where) as file:
        return AudioHeader(file.frames, file.samplerate, file.channels, encoded.startswith(b"OggS"))


def check_header(header: AudioHeader, where: str) -> None:
    """Checks the declared size of a clip.

    Raises:
        InvalidTensorError: it has no samples, or an unusual rate.
        PayloadTooLargeError: over a limit.
    """
    lowest, highest = RATES_HZ
    if not lowest <= header.rate_hz <= highest:
        raise InvalidTensorError(
            f"{where} has a sample rate of {header.rate_hz} Hz; rates from {lowest} to {highest} Hz are accepted."
        )
    if header.frames < 1:
        raise InvalidTensorError(f"{where} has no samples.")
    if header.channels > CHANNELS_LIMIT:
        raise PayloadTooLargeError(f"{where} has {header.channels} channels; at most {CHANNELS_LIMIT} are accepted.")
    if header.frames * header.channels > SAMPLES_LIMIT:
        raise PayloadTooLargeError(
            f"{where} declares {header.frames} samples in {header.channels} channels; at most {SAMPLES_LIMIT} are "
            "decoded. Send a shorter clip."
        )


def decode(encoded: bytes, where: str) -> NDArray[np.float32]:
    """Decodes one clip whose header was checked.

    Returns:
        FP32 (samples, channels), in -1 to 1; files of floating-point numbers may exceed this.

    Raises:
        InvalidTensorError: a truncated or broken file, or NaN, infinity or samples over a limit in it.
    """
    with _opened(encoded, where) as file:
        declared = file.frames
        try:
            samples: NDArray[np.float32] = file.read(declared, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise InvalidTensorError(f"{where} cannot be decoded: {_reason(error)}.") from error
    if len(samples) < declared:
        raise InvalidTensorError(f"{where} ends after {len(samples)} of {declared} samples; send the whole file.")
    lowest, highest = float(samples.min()), float(samples.max())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise InvalidTensorError(f"{where} has NaN or infinity; send finite samples.")
    if (peak := max(-lowest, highest)) > SAMPLE_LIMIT:
        raise InvalidTensorError(f"{where} has samples up to {peak:g}; scale them to -1 to 1.")
    return samples


def window_count(samples: int, step: Windows) -> int:
    """Returns how many windows cover `samples` samples; the last one may reach beyond the end."""
    return 1 + max(0, -(-(samples - step.samples) // step.hop))


def split(samples: NDArray[np.float32], step: Windows) -> NDArray[np.float32]:
    """Returns the windows of one clip, (windows, samples, ...); the last one is filled with silence.

    Args:
        samples: (samples,) or (samples, channels).
        step: length and distance of windows.
    """
    count = window_count(len(samples), step)
    missing = (count - 1) * step.hop + step.samples - len(samples)
    filled = np.pad(samples, [(0, max(missing, 0)), *[(0, 0)] * (samples.ndim - 1)])
    return np.stack([filled[at * step.hop : at * step.hop + step.samples] for at in range(count)])


def _applied(
    step: Mono | Resample | Crop | Pad, samples: NDArray[np.float32], rate_hz: int
) -> tuple[NDArray[np.float32], int]:
    """Returns a clip after a step, and its sample rate."""
    match step:
        case Mono():
            return (samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)), rate_hz
        case Resample():
            if rate_hz == step.rate_hz:
                return samples, rate_hz
            resampled = soxr.resample(np.ascontiguousarray(samples), rate_hz, step.rate_hz)
            length = _resampled_length(len(samples), rate_hz, step.rate_hz)
            return fitted(resampled, length), step.rate_hz
        case Crop():
            surplus = max(0, len(samples) - step.samples)
            first = {"start": 0, "center": surplus // 2, "end": surplus}[step.keep]
            return samples[first : first + step.samples], rate_hz
        case Pad():
            missing = max(0, step.samples - len(samples))
            before = missing // 2 if step.side == "both" else 0
            return np.pad(samples, [(before, missing - before), *[(0, 0)] * (samples.ndim - 1)]), rate_hz


def fitted(samples: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Returns exactly `length` samples: resamplers may give one more or less than the ratio of the rates says."""
    if len(samples) >= length:
        return samples[:length]
    return np.pad(samples, [(0, length - len(samples)), *[(0, 0)] * (samples.ndim - 1)])


def _resampled_length(samples: int, from_hz: int, to_hz: int) -> int:
    return samples if from_hz == to_hz else max(1, round(samples * to_hz / from_hz))


def _opened(encoded: bytes, where: str) -> soundfile.SoundFile:
    try:
        return soundfile.SoundFile(io.BytesIO(encoded))
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidTensorError(f"{where} cannot be read as audio: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """Returns the library's reason, without the description of the stream."""
    return str(getattr(error, "error_string", error)).removeprefix("Error : ").rstrip(".")


def _check_chunks(encoded: bytes, where: str) -> None:
    """Refuses a WAV file of too many chunks, or whose samples end before their declared size; libsndfile takes both."""
    order: Literal["little", "big"] = "big" if encoded.startswith(b"RIFX") else "little"
    at = 12
    for _ in range(CHUNKS_LIMIT):
        if at + 8 > len(encoded):
            return
        size = int.from_bytes(encoded[at + 4 : at + 8], order)
        # Programs that write into a pipe do not know the size.
        if encoded[at : at + 4] == b"data" and len(encoded) - at - 8 < size < 0x7FFF_0000:
            raise InvalidTensorError(
                f"{where} is a WAV file that ends after {len(encoded) - at - 8} of {size} bytes of samples; send the "
                "whole file."
            )
        at += 8 + size + size % 2
    raise PayloadTooLargeError(f"{where} has more than {CHUNKS_LIMIT} chunks; write the file without its metadata.")


def _described(samples: Array) -> str:
    channels = f" in {samples.shape[1]} channels" if samples.ndim > 1 else ""
    return f"{len(samples)} samples{channels}"
