"""Golden answers of a bundle that is made: of images and of tensors, and never more than a device reads."""

import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.sample_models import linear_model

from firstline.workbench.bundle import create_bundle
from firstline.workbench.golden import _listed, read_inputs
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline_core.bundle.golden import LIMIT_BYTES, ROWS_LIMIT, deviation, inputs_of, read_golden
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification

SPEC = InputSpec("image", "FP32", (-1, 5))
IMAGES = InputSpec("image", "BYTES", (-1,), "image")


def taking(*inputs: InputSpec) -> Manifest:
    model = Model(
        "edge",
        Artefact("edge.onnx", "a" * 64, 1),
        "onnx",
        "fp32",
        tuple(ModelInput(each.name, each.name) for each in inputs),
    )
    return Manifest("m", 1, Classification(("no", "yes")), inputs, (model,))


@pytest.fixture
def spec(tmp_path: Path) -> BundleSpec:
    file = linear_model(tmp_path / "edge.onnx", pixels=5, classes=2, softmax=True)
    return BundleSpec(
        name="vector", version=1, labels=("no", "yes"), edge=(ModelSpec(file),), policy=PolicySpec(threshold=1.0)
    )


def rows_at(path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Path:
    np.savez(path, image=array)
    return path


def test_golden_rows_are_read_from_tables(spec: BundleSpec, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    files = [rows_at(tmp_path / "a.npz", rows[:2]), rows_at(tmp_path / "b.npz", np.asfortranarray(rows[2:]))]
    bundle = create_bundle(spec, tmp_path / "bundle", golden=files)
    answers = read_golden(bundle, bundle.manifest.golden.artefact)
    assert next(iter(inputs_of(answers, bundle.manifest).values())).tolist() == rows.tolist()
    loaded = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    outputs = loaded.predict(inputs_of(answers, bundle.manifest)).outputs
    found = deviation(answers, "edge", outputs, bundle.manifest.task)
    assert found is not None and found < 1e-6
    turned = {name: array[::-1] for name, array in outputs.items()}
    other = deviation(answers, "edge", turned, bundle.manifest.task)
    assert other is not None and other > bundle.manifest.golden.tolerance
    loaded.close()


def test_only_fractions_are_rounded() -> None:
    assert _listed(np.array([[1 / 3, np.nan]], np.float32))[0][0] == 0.333333
    assert _listed(np.array([2**62 + 1])) == [2**62 + 1]
    assert _listed(np.array([b"text"], object)) == [b"text"]


@pytest.mark.parametrize(
    ("array", "fault"),
    [
        (np.zeros((1, 4), np.float32), r"has shape \[4\], and the model takes \[5\] in each row"),
        (np.full((1, 5), 1e300), "does not fit into FP32"),
        (np.zeros((0, 5), np.float32), "no rows"),
        (np.array([[{"a": 1}]], object), "holds Python objects"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], fault: str, spec: BundleSpec, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=fault):
        create_bundle(spec, tmp_path / "bundle", golden=[rows_at(tmp_path / "rows.npz", array)])
    assert not (tmp_path / "bundle").exists()


def test_too_many_rows_of_several_files_are_refused(tmp_path: Path) -> None:
    file = rows_at(tmp_path / "rows.npz", np.zeros((2 * ROWS_LIMIT, 5), np.float32))
    (rows,) = read_inputs([file], taking(SPEC)).inputs.values()
    assert len(rows.rows) == ROWS_LIMIT
    with pytest.raises(ConfigError, match=f"There are {2 * ROWS_LIMIT} golden inputs"):
        read_inputs([file, file], taking(SPEC))


def test_inputs_of_the_full_model_alone_may_be_absent(tmp_path: Path) -> None:
    """A table need not have columns that only the full model reads."""
    both = (InputSpec("a", "FP32", (-1, 1)), InputSpec("b", "FP32", (-1, 1)))
    full = msgspec.structs.replace(taking(*both).edge[0], id="full")
    manifest = msgspec.structs.replace(taking(both[0]), inputs=both, full=full)
    for columns, names in (("a\n1\n", {"a"}), ("a,b\n1,2\n", {"a", "b"})):
        (tmp_path / "rows.csv").write_text(columns)
        assert read_inputs([tmp_path / "rows.csv"], manifest).inputs.keys() == names


def test_too_large_golden_image_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    with file.open("wb") as stream:
        stream.truncate(LIMIT_BYTES + 1)
    spec = taking(IMAGES)
    with pytest.raises(ConfigError, match="golden inputs have more than"):
        read_inputs([file], spec)
    file.write_bytes(b"x" * (LIMIT_BYTES // 2))
    (rows,) = read_inputs([file], spec).inputs.values()
    assert len(rows.rows) == 1


def test_golden_images_come_from_folders_or_archives(tmp_path: Path) -> None:
    spec = taking(IMAGES)
    images = tmp_path / "data" / "images"
    (images / "deep").mkdir(parents=True)
    (images / ".hidden").write_bytes(b"no image")
    for number in range(2 * ROWS_LIMIT - 1):
        (images / f"{number:03}.png").write_bytes(b"%03d" % number)
    (images / "deep" / "last.png").write_bytes(b"last")
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w") as written:
        for file in images.rglob("*.png"):
            written.write(file, file.relative_to(images).as_posix())
    found = read_inputs([images], spec).inputs
    assert len(found["image"].rows) == ROWS_LIMIT and found["image"].rows[:3] == (b"000", b"002", b"004")
    assert read_inputs([archive], spec).inputs == found == read_inputs([images.parent], spec).inputs
    with pytest.raises(ConfigError, match=f"There are {ROWS_LIMIT + 1} golden inputs"):
        read_inputs([images, images / "000.png"], spec)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no images"):
        read_inputs([tmp_path / "empty"], spec)


def test_too_large_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for name in "ab":
            written.writestr(name, bytes(LIMIT_BYTES // 2 + 1))
    with pytest.raises(ConfigError, match="golden inputs have more than"):
        read_inputs([archive], taking(IMAGES))


def test_too_large_golden_answers_are_refused(tmp_path: Path) -> None:
    """Rows that are small enough by themselves, and too much in the form of the file."""
    file = linear_model(tmp_path / "edge.onnx", pixels=400_000, classes=2, softmax=True)
    spec = BundleSpec(
        name="vector", version=1, labels=("no", "yes"), edge=(ModelSpec(file),), policy=PolicySpec(threshold=1.0)
    )
    rows = rows_at(tmp_path / "rows.npz", np.zeros((5, 400_000), np.float32))
    with pytest.raises(ConfigError, match="golden answers take"):
        create_bundle(spec, tmp_path / "bundle", golden=[rows])
