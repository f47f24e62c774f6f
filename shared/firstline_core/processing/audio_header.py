"""The declared size of an audio clip, and the cost of processing it. Pure; `audio.py` reads the headers."""

from __future__ import annotations

from typing import NamedTuple

from firstline_core.errors import InvalidTensorError

# Decoding a sample of OGG takes as long as decoding four pixels; of the other formats, less than one.
_OGG_PIXELS, _PIXELS = 4, 1

_FLAC, _OGG = b"fLaC", b"OggS"
# Other formats may have `WAVE` at the same place, and libsndfile would read them.
_RIFF, _WAVE = (b"RIFF", b"RIFX", b"RF64"), b"WAVE"
_OTHER_FORMATS = {b"ID3": "MP3", b"\xff\xfb": "MP3", b"\xff\xf3": "MP3", b"FORM": "AIFF", b".snd": "AU", b"caff": "CAF"}


class AudioHeader(NamedTuple):
    """The declarations of a file about its clip.

    Attributes:
        frames: samples of each channel.
        rate_hz: samples of a channel in a second.
        channels: number of channels.
        is_ogg: whether the file is OGG.
    """

    frames: int
    rate_hz: int
    channels: int
    is_ogg: bool = False

    @property
    def pixels(self) -> int:
        """Returns the number of pixels of an image that takes as long to decode."""
        return self.frames * self.channels * (_OGG_PIXELS if self.is_ogg else _PIXELS)


class MeasuredClip(NamedTuple):
    """The cost of processing one clip, and the number of its windows; see `MeasuredImage`."""

    header: AudioHeader
    working_bytes: int
    result_bytes: int
    windows: int = 1
    encoded_bytes: int = 0  # reading a file of audio takes no longer than its samples


def check_format(encoded: bytes, where: str) -> None:
    """Checks that a file begins like WAV, FLAC or OGG.

    Args:
        encoded: the file's bytes.
        where: the row, for messages.

    Raises:
        InvalidTensorError: it does not; the message says what it is, if that is known.
    """
    if not isinstance(encoded, bytes):
        raise InvalidTensorError(f"{where} is of type {type(encoded).__name__}; encoded audio is bytes.")
    is_wave = encoded.startswith(_RIFF) and encoded.startswith(_WAVE, 8)
    if not (is_wave or encoded.startswith((_FLAC, _OGG))):
        names = [name for magic, name in _OTHER_FORMATS.items() if encoded.startswith(magic)]
        found = f"{names[0]}" if names else "not an audio file" if encoded else "empty"
        raise InvalidTensorError(f"{where} is {found}; send WAV, FLAC or OGG.")
