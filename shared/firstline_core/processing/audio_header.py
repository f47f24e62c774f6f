"""The declared size of an audio clip, and the cost of processing it. Pure; `audio.py` reads the headers."""

from __future__ import annotations

from typing import NamedTuple

# Decoding a sample of OGG takes as long as decoding four pixels; of the other formats, less than one.
_OGG_PIXELS, _PIXELS = 4, 1


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
    """The cost of processing one clip; see `MeasuredImage`."""

    header: AudioHeader
    working_bytes: int
    result_bytes: int
