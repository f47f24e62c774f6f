"""Videos: one frame in N, encoded as JPEG. Each video is one cluster. Read by PyAV: `firstline[video]`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from firstline.workbench.data.files import Where
from firstline.workbench.data.sample import Sample
from firstline_core.errors import ConfigError
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS

SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")

QUALITY = 90
"""Of the JPEG form of a frame, in which a camera would send it."""

# Playlists and other lists of files would let a video name files of this machine.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,h264,hevc"
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}


@dataclass(frozen=True, slots=True)
class VideoStore:
    """The videos of a folder, or one video.

    Attributes:
        place: of a folder, or of the only video.
    """

    place: Path

    def samples(self, names: Sequence[str], every: int) -> Iterator[Sample]:
        """Yields one frame in `every` of each video, from the first one on.

        Args:
            names: of the videos, relative to the folder.
            every: distance of two frames.

        Raises:
            ConfigError: a video cannot be read, or PyAV is not installed.
        """
        for name in names:
            for frame in range(0, _frames(self._path(name)), every):
                yield Sample(f"{name}@{frame}", 0, name, frame)

    def read(self, samples: Sequence[Sample], where: Where) -> Iterator[bytes]:
        """Yields the frame of each sample as JPEG, upright.

        Raises:
            ConfigError: a frame cannot be decoded, or is too large.
        """
        start = 0
        for end, (before, after) in enumerate(pairwise((*samples, None)), 1):
            if before and after and after.cluster == before.cluster and after.row > before.row:
                continue  # the frames of a video are decoded in one pass
            yield from self._of_one(samples[start:end], where)
            start = end

    def _of_one(self, samples: Sequence[Sample], where: Where) -> Iterator[bytes]:
        av, path = _library(), self._path(samples[0].cluster)
        wanted = iter(samples)
        sample = next(wanted)
        try:
            with av.open(str(path), options=_OPTIONS) as container:
                stream = _video_stream(container, path)
                for number, frame in enumerate(container.decode(stream)):
                    if number == sample.row:
                        _check_size(frame.width, frame.height, path)
                        yield _encoded(frame)
                        following = next(wanted, None)
                        if following is None:
                            return
                        sample = following
        except _errors(av) as error:
            damaged = isinstance(error, av.error.InvalidDataError)
            why = "the video is damaged there; cut it before, or leave it out" if damaged else str(error)
            raise ConfigError(f"{where(sample)}, which cannot be decoded: {why}.") from error
        raise ConfigError(f"{where(sample)}, which cannot be decoded: the video ends before it.")

    def _path(self, name: str) -> Path:
        return self.place / name if self.place.is_dir() else self.place


def _library() -> Any:
    try:
        import av
    except ImportError as error:
        raise ConfigError("Videos are read by PyAV: pip install 'firstline[video]'.") from error
    av.logging.set_level(None)  # its warnings about damaged frames would fill the terminal
    return av


def _errors(av: Any) -> tuple[type[Exception], ...]:
    return (av.FFmpegError, OSError, ValueError, MemoryError, NotImplementedError)


def _frames(path: Path) -> int:
    """Returns the number of frames, counted without decoding: containers state it wrongly or not at all."""
    av = _library()
    try:
        with av.open(str(path), options=_OPTIONS) as container:
            stream = _video_stream(container, path)
            return sum(packet.size > 0 for packet in container.demux(stream))
    except _errors(av) as error:
        raise ConfigError(
            f"{path} cannot be read as a video: it is damaged, or not a video; name an MP4, MKV, WebM or AVI file."
        ) from error


def _video_stream(container: Any, path: Path) -> Any:
    stream = next((stream for stream in container.streams.video if stream.codec_context is not None), None)
    if stream is None:
        raise ConfigError(f"{path} has no pictures that can be decoded.")
    _check_size(stream.codec_context.width, stream.codec_context.height, path)
    return stream


def _check_size(width: int, height: int, path: Path) -> None:
    limits = DEFAULT_DECODING_LIMITS
    if width * height > limits.pixels or max(width, height) > limits.side:
        raise ConfigError(
            f"{path} has frames of {width}x{height}; at most {limits.pixels:,} pixels and {limits.side:,} a side are "
            "read."
        )


def _encoded(frame: Any) -> bytes:
    from PIL import Image

    pixels = frame.to_ndarray(format="rgb24")
    turns = round(getattr(frame, "rotation", 0) / 90) % 4
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(np.rot90(pixels, turns))).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
