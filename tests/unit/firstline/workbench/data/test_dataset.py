import zipfile
from pathlib import Path

import pytest

from firstline.workbench.data import files
from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.embedding import Embedding
from firstline_core.tasks.text import Text

IMAGE = (InputSpec("image", "BYTES", (-1,), "image"),)
TEN = Classification(tuple(f"class {number}" for number in range(10)))


def _read(found: Dataset) -> list[tuple[bytes, int]]:
    """Returns the encoded images with their labels."""
    labels = found.required_truth(TEN)[LABEL].tolist()
    images = [row["image"][0] for _, row in found.rows(IMAGE)]
    assert images == list(found.contents())
    return list(zip(images, labels, strict=True))


def _digest(found: Dataset) -> str:
    return found.digest(IMAGE, found.truth(TEN))


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
    assert _read(found) == [(b"first", 0), (b"second", 1)]
    pets = Classification(("cat, tabby", "dog"))
    assert found.required_truth(pets)[LABEL].tolist() == [0, 1]


@pytest.mark.parametrize("header", ["file, label , name", "\ufefffile,label,name", ' "file", "label","name"'])
def test_header_of_a_spreadsheet_is_read(tmp_path: Path, header: str) -> None:
    folder = _folder(tmp_path, f"{header}\na.png, 3, dog\n", {"a.png": b"first"})
    assert _read(open_dataset(folder)) == [(b"first", 3)]
    with pytest.raises(ConfigError, match="calls 'dog' label 3, but in the bundle it is label 1"):
        open_dataset(folder).truth(Classification(("cat", "dog", "bird", "fish")))


def test_digest_covers_images_and_labels(tmp_path: Path) -> None:
    images = {"a.png": b"first", "b.png": b"second"}
    first = _digest(open_dataset(_folder(tmp_path / "first", "file,label\na.png,0\nb.png,1\n", images)))
    renamed = {"x.png": b"first", "y.png": b"second"}
    named = "file,label,name\nx.png,0,cat\ny.png,1,dog\n"
    assert _digest(open_dataset(_folder(tmp_path / "renamed", named, renamed))) == first
    others = {
        "order": ("file,label\nb.png,1\na.png,0\n", images),
        "label": ("file,label\na.png,1\nb.png,1\n", images),
        "image": ("file,label\na.png,0\nb.png,1\n", images | {"b.png": b"another"}),
        "fewer": ("file,label\na.png,0\n", images),
    }
    found = {_digest(open_dataset(_folder(tmp_path / name, *other))) for name, other in others.items()}
    assert len(found - {first}) == 4


def test_digest_covers_labels_of_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,text\n1,go\n2,no\n")
    found, inputs = open_dataset(tmp_path / "rows.csv"), (InputSpec("x", "FP32", (-1, 1)),)
    digest = found.digest(inputs, found.required_truth(Text()))
    (tmp_path / "rows.csv").write_text("x,text\n1,go\n2,on\n")
    changed = open_dataset(tmp_path / "rows.csv")
    assert changed.digest(inputs) == found.digest(inputs)
    assert changed.digest(inputs, changed.required_truth(Text())) != digest


def test_archive_of_images_is_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\nx/1.png,3\n", {})
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        archive.writestr("x/1.png", b"zipped")
        archive.writestr("never named", b"0" * 1000)
    assert _read(open_dataset(folder)) == [(b"zipped", 3)]


