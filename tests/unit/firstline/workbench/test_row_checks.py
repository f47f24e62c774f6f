"""Commands on models whose answer to a row depends on other rows or on chance."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.cli import in_one_line
from support.cli import run as run_command
from support.impure_models import DEPENDENT_ON_BATCH, DEPENDENT_ON_RUN, dynamically_quantised, pure, softmax_over_rows

from firstline.workbench import row_checks
from firstline.workbench.bundle import create_bundle
from firstline.workbench.inspect import verify
from firstline.workbench.row_checks import noise
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline.workbench.step_syntax import parse_postprocess
from firstline_core.bundle.manifest import MANIFEST_NAME, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.types import DATATYPES

MakeModel = Callable[[Path], Path]
DIGITS = Path(__file__).parents[4] / "models/digits"


def created(folder: Path, make: MakeModel, out: str = "bundle", **more: Any) -> tuple[Bundle, list[str]]:
    """Returns a new bundle of one edge model, and the warnings."""
    model = ModelSpec(make(folder / "m.onnx"), postprocess=parse_postprocess("softmax"))
    spec = BundleSpec("small", 1, ("a", "b", "c"), (model,), policy=PolicySpec(threshold=0.9))
    warnings = list[str]()
    return create_bundle(spec, folder / out, warn=warnings.append, **more), warnings


def run(*arguments: object, code: int) -> str:
    return in_one_line(run_command(*arguments, code=code).output)


def without_batch(bundle: Bundle) -> Bundle:
    """Overwrites the manifest with one that lets rows run together."""
    models = [msgspec.structs.replace(model, batch=None) for model in bundle.manifest.edge]
    manifest = msgspec.structs.replace(bundle.manifest, edge=tuple(models))
    (bundle.path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return open_bundle(bundle.path)


@pytest.mark.parametrize(("make", "operator"), DEPENDENT_ON_BATCH.items())
def test_a_model_that_depends_on_the_batch_gets_batch_1(tmp_path: Path, make: MakeModel, operator: str) -> None:
    bundle, warnings = created(tmp_path, make)
    assert bundle.manifest.edge[0].batch == 1
    assert "when it runs with other rows" in warnings[0] and "The manifest gets `batch: 1`" in warnings[0]
    assert operator in warnings[0]
    run("bundle", "verify", bundle.path, code=0)
    assert "edge has `batch: 1`: it runs with one row at a time." in run("bundle", "get", bundle.path, code=0)


@pytest.mark.parametrize(("make", "operator"), DEPENDENT_ON_RUN.items())
def test_a_model_that_depends_on_chance_is_refused(tmp_path: Path, make: MakeModel, operator: str) -> None:
    with pytest.raises(ConfigError, match=rf"m\.onnx: Model 'edge' answers row \d+ differently .* {operator} .*export"):
        created(tmp_path, make)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("datatype", ["UINT8", "INT8", "BOOL", "FP16", "FP32"])
def test_made_up_rows_are_drawn_in_their_own_type(datatype: str) -> None:
    row = np.zeros((1, 64, 64), DATATYPES[datatype])
    tracemalloc.start()
    drawn = noise({"x": row}, 256)["x"]
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (drawn.dtype, len(drawn)) == (row.dtype, 256)
    assert most_bytes < (4 if datatype == "FP16" else 1.1) * drawn.nbytes
    assert drawn.max() > drawn.min()


def test_a_model_of_no_use_row_by_row_is_named(tmp_path: Path) -> None:
    _, warnings = created(tmp_path, softmax_over_rows)
    assert "it gives the same answer to every row" in warnings[-1]


def test_verify_refuses_a_bundle(tmp_path: Path) -> None:
    bundle, _ = created(tmp_path, dynamically_quantised)
    before = without_batch(bundle)
    output = run("bundle", "verify", before.path, code=1)
    assert "failed model edge: Model 'edge' answers row" in output
    assert "DynamicQuantizeLinear takes its range from the whole batch; quantise statically" in output
    assert "create the bundle again, which runs it with one row at a time" in output


def test_a_bundle_that_needs_batch_1_is_neither_certified_nor_compressed(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic  # only here, because it imports for long

    quantised = tmp_path / "dynamic.onnx"
    quantize_dynamic(DIGITS / "artefacts/edge.onnx", quantised, weight_type=QuantType.QUInt8)
    steps = ("--preprocess", "decode:L,resize:8x8,scale:0:255", "--postprocess", "softmax", "--threshold", 0.9)
    models = ("--edge", f"quick={quantised}", "--edge", f"plain={DIGITS / 'artefacts/edge.onnx'}")
    files = ("--full", DIGITS / "artefacts/full.onnx", "--labels", DIGITS / "labels.txt")
    out = tmp_path / "bundle"
    output = run("bundle", "create", "--name", "d", *models, *files, *steps, "--out", out, code=0)
    assert "DynamicQuantizeLinear" in output
    promise = ("--data", DIGITS / "calibration", "--epsilon", 0.1, "--delta", 0.1)
    before = without_batch(open_bundle(out))
    for command in ("certify", "compress"):
        refused = run(command, before.path, *promise, code=2)
        assert "Model 'quick' answers row" in refused and "DynamicQuantizeLinear" in refused
        assert "create the bundle again, which runs it with one row at a time" in refused
    run("bundle", "create", "--name", "d", *models, *files, *steps, "--out", out, "--force", code=0)
    assert [model.batch for model in open_bundle(out).manifest.models] == [1, None, None]
    assert "ertified" in run("certify", out, *promise, code=0)


def test_create_and_verify_say_how_many_rows_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_checks, "LIMIT_S", 60)  # a busy machine runs as many as an idle one
    counted: dict[str, int] = {}
    bundle, _ = created(tmp_path, pure, count_rows=counted.__setitem__)
    assert counted == {"edge": 256}
    assert verify(bundle.path)[1].rows_checked == 256
    assert "256 rows are independent" in run("bundle", "verify", bundle.path, code=0)
