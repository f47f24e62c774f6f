"""`firstline certify` on bundles, tables of scores and audits, and the contracts that it proves."""

import csv
import math
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.cli import in_one_line, json_of, run

from firstline.cli.certify import groups_text
from firstline.cli.command import Report, print_report
from firstline.cli.output import Output
from firstline.cli.proof_text import caveats
from firstline.workbench.certify import (
    GroupsResult,
    Terms,
    auditable_epsilon,
    certify_bundle,
    certify_by,
    certify_classes,
    certify_field_promises,
    certify_stream_bundle,
    policy_of,
)
from firstline.workbench.data.dataset import open_dataset, read_groups
from firstline.workbench.evidence import Evidence
from firstline.workbench.score_table import ScoreTable
from firstline.workbench.selection import EdgeRows
from firstline_core.bundle.manifest import Score, encode_manifest, parse_manifest, valid_certificate
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import CertificationResult, certify, start_shares, starts_at
from firstline_core.routing.contracts import certify_stream, net_loss
from firstline_core.routing.drift import histogram
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.segmentation import CONFIDENCE, MASK, Segmentation
from firstline_core.types import PROBABILITIES
from firstline_edge.audits.records import record_key

_DIGITS = Path(__file__).parents[4] / "models/digits"
_FEWER = _DIGITS / "calibration"  # 300 images instead of 599
_FEWER_ROWS = (_DIGITS / "bundle", "--data", _FEWER, "--delta", 0.1)
_BUNDLE = (_DIGITS / "bundle", "--data", _DIGITS / "heldout", "--delta", 0.1)
_run, _json = partial(run, "certify"), partial(json_of, "certify")


def _table(rows: int, errors: int = 0) -> str:
    return "score,agree\n" + "".join(f"{0.9},{int(row >= errors)}\n" for row in range(rows))


def test_json_output_has_the_documented_fields(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    scores, agree = random.random(1000), random.random(1000) < 0.99
    file = tmp_path / "scores.csv"
    file.write_text("id,agree,score\n" + "".join(f"x,{int(a)},{s}\n" for s, a in zip(scores, agree, strict=True)))
    promise = ("--scores", file, "--epsilon", 0.05, "--delta", 0.05)
    found = _json(*promise)
    assert list(found) == ["certified", "threshold", "kept", "risk_upper", "n", "n_needed"]
    assert (found["certified"], found["n"], found["n_needed"]) == (True, 1000, 0)
    assert found["kept"] == np.mean(scores >= found["threshold"])
    assert found["threshold"] == certify(scores, ~agree, 0.05, 0.05).threshold

    assert _json(*promise, "--select", 0.2, "--seed", 3)["n"] == 800


def test_uncertified_result_exits_0() -> None:
    promise = ("--scores", "-", "--epsilon", 0.01, "--delta", 0.05)
    found = _json(*promise, table=_table(100))
    assert found == {
        "certified": False, "threshold": None, "kept": 0.0, "risk_upper": None, "n": 100, "n_needed": 199,
    }  # fmt: skip
    assert "at least 199 more rows" in _run(*promise, table=_table(100)).stdout
    assert "at least 199 more rows" in _run(*promise, "--require", table=_table(100), code=1).stdout
    assert "Certified on 299 rows" in _run(*promise, "--require", table=_table(299)).stdout
    assert "Certified on 299 rows" in _run(*promise, table="\ufeff" + _table(299)).stdout


def test_spreadsheet_table_is_read() -> None:
    table = "\ufeff" + "\r\n".join(['"score","agree"', *['"0.9","1"'] * 299, ""])
    assert _json("--scores", "-", "--epsilon", 0.01, "--delta", 0.05, table=table)["certified"]


def test_confidence_never_reads_100_percent() -> None:
    text = _run("--scores", "-", "--epsilon", 0.05, "--delta", 1e-6, table=_table(999)).stdout
    assert "with confidence 99.9999 %" in text


def test_table_can_have_weights() -> None:
    promise = ("--scores", "-", "--epsilon", 0.05, "--delta", 0.05)
    rows = [(0.9, 1, 4.0)] * 300 + [(0.5, 0, 2.0)] * 100
    table = "score,agree,weight,kept\n" + "".join(f"{score},{agree},{weight},1\n" for score, agree, weight in rows)
    found = _json(*promise, table=table)
    assert (found["certified"], found["n"]) == (True, 400)
    assert found["kept"] == pytest.approx(1200 / 1400)  # of what was asked, not of the rows


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "standard input:1 has no column 'score' and 'agree'"),
        ("score,agree\nnan,1\n", "standard input:2 has the score 'nan'"),
        ("score,agree\n0.5,yes\n", "standard input:2 has 'yes' under agree"),
        ("score,agree\n0.5,nan\n", "standard input:2 has 'nan' under agree"),
        ("score,agree\n0.5\n", "standard input:2 has '' under agree"),
        ("score,agree\n0.5,-0.1\n", "standard input:2 has '-0.1' under agree"),
        ("score,agree\n0.5,1.1\n", "standard input:2 has '1.1' under agree"),
        ("score,agree\n", "standard input has no rows below its first line"),
        ("score,agree,weight\n0.5,1,inf\n", "standard input:2 has the weight 'inf'"),
        ('score,agree\n"0.5,1\n', r":2 opens a quote that is not closed"),
        ("score,agree,weight\n0.5,1,0\n", "standard input:2 has the weight '0'"),
        ("score,agree,weight\n0.5,1\n", "standard input:2 has the weight ''"),
        ("score,agree\n0,97,1\n", "standard input:2 has more than 2 cells, and line 1 names no more columns"),
        ("score,agree,score\n0.5,1,0.7\n", "standard input:1 has several columns 'score'"),
        ("score,agree\n\x1b[2J,1\n", r"standard input:2 has the score '\x1b[2J'"),
        (f"score,agree\n{'9' * 500}x,1\n", f"has the score '{'9' * 37}...';"),
    ],
)
def test_invalid_table_is_reported_with_its_line(table: str, message: str) -> None:
    assert message in _run("--scores", "-", "--epsilon", 0.05, "--delta", 0.05, table=table, code=2).stderr


