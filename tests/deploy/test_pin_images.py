"""Images are pinned by the digest of their tag: all of them, or none."""

import shutil
import subprocess
from pathlib import Path

import pytest

from requirements import pin_images

CHECKOUT = Path(__file__).parents[2]
OLD, NEW = ("sha256:" + digit * 64 for digit in "12")


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    """The checkout's own files, without digests."""
    found = []
    for name in pin_images.FILES:
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, copy)
        found.append(copy)
    return found


def test_every_image_is_pinned_and_later_updated(copies: list[Path]) -> None:
    images = pin_images.pin(copies, lambda _: OLD)
    assert {"eclipse-mosquitto:2.0", "python:3.11-slim"} <= set(images)
    assert pin_images.pin(copies, lambda _: NEW) == dict.fromkeys(images, NEW)
    for copy in copies:
        lines = [line.strip() for line in copy.read_text().splitlines() if line.strip().startswith(("FROM", "image:"))]
        assert lines
        assert all(line.removesuffix(" AS build").endswith(f"@{NEW}") for line in lines)


def test_a_missing_digest_changes_no_file(copies: list[Path]) -> None:
    def digest_of(image: str) -> str:
        if image.startswith("python"):
            raise SystemExit("no network")
        return NEW

    with pytest.raises(SystemExit, match="no network"):
        pin_images.pin(copies, digest_of)
    assert not [copy for copy in copies if "@sha256" in copy.read_text()]


def test_every_dockerfile_is_pinned() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*Dockerfile"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert set(pin_images.FILES) == {"docker-compose.yml", *listed.stdout.split()}
