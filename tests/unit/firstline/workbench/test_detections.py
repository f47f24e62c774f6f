from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline.workbench.detections import compare
from firstline_core.errors import ConfigError


def box(image: int | str, *bbox: float, sure: float = 0.9, kind: int = 1) -> dict[str, Any]:
    return {"image_id": image, "category_id": kind, "bbox": list(bbox), "score": sure}


def written(folder: Path, edge: Any, full: Any, images: Any) -> tuple[Path, Path, Path]:
    listed = {"images": [{"id": image} for image in images]} if isinstance(images, list) else images
    for name, content in (("edge", edge), ("full", full), ("images", listed)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / "edge.json", folder / "full.json", folder / "images.json"


def rows(files: tuple[Path, Path, Path], *, mean: bool = False) -> dict[int | str, tuple[float, int]]:
    found = compare(*files, overlap=0.5, least=0.5, mean=mean)
    return {row.image_id: (round(row.score, 6), row.agree) for row in found}


def test_every_listed_image_is_a_row(tmp_path: Path) -> None:
    edge = [
        *(box(1, 0, 0, 10, 10, sure=0.8), box(1, 50, 50, 10, 10, sure=0.6)),
        box(2, 0, 0, 10, 10, sure=0.7),
        box(3, 0, 0, 10, 10, kind=2),
        box("b", 0, 0, 10, 10, sure=0.3),
        box(5, 0, 0, 10, 10),
    ]
    full = [
        *(box(1, 50, 51, 10, 10), box(1, 1, 0, 10, 10)),
        box(2, 8, 0, 10, 10),  # elsewhere
        box(3, 0, 0, 10, 10),  # of another class
        box("b", 0, 0, 10, 10, sure=0.4),  # counts in neither
    ]
    files = written(tmp_path, edge, full, [1, 2, 3, "b", 5, 6])
    expected = {1: (0.6, 1), 2: (0.7, 0), 3: (0.9, 0), "b": (0.7, 1), 5: (0.9, 0), 6: (1.0, 1)}
    assert rows(files) == expected
    assert rows(files, mean=True) == expected | {1: (0.7, 1)}


def test_detection_table_can_be_certified(tmp_path: Path) -> None:
    """Made-up detectors: the edge's unsure boxes are misplaced, and where the threshold lies follows from that."""
    random = np.random.default_rng(4)
    sure = np.round(random.uniform(0.5, 1, 2000), 3)
    wrong = (sure < 0.7) & (random.random(2000) < 0.5)
    edge = [box(at, 20.0 * wrong[at], 0, 10, 10, sure=sure[at]) for at in range(2000)]
    full = [box(at, 0, 0, 10, 10) for at in range(2000)]
    files = [str(file) for file in written(tmp_path, edge, full, list(range(2000)))]
    table = CliRunner().invoke(app, ["detections", *files[:2], "--images", files[2]])
    assert table.exit_code == 0, table.output
    assert table.stdout.splitlines()[:2] == ["score,agree", f"{sure[0]:.9g},{int(not wrong[0])}"]
    arguments = ["certify", "--scores", "-", "--epsilon", "0.05", "--delta", "0.05", "-o", "json"]
    found = json.loads(CliRunner().invoke(app, arguments, input=table.stdout).stdout)
    assert found["certified"]
    assert 0.62 < found["threshold"] < 0.7
    assert wrong[sure >= found["threshold"]].mean() <= 0.05


GOOD = [box(1, 0, 0, 1, 1)]


@pytest.mark.parametrize(
    ("edge", "full", "images", "says"),
    [
        (GOOD, [box(2, 0, 0, 1, 1)], [1], "full.json has boxes of the image 2, which .*images.json does not name"),
        (GOOD, GOOD, [1, 1], "names an image more than once"),
        (GOOD, GOOD, [], "images.json is not in COCO's form"),
        ({}, GOOD, [1], "edge.json is not in COCO's form"),
        ([box(1, 0, 0, -1, 1)], GOOD, [1], r"edge.json is not in COCO's form.*bbox"),
        ([box(1, 1e300, 0, 1, 1)], GOOD, [1], r"edge.json is not in COCO's form.*bbox"),
        ([box(1, 0, 0, 1, 1, kind=2**70)], GOOD, [1], r"edge.json is not in COCO's form.*category_id"),
        ([box(1, 0, 0, 1, 1, sure=1.5)], GOOD, [1], "edge.json is not in COCO's form.*score"),
        (GOOD * 1001, GOOD, [1], "edge.json has 1001 boxes .* at most 1000 are compared"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, edge: Any, full: Any, images: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        rows(written(tmp_path, edge, full, images))


def test_deep_files_and_invalid_shares_are_refused(tmp_path: Path) -> None:
    edge, full, images = written(tmp_path, GOOD, GOOD, [1])
    edge.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="not in COCO's form"):
        rows((edge, full, images))
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        rows((tmp_path / "absent.json", full, images))
    with pytest.raises(ConfigError, match="overlap is 0"):
        list(compare(full, full, images, overlap=0, least=0.5, mean=False))