def test_bundle_gets_the_certificate_of_its_variant(tmp_path: Path) -> None:
    out = tmp_path / "certified"
    found = _json(*_BUNDLE, "--epsilon", 0.02, "--out", out)
    assert list(found)[:6] == ["certified", "threshold", "kept", "risk_upper", "n", "n_needed"]
    assert found["certified"] and found["n"] == 599
    assert (found["score"], found["selected"], found["auroc"]) == ("margin", 0, {})  # too few to set any aside
    assert set(found["rows_checked"]) == {"edge-onnx", "edge-tflite-float", "edge-tflite-int8", "full"}
    assert min(found["rows_checked"].values()) >= 4 + 4  # of made-up and of given rows, on however slow a machine

    before, after = open_bundle(_DIGITS / "bundle"), open_bundle(out)
    assert (after.manifest.name, after.manifest.version) == ("digits", before.manifest.version + 1)
    assert all(after.has(model) for model in after.manifest.models)
    first, *others = after.manifest.edge
    certificate = valid_certificate(after.manifest, first)
    assert (certificate.contract, certificate.epsilon, certificate.delta, certificate.n) == (
        "disagreement", 0.02, 0.1, 599,
    )  # fmt: skip
    assert certificate.audit_epsilon == 0.02
    assert sum(certificate.histogram.shares) == pytest.approx(1)
    assert (certificate.threshold, certificate.kept, certificate.risk_upper) == (
        found["threshold"], found["kept"], found["risk_upper"],
    )  # fmt: skip
    assert [model.certificate for model in others] == [model.certificate for model in before.manifest.edge[1:]]
    assert [model.digest for model in after.manifest.models] == [model.digest for model in before.manifest.models]
    (variant,) = json_of("evaluate", out, *_BUNDLE[1:3])["variants"]
    assert (variant["threshold"], variant["tiered"]["edge_share"]) == (found["threshold"], found["kept"])
    assert "is certified at" in run("bundle", "get", out).stdout

    arguments = ("--edge", others[1].id, "--loss", "harm", "--epsilon", 0.03)
    text = _run(out, *_BUNDLE[1:], *arguments, "--out", out, "--force").stdout
    assert "are wrong where the full model is right" in text
    assert f"digits version 3, {others[1].id} certified." in text
    both = open_bundle(out).manifest
    contracts = [model.certificate and model.certificate.contract for model in both.edge]
    assert contracts == ["disagreement", "disagreement", "harm"]
    assert [path.name for path in tmp_path.iterdir()] == ["certified"]


