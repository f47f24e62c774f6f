import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image
from support.cli import in_one_line, run
from support.images import by_name, encode
from support.sample_bundles import NUMBERS, detector_bundle, number_bundle

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear
from firstline.workbench import report
from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline.workbench.evaluate import EventFigures, evaluate, figures, measure
from firstline.workbench.pairing.report import draw_disagreements
from firstline.workbench.report import write_report
from firstline.workbench.report_data import disagreements, report_data
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.bundle.loading import load_edge, load_model
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import BoxRows, Columns, Spread, Suppress
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import LOGITS, score
from firstline_core.tasks.regression import Regression
from firstline_core.types import PROBABILITIES, Tensor

_DIGITS = Path(__file__).parents[4] / "models/digits"


def test_figures_match_the_parts() -> None:
    """Against the same bundle run as one batch and counted in plain numpy."""
    bundle, dataset = open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 300)
    reported: list[tuple[int, int]] = []
    found = evaluate(bundle, dataset, progress=lambda done, total: reported.append((done, total)))

    images, truth = list(dataset.contents()), dataset.required_truth(bundle.manifest.task)["label"]
    batch = Tensor("image", np.array(images, object))
    assert bundle.manifest.full is not None
    models = load_edge(bundle, RuntimeOptions()), load_model(bundle, bundle.manifest.full, RuntimeOptions())
    edge, full = (model.predict(by_name(batch)).outputs[PROBABILITIES] for model in models)
    policy = bundle.manifest.policy
    kept = score("margin", edge, temperature=policy.score.temperature) >= policy.threshold
    sizes = np.array([len(image) for image in images])
    answers = np.where(kept, edge.argmax(axis=1), full.argmax(axis=1))

    assert found.samples == 300
    assert reported[0] == (1, 300)
    assert reported[-1] == (300, 300)
    assert found.full.quality["accuracy"] == (full.argmax(axis=1) == truth).mean()
    [variant] = found.variants
    assert variant.edge.id == "edge-onnx"
    assert variant.edge.quality["accuracy"] == (edge.argmax(axis=1) == truth).mean()
    tiered = variant.tiered
    assert tiered.quality["accuracy"] == (answers == truth).mean()
    assert (tiered.kept, tiered.escalated) == (kept.sum(), 300 - kept.sum())
    assert tiered.edge_share == kept.mean()
    assert tiered.disagreement == (edge.argmax(axis=1) != full.argmax(axis=1))[kept].mean()
    certainty = score("margin", edge, temperature=policy.score.temperature).astype(np.float64)
    differs = edge.argmax(axis=1) != full.argmax(axis=1)
    below = certainty[differs][:, None] - certainty[~differs]
    assert tiered.auroc == pytest.approx(((below < 0) + (below == 0) / 2).mean())
    assert (tiered.bytes_sent, tiered.bytes_all) == (sizes[~kept].sum(), sizes.sum())
    for latency in (found.full.latency_ms, variant.edge.latency_ms, tiered.latency_ms):
        assert 0 < latency.p50 <= latency.p99
    assert tiered.latency_ms.p99 > variant.edge.latency_ms.p50


def test_tiered_digits_lose_no_accuracy() -> None:
    found = evaluate(open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout"), variants=["all"])
    assert found.full is not None
    assert len(found.variants) == 3
    for variant in found.variants:
        assert variant.tiered.edge_share >= 0.7
        assert variant.tiered.quality["accuracy"] >= found.full.quality["accuracy"] - 0.005


def test_logits_are_stored_only_for_a_score_that_needs_them() -> None:
    stored, dataset = open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 20)
    margin = measure(stored, dataset)
    policy = replace(stored.manifest.policy, score=Score("energy"))
    by_energy = measure(Bundle(stored.path, replace(stored.manifest, policy=policy)), dataset)
    assert margin.edges[0].answers.evidence == margin.full.evidence == by_energy.full.evidence == {}
    [edge] = by_energy.edges
    expected = score("energy", edge.answers.probabilities, edge.answers.evidence[LOGITS])
    np.testing.assert_allclose(edge.scores, expected, rtol=1e-5)


def test_variant_is_selected_by_id() -> None:
    bundle, dataset = open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 5)
    found = evaluate(bundle, dataset, variants=["edge-tflite-int8"])
    assert [variant.edge.id for variant in found.variants] == ["edge-tflite-int8"]
    with pytest.raises(ConfigError, match="no edge variant 'edge-fpga'; it has: edge-onnx"):
        evaluate(bundle, dataset, variants=["edge-fpga"])


def test_single_tier_bundle_is_evaluated(tmp_path: Path) -> None:
    dataset = open_dataset(_DIGITS / "heldout", 20)
    before, after = parse_preprocess("decode:L,resize:8x8,scale"), parse_postprocess("softmax")
    edge, full = (ModelSpec(_DIGITS / "artefacts" / file, before, after) for file in ("edge.onnx", "full.onnx"))
    labels = tuple("0123456789")
    only_edge = evaluate(
        create_bundle(BundleSpec("edge", 1, labels, (edge,), policy=PolicySpec(threshold=1.0)), tmp_path / "edge"),
        dataset,
    )
    assert only_edge.full is None
    assert only_edge.variants[0].tiered is None
    only_full = evaluate(create_bundle(BundleSpec("full", 1, labels, (), full), tmp_path / "full"), dataset)
    assert only_full.variants == ()
    assert only_full.full.quality["accuracy"] > 0.9