def test_limited_samples_are_spread_evenly(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\n" + "".join(f"{n}.png,{n}\n" for n in range(10)), {})
    assert open_dataset(folder, limit=5).required_truth(TEN)[LABEL].tolist() == [0, 2, 4, 6, 8]
    assert len(open_dataset(folder, limit=99)) == 10


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("file,class\na.png,0\n", "no column label"),
        ("file,label\n", "has no images"),
        ("file,label\na.png,-2\n", "label '-2'"),
        (f"file,label\na.png,{'1' * 5000}\n", "use a label of the bundle"),
        ("file,label\n/etc/passwd,0\n", "which is outside of the data"),
        ("file,label\n,0\n", "names ''"),
    ],
)
def test_invalid_line_is_named(tmp_path: Path, labels: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_dataset(_folder(tmp_path, labels, {"a.png": b""})).required_truth(TEN)
    assert message in caught.value.message


def test_missing_images_are_reported(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\na.png,0\n", {})
    with pytest.raises(ConfigError, match=r"neither images/ nor images\.zip"):
        list(open_dataset(folder).contents())
    (folder / "images.zip").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="cannot be read as a zip archive"):
        list(open_dataset(folder).contents())


def test_folder_instead_of_an_image_is_named_with_its_line(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\na.png,0\nb.png,1\n", {"a.png": b"1"})
    (folder / "images" / "b.png").mkdir()
    with pytest.raises(ConfigError, match=r"labels\.csv:3 names 'b\.png'"):
        list(open_dataset(folder).contents())


def test_zip_bomb_is_refused_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_LIMIT_BYTES", 1000)
    folder = _folder(tmp_path, "file,label\na.png,0\n", {})
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"0" * 1001)
    with pytest.raises(ConfigError, match="has 1001 bytes; at most 1000"):
        list(open_dataset(folder).contents())


def test_damaged_member_is_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\na.png,0\n", {})
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        archive.writestr("a.png", b"unmistakable")
    content = (folder / "images.zip").read_bytes()
    (folder / "images.zip").write_bytes(content.replace(b"unmistakable", b"unmistakeble"))
    with pytest.raises(ConfigError, match=r"'a\.png', which cannot be read .*CRC"):
        list(open_dataset(folder).contents())


def test_damaged_lzma_is_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label\na.png,0\n", {})
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.png", bytes(1000))
    content = bytearray((folder / "images.zip").read_bytes())
    content[39:44] = b"\xff" * 5  # the filter's properties, after a local header of 35 bytes and their own of 4
    (folder / "images.zip").write_bytes(content)
    with pytest.raises(ConfigError, match=r"'a\.png', which cannot be read"):
        list(open_dataset(folder).contents())


def test_labels_are_compared_with_those_of_the_bundle(tmp_path: Path) -> None:
    found = open_dataset(_folder(tmp_path, "file,label,name\na.png,1,dog\n", {}))
    found.truth(Classification(("cat", "dog")))
    found.truth(Classification(("a cat", "a dog")))  # other words prove nothing
    with pytest.raises(ConfigError, match=r"labels\.csv:2 calls 'dog' label 1, but in the bundle it is label 2"):
        found.truth(Classification(("background", "cat", "dog")))


@pytest.mark.parametrize(
    "rows", ["file,label\na.png,dog\nb.png,cat\nc.png,-1\n", "file,label,name\na.png,1,dog\nb.png,0,cat\nc.png,-1,?\n"]
)
def test_labels_may_be_names_or_absent(tmp_path: Path, rows: str) -> None:
    found = open_dataset(_folder(tmp_path, rows, {})).required_truth(Classification(("cat", "dog")))
    assert found[LABEL].tolist() == [1, 0, -1]


def test_number_that_is_the_name_of_another_label_is_refused(tmp_path: Path) -> None:
    stars = Classification(("1", "2", "3"))
    found = open_dataset(_folder(tmp_path, "file,label\na.png,0\nb.png,1\n", {}))
    with pytest.raises(ConfigError, match=r"labels\.csv:3 has label '1', which is the name of label 0 and the number"):
        found.truth(stars)
    assert found.required_truth(Classification(("0", "1", "2")))[LABEL].tolist() == [0, 1]
    (tmp_path / "labels.csv").write_text("file,label,name\na.png,0,1\nb.png,1,2\n")
    assert open_dataset(tmp_path).required_truth(stars)[LABEL].tolist() == [0, 1]
    with pytest.raises(ConfigError, match="the number of another; rename the bundle's label"):  # reads no column 'name'
        open_dataset(tmp_path).truth(Classification(("1", "2", "3"), independent=True))


@pytest.mark.parametrize(("column", "independent"), [("label", False), ("name", False), ("label", True)])
def test_name_of_several_labels_is_refused(tmp_path: Path, column: str, independent: bool) -> None:
    birds = Classification(("crane", "crane", "heron"), independent=independent)
    found = open_dataset(_folder(tmp_path, f"file,{column}\na.png,heron\nb.png,crane\n", {}))
    with pytest.raises(ConfigError, match=r"labels\.csv:3 names the class 'crane', and 2 labels have this name"):
        found.truth(birds)


def test_rows_of_a_gallery_share_labels(tmp_path: Path) -> None:
    shapes = Embedding(size=4, labels=("rising", "hump", "hump"))
    found = open_dataset(_folder(tmp_path, "file,label\na.png,hump\nb.png,rising\nc.png,1\nd.png,\n", {}))
    labels = found.required_truth(shapes)[LABEL].tolist()
    assert [shapes.labels[label] if label >= 0 else "" for label in labels] == ["hump", "rising", "hump", ""]
    (tmp_path / "shapes/hump").mkdir(parents=True)
    (tmp_path / "shapes/hump/1.png").write_bytes(b"")
    labels = open_dataset(tmp_path / "shapes").required_truth(shapes)[LABEL].tolist()
    assert [shapes.labels[label] for label in labels] == ["hump"]


def test_labels_without_a_gallery_are_those_of_the_data(tmp_path: Path) -> None:
    found = open_dataset(
        _folder(tmp_path, "file,label\na.png,ann\nb.png,bob\nc.png,-1\nd.png,ann\ne.png,\nf.png,-1.0\n", {})
    )
    assert found.required_truth(Embedding(size=4, tolerance=0.1))[LABEL].tolist() == [0, 1, -1, 0, -1, -1]


def test_column_of_names_alone_labels_the_data(tmp_path: Path) -> None:
    found = open_dataset(_folder(tmp_path, "file,name\na.png,dog\nb.png,cat\n", {}))
    assert found.required_truth(Classification(("cat", "dog")))[LABEL].tolist() == [1, 0]
    with pytest.raises(ConfigError, match=r"labels\.csv:2 names the class 'dog', which is not one of"):
        found.truth(Classification(("cat", "bird")))


def test_folders_named_by_labels_label_their_files(tmp_path: Path) -> None:
    pets = Classification(("cat", "dog", "dog house"))
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        archive.writestr("pets/dog house/1.png", b"")
        archive.writestr("pets/cat/1.png", b"")
    assert open_dataset(tmp_path / "pets.zip").required_truth(pets)[LABEL].tolist() == [0, 2]
    for name in ("dog/1.png", "cat/2.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True)
        (tmp_path / "images" / name).write_bytes(b"")
    assert open_dataset(tmp_path).required_truth(pets)[LABEL].tolist() == [0, 1]
    assert open_dataset(tmp_path).truth(Classification(("cat", "dog", "dog"))) is None
    (tmp_path / "images" / "3.png").write_bytes(b"")
    assert open_dataset(tmp_path).truth(pets) is None


def test_labels_are_optional(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file\nb/c.png\n", {"a.png": b"first", "b/c.png": b"second", ".hidden": b""})
    assert list(open_dataset(folder).contents()) == [b"second"]
    assert open_dataset(folder).truth(TEN) is None
    with pytest.raises(ConfigError, match="no column label"):
        open_dataset(folder).required_truth(TEN)
    (folder / "labels.csv").unlink()
    assert list(open_dataset(folder).contents()) == [b"first", b"second"]
    with pytest.raises(ConfigError, match="name a folder with"):
        open_dataset(folder).required_truth(TEN)


def test_archive_without_labels_is_read_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.mkdir("x")
        archive.writestr("x/2.png", b"two")
        archive.writestr("1.png", b"one")
    for place in (tmp_path, tmp_path / "images.zip"):
        assert list(open_dataset(place).contents()) == [b"one", b"two"]
    (tmp_path / "empty" / "images").mkdir(parents=True)
    for folder, message in ((tmp_path / "empty", "holds no images"), (tmp_path / "none", "none does not exist")):
        with pytest.raises(ConfigError, match=message):
            open_dataset(folder)


def test_archive_does_not_lead_out_of_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("../../etc/passwd", b"")
    with pytest.raises(ConfigError, match=r"holds the file '\.\./\.\./etc/passwd', which leads out of it"):
        open_dataset(tmp_path)


def test_folder_of_files_of_one_kind_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not data")
    for name in ("b.JPG", "a/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    found = open_dataset(tmp_path)
    assert [sample.file for sample in found.samples] == ["a/1.png", "b.JPG"]
    assert list(found.contents()) == [b"a/1.png", b"b.JPG"]
    assert list(open_dataset(tmp_path / "b.JPG").contents()) == [b"b.JPG"]
    (tmp_path / "c.wav").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds images and recordings; give a folder of one kind"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("archived", [False, True])
def test_recordings_are_read_like_images(tmp_path: Path, archived: bool) -> None:
    (tmp_path / "labels.csv").write_text("file,label,group\n7_jackson_0.wav,7,jackson\n")
    if archived:
        with zipfile.ZipFile(tmp_path / "audio.zip", "w") as archive:
            archive.writestr("7_jackson_0.wav", b"RIFF")
    else:
        (tmp_path / "audio").mkdir()
        (tmp_path / "audio" / "7_jackson_0.wav").write_bytes(b"RIFF")
    found = open_dataset(tmp_path)
    assert list(found.contents()) == [b"RIFF"]
    assert found.clusters == ("jackson",)
    assert found.required_truth(TEN)[LABEL].tolist() == [7]


def test_columns_accompany_files(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "file,label,age\na.png,1,7\n", {"a.png": b"first"})
    inputs = (*IMAGE, InputSpec("age", "FP32", (-1, 1)))
    ((_, row),) = open_dataset(folder).rows(inputs)
    assert row["image"][0] == b"first"
    assert row["age"].tolist() == [[7.0]]


def test_sets_of_independent_labels_are_read(tmp_path: Path) -> None:
    text = "file,label\na.png,dog; cat\nb.png,\nc.png,2\n"
    folder = _folder(tmp_path, text, dict.fromkeys(("a.png", "b.png", "c.png"), b"x"))
    task = Classification(("cat", "bird", "dog"), independent=True)
    found = open_dataset(folder).required_truth(task)[LABEL]
    assert found.tolist() == [[True, False, True], [False] * 3, [False, False, True]]
    with pytest.raises(ConfigError, match=r"labels\.csv:2 has label 'dog'"):
        open_dataset(folder).required_truth(Classification(("cat", "bird"), independent=True))


def test_times_and_groups_order_anomalies(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x,label,time,group\n1,normal,2026-01-01T00:00:10,b\n2,anomaly,2026-01-01T00:00:20+00:00,a\n")
    found = open_dataset(table).required_truth(Anomaly())
    assert found["label"].tolist() == [0, 1] and found["sequence"].tolist() == [1, 0]
    assert found["time"][1] - found["time"][0] == 10
    table.write_text("x,label,time\n1,0,noon\n")
    with pytest.raises(ConfigError, match=r"table\.csv:2 has the time 'noon'"):
        open_dataset(table).required_truth(Anomaly())
    table.write_text("x,label\n1,0\n")
    assert set(open_dataset(table).required_truth(Anomaly())) == {"label"}