def test_selection_rows_choose_the_score_of_the_bundle(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    _run(*_FEWER_ROWS, "--epsilon", 0.1, "--out", first, "--edge", "edge-tflite-int8")
    chosen = (first, *_FEWER_ROWS[1:], "--epsilon", 0.1, "--select", 0.5, "--edge", "edge-onnx")
    result = _run(*chosen, "--out", second, "-o", "json")
    found = msgspec.json.decode(result.stdout)
    assert (found["n"], found["selected"]) == (150, 150)
    assert set(found["auroc"]) == {"margin", "max_probability", "entropy", "energy", "learned"}
    assert max(found["auroc"].values()) > 0.9
    assert "edge-tflite-int8 are void" in result.stderr

    manifest = open_bundle(second).manifest
    onnx, _, int8 = manifest.edge
    certificate = valid_certificate(manifest, onnx)
    assert certificate is not None and valid_certificate(manifest, int8) is None
    assert (manifest.policy.score.kind, manifest.policy.score.temperature) == (found["score"], found["temperature"])
    assert manifest.policy.threshold == certificate.threshold == found["threshold"]
    assert manifest.policy.value is not None

    again = (second, *_FEWER_ROWS[1:], "--epsilon", 0.1, "--edge", "edge-tflite-int8", "--score", "bundle")
    assert "void" not in _run(*again, "--out", third).stderr
    manifest = open_bundle(third).manifest
    assert [valid_certificate(manifest, model) is not None for model in manifest.edge] == [True, False, True]


@pytest.mark.parametrize(
    "contract", [("--loss", "harm"), ("--contract", "stream"), ("--loss", "harm", "--by", "class")]
)
def test_labels_in_another_order_prove_no_harm(tmp_path: Path, contract: tuple[str, ...]) -> None:
    shutil.copy(_FEWER / "images.zip", tmp_path)
    with (_FEWER / "labels.csv").open() as stream:
        rows = [(row["file"], (int(row["label"]) + 1) % 10) for row in csv.DictReader(stream)]
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{file},{label}\n" for file, label in rows))
    promise = ("--epsilon", 0.05, "--delta", 0.1)
    found = _run(_BUNDLE[0], "--data", tmp_path, *promise, *contract, code=2)
    assert "labels no better than by chance: their mean loss is 1, and 0.91 if" in found.stderr


def test_named_score_and_audit_bound_of_harm(tmp_path: Path) -> None:
    out = tmp_path / "certified"
    _run(*_FEWER_ROWS, "--epsilon", 0.1, "--loss", "harm", "--score", "energy", "--out", out)
    found = open_bundle(out).manifest
    certificate = found.edge[0].certificate
    assert found.policy.score.kind == "energy" and certificate is not None
    assert certificate.audit_epsilon is not None and 0 < certificate.audit_epsilon < 0.5
    (variant,) = json_of("evaluate", out, *_FEWER_ROWS[1:3])["variants"]
    assert variant["tiered"]["edge_share"] == certificate.kept
    assert variant["tiered"]["disagreement"] <= certificate.audit_epsilon
    assert "energy of the logits" in run("bundle", "verify", out).stdout


def test_missing_scikit_learn_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    chosen = (*_FEWER_ROWS, "--epsilon", 0.1, "--select", 0.5)
    result = _run(*chosen, "-o", "json")
    assert "learned" not in msgspec.json.decode(result.stdout)["auroc"]
    assert result.stderr.count("no score was learned: pip install 'firstline[analysis]'") == 1
    assert "fitted with scikit-learn" in _run(*chosen, "--score", "learned", code=2).stderr
    named = _run(*chosen, "--score", "margin")
    assert "no score was learned" not in named.stderr and "150 other rows decided on the score" in named.stdout


def test_a_table_of_graded_losses_bounds_their_mean() -> None:
    table = "score,agree\n" + "0.9,0.98\n0.9,1\n" * 300
    found = _json("--scores", "-", "--epsilon", 0.05, "--delta", 0.1, table=table)
    assert found["certified"]
    assert 0.01 < found["risk_upper"] < 0.05
    shown = _run("--scores", "-", "--epsilon", 0.05, "--delta", 0.1, table=table).stdout
    promise = "the mean loss of edge answers against the full model's is at most 5 %, with confidence 90 %"
    assert f"Certified on 600 rows: {promise}" in shown


def test_audits_certify_only_their_own_bundle(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    _run(*_BUNDLE, "--epsilon", 0.05, "--out", first)
    manifest = open_bundle(first).manifest
    alarmed = valid_certificate(manifest, manifest.edge[0])
    key = record_key("digits", str(manifest.version), alarmed)
    rows = [f"{0.5 + number / 2000},{int(number > 300)},{1 + int(number % 3 == 0)},1,{key}" for number in range(1000)]
    table = "score,agree,weight,kept,certificate\n" + "\n".join(rows) + "\n"
    field = (first, "--scores", "-", "--epsilon", 0.05, "--delta", 0.1)
    result = _run(*field, "--out", second, table=table)
    assert f"digits version {manifest.version + 1}, edge-onnx certified." in result.stdout
    after = open_bundle(second).manifest
    renewed = valid_certificate(after, after.edge[0])
    assert 0.62 < renewed.threshold < 0.651
    assert renewed.threshold > alarmed.threshold
    assert (renewed.n, renewed.contract, renewed.audit_epsilon) == (1000, "disagreement", 0.05)
    scores, weights = (
        [0.5 + number / 2000 for number in range(1000)],
        [1 + int(number % 3 == 0) for number in range(1000)],
    )
    assert renewed.histogram == histogram(scores, weights=weights) != histogram(scores)  # of all that was asked
    assert after.policy.score == manifest.policy.score

    assert "no bundle was written" in _run(*field, table=table).stdout.lower()
    refused = _run(second, *field[1:], table=table, code=2).stderr  # another version than the device ran
    assert "names none of this bundle's" in in_one_line(refused)
    assert "names none" in _run(*field, table=_table(1000), code=2).stderr
    assert "go with a bundle and --data" in _run(*field, "--loss", "harm", table=table, code=2).stderr


def test_audits_without_promised_events_renew_no_event() -> None:
    """A variant that promises agreement may be next to one that promises events."""
    bundle, ones = open_bundle(_DIGITS / "bundle"), np.ones(10)
    key = record_key(
        "digits", str(bundle.manifest.version), valid_certificate(bundle.manifest, bundle.manifest.edge[0])
    )
    with pytest.raises(ConfigError, match="promises nothing about events; name --epsilon and --delta"):
        certify_field_promises(bundle, ScoreTable(ones, 0 * ones, ones, {}, frozenset({key})), Terms(0, 0))


def test_no_bundle_is_written_without_a_proof(tmp_path: Path) -> None:
    out = tmp_path / "certified"
    result = _run(*_BUNDLE, "--epsilon", 0.001, "--out", out)
    assert "Not certified on 599 rows" in result.stdout and "No bundle was written." in result.stdout
    assert not out.exists()
    found = _json(*_BUNDLE, "--epsilon", 0.001, "--out", out)
    assert (found["certified"], found["threshold"]) == (False, None)
    assert found["n_needed"] > 0


def test_invalid_bundle_options_are_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def error_of(*arguments: object) -> str:
        return str(_run(*arguments, "--epsilon", 0.05, code=2).stderr)

    assert "leave one of them out" in error_of(*_BUNDLE, "--scores", "-")
    assert "The bundle is missing" in error_of(*_BUNDLE[1:])
    assert "go with a bundle" in error_of("--scores", "-", "--delta", 0.1, "--out", tmp_path / "x")
    assert "is not a bundle" in error_of(tmp_path, *_BUNDLE[1:])
    assert "the selection fraction is 1" in error_of(*_BUNDLE, "--select", 1)
    with monkeypatch.context() as patch:  # before the models run for minutes
        patch.setattr("firstline.cli.certify.TierOptions.gather", None)
        assert "set one aside with --select" in error_of(*_BUNDLE, "--score", "learned")
        assert "needs the edge model's logits" in error_of(*_BUNDLE, "--score", "energy", "--from-agent", "http://x")
    assert "--score" in error_of("--scores", "-", "--delta", 0.1, "--score", "margin")
    assert "replace it with --force" in error_of(*_BUNDLE, "--out", _DIGITS / "bundle")
    tmp_path.joinpath("mine").write_text("keep me")
    assert "is not a bundle" in error_of(*_BUNDLE, "--out", tmp_path, "--force")
    assert tmp_path.joinpath("mine").read_text() == "keep me"


def test_only_contracts_with_labels_need_one_in_each_row(tmp_path: Path) -> None:
    (tmp_path / "images.zip").symlink_to(_FEWER / "images.zip")
    lines = (_FEWER / "labels.csv").read_text().splitlines()
    without = [",".join((lines[1].split(",")[0], *[""] * lines[1].count(",")))]
    (tmp_path / "labels.csv").write_text("\n".join([lines[0], *without, *lines[2:]]) + "\n")
    promise = ("--epsilon", 0.1, "--delta", 0.1)
    certified = _json(_BUNDLE[0], "--data", tmp_path, *promise)
    assert certified["certified"] and certified == _json(*_FEWER_ROWS[:3], *promise)
    refused = (_BUNDLE[0], "--data", tmp_path, "--loss", "harm", *promise)
    sentence = "has 1 row without a label: the contract compares answers with labels"
    assert sentence in in_one_line(_run(*refused, code=2).stderr)
    (tmp_path / "labels.csv").unlink()
    assert certified == _json(_BUNDLE[0], "--data", tmp_path, *promise)
    assert "labels.csv cannot be read: there is no such file" in _run(*refused, code=2).stderr


def test_rows_without_a_label_prove_no_accuracy(rows: Evidence) -> None:
    truth = {LABEL: np.where(np.arange(len(rows)) % 10, -1, rows.truth[LABEL])}
    with pytest.raises(ConfigError, match="has 5,400 rows without a label: the contract compares answers with labels"):
        replace(rows, truth=truth).losses("harm")
    assert replace(rows, truth=truth).losses("disagreement").tolist() == rows.losses("disagreement").tolist()


_OPENED = open_bundle(_DIGITS / "bundle")


@pytest.fixture(scope="module")
def rows() -> Evidence:
    """An edge that is often wrong of classes from seven on, and else the more seldom the higher its score."""
    random = np.random.default_rng(3)
    full = random.integers(0, 10, 6000)
    scores = random.random(6000)
    wrong = random.random(6000) < np.where(full >= 7, 0.5, 0.2 * (1 - scores) ** 2)
    edge = np.where(wrong, (full + random.integers(1, 3, 6000)) % 10, full)
    truth = np.where(random.random(6000) < 0.03, (full + 5) % 10, full)
    return _evidence(scores, edge, full, truth)


def _evidence(scores: Any, edge: Any, full: Any, truth: Any, groups: tuple[str, ...] = ()) -> Evidence:
    """The evidence of answers that are certain of one class."""
    ours, theirs = ({PROBABILITIES: np.eye(10, dtype=np.float32)[labels]} for labels in (edge, full))
    rows = EdgeRows(_OPENED.manifest.task, ours, {})
    return Evidence(_OPENED.manifest.edge[0], rows, scores, theirs, {LABEL: truth}, groups)


def _labels(outputs: Any) -> Any:
    return outputs[PROBABILITIES].argmax(axis=1)


@pytest.mark.parametrize("select", [0.0, 0.3])
def test_each_class_is_certified_on_its_own_rows(rows: Evidence, select: float) -> None:
    terms = Terms(epsilon=0.08, delta=0.1, score="bundle", seed=2, select_fraction=select)
    found = certify_classes(_OPENED, rows, terms)
    labels, result = _OPENED.manifest.labels, found.result
    edge, full = _labels(rows.edge.outputs), _labels(rows.full)
    assert isinstance(result, GroupsResult) and set(result.groups) == set(labels)
    rest = found.selection.rest
    assert len(rest) == 6000 * (1 - select)
    part = np.setdiff1d(np.arange(6000), rest)
    for at, label in enumerate(labels):
        mine, placing = rest[edge[rest] == at], part[edge[part] == at]
        losses = (edge != full)[mine]
        starts = starts_at(rows.scores[placing], start_shares(len(mine))) if select else None
        assert result.groups[label] == certify(rows.scores[mine], losses, 0.08, 0.1 / 10, starts=starts, seed=2)
    assert not result.groups["nine"].certified and result.groups["three"].certified

    certificate = found.certificate
    thresholds = {label: group.threshold for label, group in result.groups.items()}
    assert {label: group.threshold for label, group in certificate.groups.items()} == thresholds
    assert certificate.threshold == min(limit for limit in thresholds.values() if limit is not None)
    assert certificate.risk_upper == max(group.risk_upper or 0 for group in result.groups.values()) <= 0.08
    assert certificate.n == sum(group.n for group in result.groups.values()) == len(rest)
    limits = [thresholds[labels[at]] for at in edge[rest]]
    kept = [limit is not None and sure >= limit for sure, limit in zip(rows.scores[rest], limits, strict=True)]
    assert certificate.kept == pytest.approx(np.mean(kept))
    assert certificate.audit_epsilon == 0.08
    assert certificate.threshold_for("nine") == np.inf
    other = replace(found, selection=replace(found.selection, score=Score("entropy")))
    strictest = max(limit for limit in thresholds.values() if limit is not None)
    assert policy_of(_OPENED.manifest.policy, other).threshold == strictest  # of classes without a certificate
    model = msgspec.structs.replace(_OPENED.manifest.edge[0], certificate=certificate)
    manifest = msgspec.structs.replace(_OPENED.manifest, edge=(model,))
    assert parse_manifest(encode_manifest(manifest)) == manifest


def test_audit_bound_of_harm_is_the_observed_disagreement(rows: Evidence) -> None:
    certificate = certify_classes(_OPENED, rows, Terms(0.08, 0.1, "harm", "bundle", select_fraction=0)).certificate
    edge = _labels(rows.edge.outputs)
    kept = [
        sure >= certificate.threshold_for(_OPENED.manifest.labels[at])
        for sure, at in zip(rows.scores, edge, strict=True)
    ]
    assert (edge != _labels(rows.full))[kept].mean() < certificate.audit_epsilon < 0.1


def test_audits_test_the_upper_bound_of_the_disagreement() -> None:
    terms, differs = Terms(0.05, 0.05, "harm"), np.repeat([0.0, 1.0], [70, 30])
    bound = auditable_epsilon(terms, differs)
    as_few = sum(math.comb(100, wrong) * bound**wrong * (1 - bound) ** (100 - wrong) for wrong in range(31))
    assert as_few == pytest.approx(0.05)
    assert auditable_epsilon(terms, np.zeros(59)) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert auditable_epsilon(terms, np.ones(9)) == 0.999
    assert auditable_epsilon(replace(terms, contract="disagreement"), differs) == 0.05


@pytest.fixture(scope="module")
def masks() -> Evidence:
    """Masks of four pixels, labelled with the class 0: the models lose a part of most of them."""
    random, n = np.random.default_rng(3), 800
    scores = random.random(n)
    task = Segmentation(("floor", "crack"), width=4, height=1, counted=("floor",))
    wrong = {
        "edge": random.integers(0, 2, (n, 1, 4)) * (random.random((n, 1, 4)) > scores[:, None, None] + 0.3),
        "full": random.integers(0, 2, (n, 1, 4)) * (random.random((n, 1, 4)) > 0.9),
    }
    edge, full = ({MASK: mask.astype(np.uint8), CONFIDENCE: np.ones(n, np.float32)} for mask in wrong.values())
    truth = {MASK: np.zeros((n, 1, 4), np.uint8)}
    return Evidence(_OPENED.manifest.edge[0], EdgeRows(task, edge, {}), scores, full, truth)


def test_harm_of_graded_losses_is_what_the_edge_adds(masks: Evidence) -> None:
    added = masks.truth_losses(masks.edge.outputs) - masks.truth_losses(masks.full)
    assert masks.losses("harm").tolist() == np.maximum(added, 0).tolist()
    assert masks.losses("harm").mean() > 0.05  # and not 0 where the full model is never right
    terms = Terms(0.03, 0.1, "harm", "bundle", select_fraction=0)
    found = certify_bundle(_OPENED, masks, terms)
    certificate = found.certificate
    assert certificate is not None and found.graded and certificate.graded
    assert certificate.promise.startswith("the mean loss that edge answers add to the full model's is at most 3 %")
    kept = masks.scores >= certificate.threshold
    differs = masks.losses("disagreement")[kept]
    assert (differs > 0).mean() > certificate.audit_epsilon > differs.mean()
    assert certificate.audit_epsilon < differs.mean() + 0.03


def test_stream_of_graded_losses_bounds_the_mean(masks: Evidence) -> None:
    found = certify_stream_bundle(_OPENED, masks, Terms(0.02, 0.1, score="bundle", select_fraction=0))
    certificate = found.certificate
    assert certificate is not None and certificate.graded and 0 < certificate.kept < 1
    added = masks.truth_losses(masks.edge.outputs) - masks.truth_losses(masks.full)
    assert (added * (masks.scores >= certificate.threshold)).mean() <= certificate.risk_upper <= 0.02


def test_stream_is_certified_on_paired_costs(rows: Evidence) -> None:
    found = certify_stream_bundle(_OPENED, rows, Terms(0.03, 0.05, score="bundle", seed=1, select_fraction=0))
    truth = rows.truth[LABEL]
    costs = net_loss(_labels(rows.edge.outputs) == truth, _labels(rows.full) == truth)
    expected = certify_stream(rows.scores, costs, 0.03, 0.05, seed=1)
    certificate = found.certificate
    assert certificate is not None and expected.certified
    assert (certificate.contract, certificate.threshold, certificate.kept, certificate.risk_upper) == (
        "stream", expected.threshold, expected.kept, expected.risk_upper,
    )  # fmt: skip
    assert (
        certificate.promise
        == "the tiered accuracy is at most 3 percentage points below the full model's, with confidence 95 %"
    )
    assert certificate.audit_epsilon is None  # audits see no labels
    assert certificate.histogram is not None


def test_selection_rows_place_the_thresholds_of_the_stream(rows: Evidence) -> None:
    found = certify_stream_bundle(_OPENED, rows, Terms(0.03, 0.05, seed=1))
    assert (found.selection.used, found.result.n) == (600, 5400)
    assert found.certificate.score_digest == found.selection.score.digest


def test_too_few_rows_of_a_stream_are_counted(rows: Evidence) -> None:
    edge, full = _labels(rows.edge.outputs)[:50], _labels(rows.full)[:50]
    few = _evidence(rows.scores[:50], edge, full, full)
    found = certify_stream_bundle(_OPENED, few, Terms(0.02, 0.05))
    assert found.certificate is None and not found.result.certified
    assert found.result.n_needed > 100


def test_known_groups_are_proved_separately(rows: Evidence) -> None:
    sites = ["north" if at % 3 else "south" for at in range(6000)]
    result = certify_by(_OPENED, rows, sites, "group", Terms(0.3, 0.1, score="bundle", select_fraction=0)).result
    assert isinstance(result, GroupsResult)
    assert list(result.groups) == ["north", "south"] and result.certified and result.n == 6000
    assert {site: group.n for site, group in result.groups.items()} == {"north": 4000, "south": 2000}


def test_it_is_said_that_one_row_of_each_group_counts(rows: Evidence) -> None:
    clips = replace(rows, clusters=tuple(f"clip {at % 40}" for at in range(6000)))
    terms = Terms(0.3, 0.1, score="bundle", select_fraction=0)
    assert not list(caveats(certify_bundle(_OPENED, rows, terms)))
    (sentence,) = caveats(certify_bundle(_OPENED, clips, terms))
    assert "one of each is evidence: 40 of 6,000 rows" in sentence


def test_groups_are_read_from_a_file(tmp_path: Path) -> None:
    dataset = open_dataset(_DIGITS / "heldout", 4)
    names, file = [sample.file for sample in dataset.samples], tmp_path / "groups.csv"
    file.write_text(
        "group,file\n" + "".join(f"site {at % 2},{name}\n" for at, name in enumerate(names)) + "a,other.png\n"
    )
    assert read_groups(file, dataset) == ["site 0", "site 1"] * 2
    file.write_text(file.read_text().replace("group,file", "\ufeff group, file"))
    assert read_groups(file, dataset) == ["site 0", "site 1"] * 2
    for text, message in (
        (f"file,group\n{names[0]},\n", ":2 needs both"),
        (f"file,group\n{names[0]},a\n{names[0]},b\n", ":3 puts .* into a second group"),
        ('file,group\n"a,b\n', r":2 opens a quote that is not closed"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_groups(file, dataset)
    with pytest.raises(ConfigError, match="none does not exist"):
        read_groups(tmp_path / "none", dataset)


def test_command_certifies_a_stream(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = _run(*_BUNDLE, "--epsilon", 0.02, "--contract", "stream", "--out", out).stdout
    assert (
        "the tiered accuracy is at most 2 percentage points below the full model's, with confidence 90 %, when" in text
    )
    (variant,) = json_of("evaluate", out, *_BUNDLE[1:3])["variants"]
    certificate = open_bundle(out).manifest.edge[0].certificate
    assert (variant["threshold"], variant["tiered"]["edge_share"], variant["by"]) == (
        certificate.threshold,
        certificate.kept,
        "",
    )


def test_command_reports_each_class_and_group(tmp_path: Path) -> None:
    found = _json(*_BUNDLE, "--epsilon", 0.05, "--by", "class")
    assert list(found)[:8] == ["certified", "threshold", "kept", "risk_upper", "n", "n_needed", "by", "groups"]
    assert found["by"] == "class" and found["groups"]["one"]["n_needed"] >= found["n_needed"] > 0
    file = tmp_path / "groups.csv"
    names = [sample.file for sample in open_dataset(_DIGITS / "heldout").samples]
    file.write_text("file,group\n" + "".join(f"{name},{'ab'[at % 2]}\n" for at, name in enumerate(names)))
    text = _run(*_BUNDLE, "--epsilon", 0.08, "--groups", file).stdout
    assert "Certified 2 of 2 by group on 599 rows" in text and "\n a " in text


def test_only_twenty_uncertified_groups_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {f"class-{at}": CertificationResult(False, None, 0.0, None, 1, 500 - at) for at in range(467)}
    groups["good"] = CertificationResult(True, 0.5, 1.0, 0.04, 99, 0)
    result = GroupsResult(True, 0.5, 0.1, 0.04, 566, 0, by="class", groups=groups)
    print_report(Report(result, groups_text(result)), Output.TEXT)
    text = capsys.readouterr().out
    assert text.count("\n class-") == 20 and "class-466 " in text and "\n good" in text
    assert "Nothing is proved of 447 more" in text


def test_command_says_that_one_answer_would_keep_the_promise() -> None:
    terms = (*_BUNDLE[:3], "--score", "bundle", "--delta", 0.1, "--epsilon")
    found = _json(*terms, 0.95)
    answer, share = found["usual_answer"]["answer"], found["usual_answer"]["share"]
    assert 0.05 <= share < 0.2
    text = in_one_line(_run(*terms, 0.95).stdout)
    assert f"The full model answers '{answer}' in" in text and "Name an event with --promise" in text
    assert _json(*terms, 0.05)["usual_answer"] is None


def test_incompatible_contract_options_are_refused(tmp_path: Path) -> None:
    for arguments, message in (
        (("--contract", "stream", "--by", "class"), "about all answers together"),
        (("--contract", "stream", "--loss", "harm"), "about all answers together"),
        (("--by", "class", "--groups", tmp_path / "g"), "name one of them"),
        (("--groups", tmp_path / "g", "--out", tmp_path / "x"), "a device does not know the group of an input"),
    ):
        assert message in _run(*_BUNDLE, "--epsilon", 0.05, *arguments, code=2).stderr
    table = ("--scores", "-", "--epsilon", 0.1, "--delta", 0.1, "--by", "class")
    assert "go with a bundle" in _run(*table, code=2).stderr
