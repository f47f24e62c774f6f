"""A quantised input fed with what it cannot hold: said when the bundle is made, with the step that fits."""

import re
from pathlib import Path

import msgspec
import pytest
from onnx import helper

from bench.support.onnx_models import float_graph
from firstline.workbench.bundle import create_bundle
from firstline.workbench.inspect import verify
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec, read_labels
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.bundle.manifest import MANIFEST_NAME, encode_manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import ModelInput
from firstline_core.tasks.regression import Regression

_DIGITS = Path(__file__).parents[4] / "models/digits"
_INT8 = _DIGITS / "artefacts/edge_int8.tflite"  # holds 0 to 1
_AFTER = parse_postprocess("softmax")


def _spec(file: Path, scale: str, labels: tuple[str, ...] = (), offset: str = "") -> BundleSpec:
    model = ModelSpec(file, parse_preprocess(scale), parse_postprocess(offset) if offset else _AFTER)
    return BundleSpec(
        "tried", 1, labels or read_labels(_DIGITS / "labels.txt"), (model,), policy=PolicySpec(threshold=1.0)
    )


def test_fitting_scale_step_gives_no_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    create_bundle(_spec(_INT8, "decode:L,resize:8x8,scale:0:255"), tmp_path / "out", warn=warnings.append)
    assert warnings == []


def test_mostly_clipped_pixels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        create_bundle(_spec(_INT8, "decode:L,resize:8x8"), tmp_path / "out")
    assert caught.value.message == (
        "edge_int8.tflite: its quantised input holds 0 to 1, but pixels become 0 to 255, so 98% of them are clipped; "
        "add scale:0:255 to its preprocessing."
    )
    assert not (tmp_path / "out").exists()


def test_half_used_range_gives_a_warning(tmp_path: Path) -> None:
    """Pixels in 0..1/2: nothing is lost that a run would show, and the model still sees too dark a picture."""
    warnings: list[str] = []
    create_bundle(_spec(_INT8, "decode:L,resize:8x8,scale:0:510"), tmp_path / "out", warn=warnings.append)
    [sentence] = warnings
    assert "so they use 50% of it; add scale:0:255 instead of scale:mean=0:std=510." in sentence


def test_verify_reports_the_range_too(tmp_path: Path) -> None:
    bundle = create_bundle(_spec(_INT8, "decode:L,resize:8x8,scale:0:255"), tmp_path / "out")

    def verified(steps: str) -> tuple[str, str]:
        fed = (ModelInput("image", preprocess=parse_preprocess(steps)),)
        model = msgspec.structs.replace(bundle.manifest.edge[0], inputs=fed)
        manifest = msgspec.structs.replace(bundle.manifest, edge=(model,))
        (tmp_path / "out" / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
        check = verify(open_bundle(tmp_path / "out").path)[1]
        return check.outcome, check.detail

    assert verified("decode:L,resize:8x8,scale:0:255")[0] == "ok"
    outcome, detail = verified("decode:L,resize:8x8")
    assert outcome == "failed"
    assert "add scale:0:255 to its preprocessing" in detail
    outcome, detail = verified("decode:L,resize:8x8,scale:0:510")
    assert outcome == "ok"
    assert "add scale:0:255 instead of scale:mean=0:std=510" in detail


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("file", "steps", "message"),
    [
        (
            "mobilenet_v1_0.25_128_quant",
            "resize:128x128",
            "holds -1 to 0.9922.*99% of them are clipped; add scale:128:128 to",
        ),
        (
            "mobilenet_v1_0.25_128_quant",
            "resize:128x128,scale:0:255",
            "use 50% of it; add scale:128:128 instead of scale",
        ),
        ("tf2_mobilenet_v2_1.0_224_ptq", "resize:224x224", "add scale:127:127.5 to its preprocessing"),
    ],
)
def test_real_models_fit_their_ranges(shared_data: Path, tmp_path: Path, file: str, steps: str, message: str) -> None:
    path = shared_data / "imagenet-cascade" / "models" / f"{file}.tflite"
    labels = tuple(str(n) for n in range(1000))
    warnings: list[str] = []
    try:
        spec = _spec(path, f"decode:RGB,{steps}", labels, "label_offset:1")
        create_bundle(spec, tmp_path / "out", warn=warnings.append)
    except ConfigError as error:
        warnings.append(error.message)
    [sentence] = warnings
    assert re.search(message, sentence)


@pytest.mark.parametrize("size", ["Neg", "Exp"])
def test_a_negative_spread_gives_a_warning(tmp_path: Path, size: str) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["value"]), helper.make_node(size, ["x"], ["spread"])]
    shapes = {"x": ["n", 1]}, {"value": ["n", 1], "spread": ["n", 1]}
    path, warnings = float_graph(tmp_path / "model.onnx", nodes, *shapes), list[str]()
    edge = ModelSpec(path, postprocess=parse_postprocess("spread:spread"), output="value")
    policy = PolicySpec(score="within", threshold=0.5)
    spec = BundleSpec("price", 1, (), (edge,), policy=policy, configured=Regression(absolute=1))
    create_bundle(spec, tmp_path / "out", warn=warnings.append)
    assert ["export the model with their exponential" in sentence for sentence in warnings] == [True] * (size != "Exp")
