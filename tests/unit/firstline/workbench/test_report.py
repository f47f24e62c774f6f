import builtins
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.cli import run

from bench.support.bundles import model as model_of
from bench.support.bundles import with_certificate, write_manifest
from bench.support.onnx_models import linear
from firstline.workbench.auroc import auroc
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import EdgeRun, Measured, figures, measure
from firstline.workbench.quality import require_fitting_labels
from firstline.workbench.report import certificate_sentence, html, section, write_report
from firstline.workbench.report_data import report_data
from firstline_core.bundle.manifest import Model, Policy, Score
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.embedding import Embedding

_DIGITS = Path(__file__).parents[4] / "models/digits"
_COMMAND = ("evaluate", _DIGITS / "bundle", "--data", _DIGITS / "heldout")


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure(open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 200))


def test_page_states_the_certificate_or_its_absence(measured: Measured) -> None:
    (edge,) = measured.edges
    model = edge.answers.model
    bare = _with_model(edge, msgspec.structs.replace(model, certificate=None))
    assert certificate_sentence(report_data(measured, bare, {})).startswith(
        "Not certified: its bundle carries no certificate for it."
    )
    for fields, part in (({}, "Certified: at most 5 % of edge answers disagree"), ({"score_digest": "0" * 64}, "void")):
        certified_model = with_certificate(model, measured.manifest, **fields)
        certified = msgspec.structs.replace(measured.manifest, edge=(certified_model, *measured.manifest.edge[1:]))
        found = report_data(_replaced(measured, manifest=certified), _with_model(edge, certified_model), {})
        assert part in certificate_sentence(found)


def test_page_states_the_auroc(measured: Measured) -> None:
    """And of an edge model that never disagrees, that there is nothing to tell."""
    (edge,) = measured.edges
    expected = auroc(edge.scores, edge.answers.labels != measured.full.labels)
    assert expected is not None
    same = _replaced(measured, full=_replaced(measured.full, outputs=edge.answers.outputs))
    for one, figure in ((measured, f"{expected:.3f}"), (same, "n/a")):
        text = section(report_data(one, edge, {}), (), ())
        assert f"<p>AUROC of the score for &quot;edge disagrees with full&quot;: {figure}.</p>" in text
    tiered = figures(same).variants[0].tiered
    assert tiered.auroc is None
    assert "AUROC" not in section(report_data(_replaced(measured, full=None), edge, {}), (), ())


def test_rows_without_a_label_are_neither_right_nor_wrong(measured: Measured) -> None:
    (edge,) = measured.edges
    labels = np.where(np.arange(200) % 4, -1, measured.truth[LABEL])
    partly = replace(measured, truth={LABEL: labels})
    accuracy = figures(partly).variants[0].edge.quality["accuracy"]
    found = report_data(partly, edge, {})
    assert (found.edge.rows, found.edge.value) == (50, pytest.approx(accuracy))
    assert found.curve.accuracy[-1] == pytest.approx(accuracy)
    assert sum(each.right.rows for each in found.reliability.bins) == 50


def test_external_text_is_escaped(measured: Measured) -> None:
    text = html("digits", "Measured on <script>alert(1)</script>.", [])
    assert "<script" not in text and "&lt;script&gt;" in text


def test_bundle_without_edge_model_is_refused(measured: Measured, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        write_report(_replaced(measured, edges=()), figures(measured), tmp_path)


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "in"
    refusal = f"The folder of plots {folder} cannot be written: a part of its path is not a folder; name another place."
    assert refusal in run(*_COMMAND, "--plots", folder, code=2).stderr


def test_missing_matplotlib_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return usual(name, *arguments, **named)

    monkeypatch.delitem(sys.modules, "firstline.workbench.plots", raising=False)
    monkeypatch.delattr("firstline.workbench.plots", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'firstline[analysis]'" in run(*_COMMAND, "--plots", tmp_path / "x", code=2).stderr
    assert not (tmp_path / "x").exists()


def _with_model(edge: EdgeRun, model: Model) -> EdgeRun:
    return _replaced(edge, answers=_replaced(edge.answers, model=model))


def _replaced(instance: Any, **fields: Any) -> Any:
    return replace(instance, **fields)


def test_embeddings_without_a_gallery_have_no_right_rows(tmp_path: Path) -> None:
    edge = model_of(linear(tmp_path / "m.onnx", np.eye(2, dtype=np.float32)), tmp_path, id="edge")
    task = Embedding(2, tolerance=0.1)
    bundle = write_manifest(
        tmp_path,
        [edge],
        (),
        task=task,
        full=msgspec.structs.replace(edge, id="full"),
        policy=Policy(Score("norm"), 0.0),
        inputs=(InputSpec("x", "FP32", (-1, 2)),),
    )
    (tmp_path / "rows.csv").write_text(
        'x,label\n"[1, 0]",ann\n"[2, 0]",ann\n"[0, 1]",bob\n"[1, 9]",bob\n"[1, 8]",eve\n'
    )
    measured = measure(bundle, open_dataset(tmp_path / "rows.csv"))
    assert figures(measured).variants[0].edge.quality == {"recall_at_1": 0.75}
    assert report_data(measured, measured.edges[0], {}).edge is None
    require_fitting_labels(task, measured.edges[0].answers.outputs, measured.truth or {})
