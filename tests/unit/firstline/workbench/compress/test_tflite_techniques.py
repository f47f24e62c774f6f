"""TFLite models in other number formats, made and run."""

from pathlib import Path

import numpy as np
import pytest
from support.cli import json_of

from firstline.workbench.compress import tflite_techniques
from firstline.workbench.precision import precision_of
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.runtime.litert import LiteRtRuntime
from firstline_core.types import Array

_DIGITS = Path(__file__).parents[5] / "models/digits"


def _said(path: Path, rows: Array) -> Array:
    runtime = LiteRtRuntime(path, threads=1)
    found = runtime.run({runtime.inputs[0].name: rows})[runtime.outputs[0].name]
    runtime.close()
    return found


def _made(source: Path, rows: Array, folder: Path) -> dict[str, Path]:
    ready = folder / "ready.tflite"
    tflite_techniques.prepared(source, ready)
    files = {name: folder / f"{name}.tflite" for name in tflite_techniques.TECHNIQUES}
    for name, make in tflite_techniques.TECHNIQUES.items():
        make(ready, rows, files[name])
        assert precision_of(files[name], "tflite") == "int8"
        assert files[name].stat().st_size < source.stat().st_size
    return files


def test_every_format_gives_nearly_the_same_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = _DIGITS / "bundle/edge-tflite-float.tflite"
    rows = np.random.default_rng(0).uniform(0, 1, (40, 8, 8, 1)).astype(np.float32)
    expected = _said(source, rows)
    for name, file in _made(source, rows, tmp_path).items():
        assert np.abs(_said(file, rows) - expected).mean() < 0.05 * np.abs(expected).mean(), name
    assert "Calibration" not in capfd.readouterr().err  # the quantiser's own bar


def test_rare_rows_count_for_calibration(tmp_path: Path) -> None:
    source = _DIGITS / "bundle/edge-tflite-float.tflite"
    rows = np.random.default_rng(0).uniform(0, 0.2, (60, 8, 8, 1)).astype(np.float32)
    rows[10] *= 5  # by a moving average of ranges it would be forgotten, and clipped
    quantised = _made(source, rows, tmp_path)["static-int8"]
    assert np.abs(_said(quantised, rows[10:11]) - _said(source, rows[10:11])).max() < 0.4


@pytest.mark.shared_data
def test_a_model_without_signatures_gets_one(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "cifar10-cascade/models/mlperf_resnet8_float.tflite"
    rows = np.random.default_rng(0).uniform(0, 255, (30, 32, 32, 3)).astype(np.float32)
    expected = _said(source, rows).argmax(axis=1)
    for name, file in _made(source, rows, tmp_path).items():
        assert (_said(file, rows).argmax(axis=1) == expected).mean() > 0.9, name
        assert file.stat().st_size < 0.35 * source.stat().st_size


def test_a_malformed_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match=r"m\.tflite cannot be made ready"):
        tflite_techniques.prepared(tmp_path / "m.tflite", tmp_path / "ready.tflite")


def test_the_next_version_has_tflite_variants(tmp_path: Path) -> None:
    out = tmp_path / "next"
    arguments = (_DIGITS / "bundle", "--data", _DIGITS / "heldout", "--of", "edge-tflite-float", "--out", out)
    found = json_of("compress", *arguments, "--epsilon", 0.1, "--delta", 0.1, "--force")
    by_technique = {one["technique"]: one for one in found["candidates"]}
    assert set(by_technique) == {"static-int8", "dynamic-int8", "int8-weights"}
    assert not by_technique["static-int8"]["accepted"]  # no smaller than the int8 variant that is there, and slower
    models = {model.id: model for model in open_bundle(out).manifest.edge}
    new = models["edge-tflite-float-static-int8"]
    assert (new.runtime, new.precision, new.artefact.file) == ("tflite", "int8", f"{new.id}.tflite")
    assert new.provenance.parameters["calibration_rows"] == "171"
    plain = models["edge-tflite-float-dynamic-int8"].provenance
    assert "calibration_rows" not in plain.parameters  # nothing calibrates it
    assert set(new.provenance.libraries) == {"firstline", "ai-edge-quantizer", "ai-edge-litert"}