def _pets(folder: Path, background: Any = msgspec.UNSET) -> tuple[Bundle, Dataset]:
    """A detector that finds a dog, as sure as the image is bright; its edge model misses it in dim images."""
    bundle = detector_bundle(folder / "bundle", background=background)
    (edge,) = bundle.manifest.edge
    choosy = msgspec.structs.replace(edge, postprocess=(BoxRows(), Suppress(0.7)))
    write_manifest(
        bundle.path, [choosy], (), task=bundle.manifest.task, full=bundle.manifest.full, policy=bundle.manifest.policy
    )
    (folder / "data" / "images").mkdir(parents=True)
    (folder / "data" / "labels").mkdir()
    for name, value in (("bright", 255), ("dim", 128)):
        (folder / "data" / "images" / f"{name}.png").write_bytes(encode(np.full((8, 16, 3), value, np.uint8)))
    return open_bundle(bundle.path), open_dataset(folder / "data")


def test_detector_has_average_precision_and_events(tmp_path: Path) -> None:
    bundle, dataset = _pets(tmp_path)
    assert evaluate(bundle, dataset).variants[0].tiered.quality == {}
    for name in ("bright", "dim"):
        (tmp_path / "data" / "labels" / f"{name}.txt").write_text("1 0.375 0.5 0.25 0.5\n")
    found = evaluate(bundle, dataset)
    assert (found.task, found.quality) == ("detection", "map50")
    assert found.full.quality == pytest.approx({"map50": 1, "map50_95": 1})
    (variant,) = found.variants
    assert variant.edge.quality["map50"] == pytest.approx(1)  # boxes below the operating score count too
    assert (variant.tiered.edge_share, variant.tiered.disagreement, variant.tiered.auroc) == (1, 0.5, 1)
    assert variant.tiered.events == {"missed dog": EventFigures(2, 1), "invented dog": EventFigures(1, 0)}


def test_report_shows_where_detectors_disagree(tmp_path: Path) -> None:
    bundle, dataset = _pets(tmp_path)
    measured = measure(bundle, dataset)
    (edge,) = measured.edges
    (picture,) = disagreements(measured, edge, 6)
    assert picture.name == "dim.png" and picture.accepted
    assert picture.edge.tobytes() != picture.full.tobytes()
    page = write_report(measured, figures(measured), tmp_path / "plots").read_text()
    assert "dim.png with the answer of the full model" in page and "1 of 2" in page
    assert "right answers" not in page  # there are no labels


def test_report_shows_images_as_the_models_see_them(tmp_path: Path) -> None:
    bundle, dataset = _pets(tmp_path, background=(128, 128, 128))
    Image.new("RGBA", (16, 8)).save(tmp_path / "data" / "images" / "dim.png")  # transparent
    measured = measure(bundle, dataset)
    (picture,) = disagreements(measured, measured.edges[0], 6)
    assert picture.edge.getpixel((0, 0)) == (128, 128, 128)


def test_names_of_pictures_are_bounded(tmp_path: Path) -> None:
    bundle, _ = _pets(tmp_path)
    images = tmp_path / "data" / "images"
    (images / "dim.png").rename(images / f"{'d' * 250}.png")
    draw_disagreements(measure(bundle, open_dataset(tmp_path / "data")), tmp_path / "drawn")
    assert [file.name for file in (tmp_path / "drawn").iterdir()] == [f"01-accepted-{'d' * 50}.png"]


def test_report_of_graded_losses_speaks_of_means(tmp_path: Path) -> None:
    bundle, dataset = _pets(tmp_path)
    measured = measure(bundle, dataset)
    (edge,) = measured.edges
    plain = report_data(measured, edge, {})
    graded = dataclasses.replace(plain, graded=True)
    assert not plain.graded
    last = [report.figures(data)[-1][0] for data in (plain, graded)]
    assert last == [
        "accepted edge answers that disagree with the full model",
        "mean loss of accepted edge answers against the full model's",
    ]


def test_command_prints_the_figures_of_a_detector(tmp_path: Path) -> None:
    bundle, dataset = _pets(tmp_path)
    (tmp_path / "data" / "labels" / "dim.txt").write_text("1 0.375 0.5 0.25 0.5\n")
    text = in_one_line(run("evaluate", bundle.path, "--data", dataset.path).stdout)
    assert "map50" in text and "missed dog 1 2 50.00 %" in text


def test_table_of_numbers_is_evaluated(tmp_path: Path) -> None:
    bundle = number_bundle(tmp_path / "bundle")
    (tmp_path / "rows.csv").write_text('x,kind\n"[2, 1]",a\n"[0, 1]",b\n"[0, 3]",a\n')
    found = evaluate(bundle, open_dataset(tmp_path / "rows.csv", label="kind"))
    assert found.variants[0].edge.quality["accuracy"] == pytest.approx(2 / 3)
    assert found.samples == 3


def test_spread_of_a_regression_is_scored(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", np.array([[1, 0], [0, 1]], np.float32))
    edge = model(path, tmp_path, postprocess=(Columns((0,)), Spread(columns=(1,))))
    full = replace(edge, id="full", postprocess=(Columns((0,)),))
    policy = Policy(Score("within"), 0.5)
    task = Regression(absolute=1)
    bundle = write_manifest(tmp_path, [edge], (), task=task, inputs=(NUMBERS,), full=full, policy=policy)
    np.savez(tmp_path / "rows.npz", x=np.array([[3, 0.1], [5, 9]], np.float32), values=np.array([[3], [7]], np.float32))
    found = evaluate(bundle, open_dataset(tmp_path / "rows.npz"))
    assert found.full is not None and found.full.quality["mae"] == 1
    assert found.variants[0].tiered.edge_share == 0.5
