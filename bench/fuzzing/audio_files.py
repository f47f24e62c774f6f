"""WAV, FLAC and OGG files with damaged bytes, or with headers that promise something else than what follows.

Most of OGG's checksums fit, so that the decoder looks at the values. What an accepted file costs must be within the
limit of memory, also in the decoder's own libraries.
"""

from __future__ import annotations

import io
import resource
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
import soundfile

from bench.fuzzing.mutation import damaged
from firstline_core.processing.audio import AudioProcessing
from firstline_core.processing.cost import DecodingCost
from firstline_core.processing.steps import AudioStep, Crop, DecodeAudio, Mono, Resample, Windows
from firstline_core.protocol.limits import DecodingLimits
from firstline_core.types import Tensor, object_array

_LIMITS = DecodingLimits(memory_bytes=4 << 20)
_OWN_KIB = 32 << 10  # that the decoders and the process may take beyond it
_FORMS = (
    *(("WAV", subtype) for subtype in ("PCM_16", "PCM_24", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM")),
    ("WAVEX", "PCM_U8"),
    *(("FLAC", subtype) for subtype in ("PCM_16", "PCM_24")),
    *(("OGG", subtype) for subtype in ("VORBIS", "OPUS")),
)
_STEPS: Sequence[tuple[AudioStep, ...]] = (
    (DecodeAudio(), Resample(8000)),
    (DecodeAudio(), Mono(), Resample(16_000), Crop(800)),
    (DecodeAudio(), Mono(), Resample(8000), Windows(200, 100)),
)
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_NUMBERS = (0, 1, 2, 7, 16, 17, 255, 999, 8000, 384_000, 384_001, 65_535, 2**31 - 1, 2**31, 2**32 - 1)


class AudioFile(NamedTuple):
    """A file, and the steps of its bundle."""

    content: bytes
    steps: tuple[AudioStep, ...]


def make_audio(random: Random) -> AudioFile:
    """Returns a file that was valid before it was changed."""
    form = random.choice(_FORMS)
    content = _file(*form, random.choice((1, 1, 2)), random.choice((8000, 48_000)))
    if random.random() < 0.5:
        content = damaged(random, content, [_file(*each, 1, 8000) for each in _FORMS])
    if random.random() < 0.6:
        content = _with_other_header(random, content)
    if content.startswith(b"OggS") and random.random() < 0.8:
        content = _with_checksums(content)
    return AudioFile(content, random.choice(_STEPS))


def read_audio(file: AudioFile) -> object:
    """Returns the samples of a clip, if it is accepted.

    Raises:
        RequestError: the clip is refused.
        AssertionError: the cost is over the limit, or not what was used.
    """
    tensor = Tensor("audio", object_array([file.content]))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        processing = AudioProcessing(file.steps, _LIMITS)
        costs = processing.check_and_measure(tensor)
        cost = DecodingCost((costs,))
        assert cost.memory_bytes <= _LIMITS.memory_bytes, "over the limit of memory"
        samples = processing.run(tensor, costs)
        assert samples.nbytes <= cost.memory_bytes, f"{samples.nbytes} bytes, although it costs {cost.memory_bytes}"
        assert samples.size and np.isfinite(samples).all(), f"samples of shape {samples.shape} that are not finite"
        return samples
    finally:
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        assert grown_kib <= _LIMITS.memory_bytes // 1024 + _OWN_KIB, f"the process grew by {grown_kib} KiB"


@cache
def _file(form: str, subtype: str, channels: int, rate_hz: int) -> bytes:
    """A clip of an eighth of a second."""
    samples = np.random.default_rng(channels).uniform(-0.5, 0.5, (rate_hz // 8, channels))
    with io.BytesIO() as file:
        soundfile.write(file, samples, rate_hz, format=form, subtype=subtype)
        return file.getvalue()


def _with_other_header(random: Random, content: bytes) -> bytes:
    """Writes another number where the format keeps rate, channels or length."""
    found, number = bytearray(content), random.choice(_NUMBERS)
    if content[8:12] == b"WAVE":
        places = [(22, "<H"), (24, "<I"), (32, "<H"), (34, "<H"), (4, "<I"), (16, "<I"), (20, "<H")]
        if (data := content.find(b"data")) >= 0:
            places.append((data + 4, "<I"))
    elif content.startswith(b"fLaC"):
        places = [(8, ">H"), (10, ">H"), (18, ">I"), (21, ">I"), (4, ">I")]
    else:  # granule position, serial number, and the rate and channels of Vorbis or Opus
        places = [(6, "<I"), (10, "<I"), (14, "<I"), (26, "<H"), (37, "<H"), (39, "<H"), (40, "<I"), (44, "<I")]
        if (last := content.rfind(b"OggS")) > 0:
            places += [(last + 6, "<I"), (last + 10, "<I")]
    place, kind = random.choice(places)
    if place + struct.calcsize(kind) <= len(found):
        struct.pack_into(kind, found, place, number & (0xFFFF if kind[1] == "H" else 0xFFFF_FFFF))
    return bytes(found)


def _with_checksums(content: bytes) -> bytes:
    """Returns an OGG file whose pages have the right checksums, as far as their lengths tell where they end."""
    found, at = bytearray(content), 0
    while found[at : at + 4] == b"OggS" and at + 27 <= len(found):
        table = found[at + 27 : at + 27 + found[at + 26]]
        end = min(len(found), at + 27 + len(table) + sum(table))
        found[at + 22 : at + 26] = bytes(4)
        found[at + 22 : at + 26] = struct.pack("<I", _checksum(bytes(found[at:end])))
        at = end
    return bytes(found)


def _checksum(page: bytes) -> int:
    """Returns the CRC of a page, RFC 3533: that of zlib with all bits reversed, and without its inversions."""
    return int(f"{zlib.crc32(page.translate(_REVERSED), 0xFFFF_FFFF) ^ 0xFFFF_FFFF:032b}"[::-1], 2)
