import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear
from firstline_core.bundle.store import find_bundles, open_bundle
from firstline_core.errors import IntegrityError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "bundle"
    edge = linear(root / "models" / "edge.onnx", np.ones((2, 2), np.float32))
    full = linear(root / "full.onnx", np.ones((2, 2), np.float32) * 2)
    write_manifest(root, [model(edge, root)], ["a", "b"], full=model(full, root))
    return root


def test_a_bundle_that_matches_its_manifest_opens(root: Path) -> None:
    bundle = open_bundle(root)
    assert bundle.manifest.name == "small"
    assert all(bundle.has(found) for found in bundle.manifest.models)


def test_an_unneeded_artefact_may_be_absent(root: Path) -> None:
    (root / "full.onnx").unlink()
    bundle = open_bundle(root)
    assert bundle.manifest.full is not None
    assert not bundle.has(bundle.manifest.full)
    assert bundle.missing(bundle.manifest.full) == ("full.onnx",)
    assert bundle.has(bundle.manifest.edge[0])


def test_a_flipped_bit_and_a_truncation_are_detected(root: Path) -> None:
    file = root / "full.onnx"
    content = file.read_bytes()
    file.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    with pytest.raises(IntegrityError, match=r"full\.onnx has sha256 .* but the manifest says"):
        open_bundle(root)
    file.write_bytes(content[:-1])
    with pytest.raises(IntegrityError, match=r"full\.onnx has \d+ bytes, but the manifest says \d+"):
        open_bundle(root)


@pytest.mark.parametrize("name", ["full.onnx", "models", "manifest.json"])
def test_a_link_out_of_the_bundle_is_refused(root: Path, name: str) -> None:
    (root / name).rename(root.parent / name)
    (root / name).symlink_to(root.parent / name)
    with pytest.raises(IntegrityError, match="outside the bundle"):
        open_bundle(root)


def test_links_within_and_to_the_bundle_are_allowed(root: Path) -> None:
    (root / "full.onnx").rename(root / "other.onnx")
    (root / "full.onnx").symlink_to("other.onnx")
    (root.parent / "current").symlink_to(root)
    assert open_bundle(root.parent / "current").manifest.name == "small"


def test_a_loop_of_links_is_refused(root: Path) -> None:
    (root / "full.onnx").unlink()
    (root / "full.onnx").symlink_to("full.onnx")
    with pytest.raises(IntegrityError, match=r"full\.onnx"):
        open_bundle(root)


def test_a_folder_in_place_of_a_file_is_refused(root: Path) -> None:
    (root / "full.onnx").unlink()
    os.mkfifo(root / "full.onnx")
    with pytest.raises(IntegrityError, match="is not a file"):
        open_bundle(root)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"cannot be read: there is no such file or folder; is .* a bundle"):
        open_bundle(tmp_path)
    with pytest.raises(IntegrityError, match="cannot be read"):
        open_bundle(tmp_path / "nowhere")


def test_bundles_are_found_in_subfolders_and_theirs(root: Path) -> None:
    folder = root.parent
    for name in ("other/2", "other/10", ".bundle.4f1c", "other/.10.77aa", "lost+found"):
        shutil.copytree(root, folder / name)
    (folder / "empty").mkdir()
    assert find_bundles(root) == [root]
    assert find_bundles(folder) == [root, folder / "other" / "10", folder / "other" / "2"]


def test_a_folder_of_bundles_that_is_missing_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_bundles(tmp_path / "missing")
