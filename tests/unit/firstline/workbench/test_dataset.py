from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from firstline.workbench import dataset
from firstline.workbench.dataset import open_dataset
from firstline_core.errors import ConfigError


def _folder(tmp_path: Path, labels: str, images: dict[str, bytes]) -> Path:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "labels.csv").write_text(labels, encoding="utf-8")
    for name, content in images.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(content)
    return tmp_path


def test_folder_of_images_is_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path, 'file,wnid,label,name\na.png,n1,0,"cat, tabby"\nb/c.png,n2,1,dog\n',
                     {"a.png": b"first", "b/c.png": b"second"})  # fmt: skip
    found = open_dataset(folder)
    assert list(found.read()) == [(b"first", 0), (b"second", 1)]
    assert found.samples[0].name == "cat, tabby"


@pytest.mark.parametrize("header", ["file, label , name", "\ufefffile,label,name", ' "file", "label","name"'])
def test_header_of_a_spreadsheet_is_read(tmp_path: Path, header: str) -> None:
    folder = _folder(tmp_path, f"{header}\na.png, 3, dog\n", {"a.png": b"first"})
    assert list(open_dataset(folder).read()) == [(b"first", 3)]
    assert open_dataset(folder).samples[0].name == "dog"


def test_digest_covers_images_and_labels(tmp_path: Path) -> None:
    images = {"a.png": b"first", "b.png": b"second"}
    first = open_dataset(_folder(tmp_path / "first", "file,label\na.png,0\nb.png,1\n", images)).digest()
    renamed = {"x.png": b"first", "y.png": b"second"}
    named = "file,label,name\nx.png,0,cat\ny.png,1,dog\n"
    assert open_dataset(_folder(tmp_path / "renamed", named, renamed)).digest() == first
    others = {
        "order": ("file,label\nb.png,1\na.png,0\n", images),
        "label": ("file,label\na.png,1\nb.png,1\n", images),
        "image": ("file,label\na.png,0\nb.png,1\n", images | {"b.png": b"another"}),
        "fewer": ("file,label\na.png,0\n", images),
    }
    found = {open_dataset(_folder(tmp_path / name, *other)).digest() for name, other in others.items()}
    assert len(found - {first}) == 4


def test_archive_of_images_is_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\nx/1.png,3\n", {})
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        archive.writestr("x/1.png", b"zipped")
        archive.writestr("never named", b"0" * 1000)
    assert list(open_dataset(folder).read()) == [(b"zipped", 3)]


def test_limited_samples_are_spread_evenly(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\n" + "".join(f"{n}.png,{n}\n" for n in range(10)), {})
    assert [sample.label for sample in open_dataset(folder, limit=5).samples] == [0, 2, 4, 6, 8]
    assert len(open_dataset(folder, limit=99)) == 10


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("file,class\na.png,0\n", "no column label"),
        ("file,label\n", "names no images"),
        ("file,label\na.png,cat\n", "labels.csv:2 has label 'cat'"),
        ("file,label\na.png,0\nb.png\n", "labels.csv:3 has label ''"),
        ("file,label\na.png,-1\n", "label '-1'"),
        ("file,label\n../../etc/passwd,0\n", "labels.csv:2 names the file '../../etc/passwd'"),
        ("file,label\n/etc/passwd,0\n", "paths are relative"),
        ("file,label\n,0\n", "names the file ''"),
    ],
)
def test_invalid_line_is_named(tmp_path: Path, labels: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_dataset(_folder(tmp_path, labels, {}))
    assert message in caught.value.message


def test_missing_labels_csv_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"labels\.csv \(columns file, label\) and images/ or images\.zip"):
        open_dataset(tmp_path)


def test_missing_images_are_reported(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\na.png,0\n", {})
    with pytest.raises(ConfigError, match=r"neither images/ nor images\.zip"):
        list(open_dataset(folder).read())
    (folder / "images.zip").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="cannot be read as a zip archive"):
        list(open_dataset(folder).read())


def test_missing_image_is_named_with_its_line(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\na.png,0\nb.png,1\n", {"a.png": b"1"})
    with pytest.raises(ConfigError, match=r"labels\.csv:3 names 'b\.png', which is not in"):
        list(open_dataset(folder).read())
    (folder / "images" / "b.png").mkdir()
    with pytest.raises(ConfigError, match=r"labels\.csv:3 names 'b\.png'"):
        list(open_dataset(folder).read())


def test_zip_bomb_is_refused_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "FILE_LIMIT_BYTES", 1000)
    folder = _folder(tmp_path, "file,label\na.png,0\n", {})
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"0" * 1001)
    with pytest.raises(ConfigError, match="has 1001 bytes; at most 1000"):
        list(open_dataset(folder).read())


def test_damaged_member_is_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\na.png,0\n", {})
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        archive.writestr("a.png", b"unmistakable")
    content = (folder / "images.zip").read_bytes()
    (folder / "images.zip").write_bytes(content.replace(b"unmistakable", b"unmistakeble"))
    with pytest.raises(ConfigError, match=r"'a\.png', which cannot be read .*CRC"):
        list(open_dataset(folder).read())


def test_labels_are_compared_with_those_of_the_bundle(tmp_path: Path) -> None:
    found = open_dataset(_folder(tmp_path, "file,label,name\na.png,1,dog\n", {}))
    found.check_labels(("cat", "dog"))
    found.check_labels(("a cat", "a dog"))  # other words prove nothing
    with pytest.raises(ConfigError, match=r"labels\.csv:2 calls 'dog' label 1, but in the bundle it is label 2"):
        found.check_labels(("background", "cat", "dog"))
    with pytest.raises(ConfigError, match=r"labels\.csv:2 has label 1, but the bundle's 1 labels are 0 to 0"):
        found.check_labels(("cat",))


def test_labels_are_optional_if_not_needed(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file\nb/c.png\n", {"a.png": b"first", "b/c.png": b"second", ".hidden": b""})
    assert list(open_dataset(folder, labelled=False).read()) == [(b"second", dataset.UNLABELLED)]
    with pytest.raises(ConfigError, match="no column label"):
        open_dataset(folder)
    (folder / "labels.csv").unlink()
    assert list(open_dataset(folder, labelled=False).read()) == [(b"first", -1), (b"second", -1)]
    with pytest.raises(ConfigError, match="a data folder has"):
        open_dataset(folder)
    (folder / "labels.csv").write_text("file,label\na.png,cat\n")
    with pytest.raises(ConfigError, match="has label 'cat'"):
        open_dataset(folder, labelled=False)


def test_archive_without_labels_is_read_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.mkdir("x")
        archive.writestr("x/2.png", b"two")
        archive.writestr("1.png", b"one")
    assert list(open_dataset(tmp_path, labelled=False).read()) == [(b"one", -1), (b"two", -1)]
    (tmp_path / "empty" / "images").mkdir(parents=True)
    for folder, says in ((tmp_path / "empty", "holds no images"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(ConfigError, match=says):
            open_dataset(folder, labelled=False)
