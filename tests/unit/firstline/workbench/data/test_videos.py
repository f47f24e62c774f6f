from io import BytesIO
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from firstline.workbench.data import videos
from firstline.workbench.data.dataset import open_dataset
from firstline_core.errors import ConfigError
from firstline_core.protocol.limits import DecodingLimits


def _video(path: Path, frames: int, size: tuple[int, int] = (64, 48)) -> Path:
    """Writes a video whose frame N has the brightness 5 N."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = size
        for number in range(frames):
            pixels = np.full((size[1], size[0], 3), 5 * number, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def _brightness(encoded: bytes) -> float:
    with Image.open(BytesIO(encoded)) as image:
        assert (image.format, image.size) == ("JPEG", (64, 48))
        return float(np.asarray(image).mean())


def test_one_frame_in_n_is_a_sample(tmp_path: Path) -> None:
    found = open_dataset(_video(tmp_path / "clip.mp4", 25), every=10)
    assert [sample.file for sample in found.samples] == ["clip.mp4@0", "clip.mp4@10", "clip.mp4@20"]
    np.testing.assert_allclose([_brightness(frame) for frame in found.contents()], [0, 50, 100], atol=4)
    assert len(open_dataset(tmp_path / "clip.mp4")) == 1


def test_each_video_is_a_group(tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    _video(tmp_path / "b.mkv", 3)
    _video(tmp_path / "day" / "a.mp4", 4)
    found = open_dataset(tmp_path, every=2)
    assert found.clusters == ("b.mkv", "b.mkv", "day/a.mp4", "day/a.mp4")
    some = found.some(2)
    assert [sample.file for sample in some.samples] == ["b.mkv@0", "day/a.mp4@0"]
    assert len(list(some.contents())) == 2


def test_damaged_video_is_named(tmp_path: Path) -> None:
    content = _video(tmp_path / "clip.avi", 25).read_bytes()
    found_in_whole = content.index(b"movi") + 40
    (tmp_path / "cut.avi").write_bytes(content[:found_in_whole] + b"\xff" * (len(content) - found_in_whole))
    with pytest.raises(ConfigError, match=r"cut\.avi@0', which cannot be decoded: the video is damaged there"):
        list(open_dataset(tmp_path / "cut.avi", every=5).contents())


def test_video_that_is_removed_meanwhile_is_not_called_damaged(tmp_path: Path) -> None:
    found = open_dataset(_video(tmp_path / "clip.mp4", 2))
    (tmp_path / "clip.mp4").unlink()
    with pytest.raises(ConfigError, match=r"clip\.mp4@0', which cannot be decoded: .*No such file or directory"):
        list(found.contents())


def test_large_frames_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(videos, "DEFAULT_DECODING_LIMITS", DecodingLimits(pixels=64 * 47))
    with pytest.raises(ConfigError, match=r"clip\.mp4 has frames of 64x48; at most 3,008 pixels"):
        open_dataset(_video(tmp_path / "clip.mp4", 2))


@pytest.mark.parametrize("playlist", ["#EXTM3U\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile '{}'\n"])
def test_playlist_does_not_open_other_files(tmp_path: Path, playlist: str) -> None:
    target = _video(tmp_path / "secret.mp4", 2)
    (tmp_path / "clip.mp4").write_text(playlist.format(target))
    with pytest.raises(ConfigError, match=r"clip\.mp4 cannot be read as a video"):
        open_dataset(tmp_path / "clip.mp4")


def test_recording_without_pictures_is_refused(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "clip.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        for packet in stream.encode(frame):
            container.mux(packet)
    with pytest.raises(ConfigError, match=r"clip\.mkv has no pictures"):
        open_dataset(tmp_path / "clip.mkv")
