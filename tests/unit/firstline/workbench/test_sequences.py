"""Signs that the images of a folder are frames of sequences."""

from pathlib import Path

import numpy as np
import pytest
from support.images import encode

from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline.workbench.sequences import Sequences, find_sequences


def _folder(folder: Path, names: list[str], scenes: list[int]) -> Dataset:
    """Returns images of scenes; those of one scene differ by noise."""
    random = np.random.default_rng(0)
    pictures = random.integers(40, 216, (max(scenes) + 1, 24, 24, 3))
    folder.mkdir()
    for name, scene in zip(names, scenes, strict=True):
        noise = random.integers(-8, 8, (24, 24, 3))
        (folder / name).write_bytes(encode((pictures[scene] + noise).astype(np.uint8)))
    return open_dataset(folder)


def test_different_images_with_numbers_are_no_sequence(tmp_path: Path) -> None:
    names = [f"img_{number:04}.png" for number in range(60)]
    assert find_sequences(_folder(tmp_path / "data", names, list(range(60)))) is None


def test_nearly_identical_neighbours_count_once(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(60)]  # 9 comes before 10
    found = find_sequences(_folder(tmp_path / "data", names, [number // 5 for number in range(60)]))
    assert (found.sign, found.effective) == ("neighbours by name that are nearly identical", 11)


def test_copies_under_other_names_count_once(tmp_path: Path) -> None:
    _folder(tmp_path / "data", [f"a{number}.png" for number in range(40)], list(range(40)))
    for number in range(4):
        (tmp_path / "data" / f"b{number}.png").write_bytes((tmp_path / "data" / f"a{number}.png").read_bytes())
    assert find_sequences(open_dataset(tmp_path / "data")) == Sequences("files that are copies of others", 40)
    for number in range(2, 4):
        (tmp_path / "data" / f"b{number}.png").unlink()
    assert find_sequences(open_dataset(tmp_path / "data")) is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"yard_frame_{number}.png" for number in range(30)], Sequences("names such as 'yard_frame_0.png'", 1)),
        ([f"cam{number % 3}-clip{number}.png" for number in range(30)], Sequences("names such as 'cam0-clip0.png'", 3)),
        (
            [f"20260301_1200{number:02}.png" for number in range(30)],
            Sequences("times in names, often within 10 seconds,", 1),
        ),
        ([f"20260301_{number % 24:02}0000.png" for number in range(24)], None),
        ([f"20261399_1200{number:02}.png" for number in range(30)], None),
        ([f"{number}²0.png" for number in range(30)], None),
    ],
    ids=["frames", "clips of cameras", "seconds", "hours", "no dates", "raised digits"],
)
def test_names_of_frames_and_times_are_signs(tmp_path: Path, names: list[str], expected: Sequences | None) -> None:
    assert find_sequences(_folder(tmp_path / "data", names, list(range(len(names))))) == expected


def test_known_groups_need_no_sign(tmp_path: Path) -> None:
    names = [f"frame_{number}.png" for number in range(10)]
    (tmp_path / "data").mkdir()
    _folder(tmp_path / "data/images", names, [0] * 10)
    rows = "".join(f"{name},scene {number // 2}\n" for number, name in enumerate(names))
    (tmp_path / "data/labels.csv").write_text("file,group\n" + rows)
    dataset = open_dataset(tmp_path / "data")
    assert len(set(dataset.clusters)) == 5
    assert find_sequences(dataset) is None
