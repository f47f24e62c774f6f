from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline.cli.certificate_text import groups_text
from firstline.cli.command import Report, print_report
from firstline.cli.output import Output
from firstline.workbench.certify import (
    GroupsProof,
    Terms,
    certify_by,
    certify_classes,
    certify_stream_bundle,
    policy_of,
)
from firstline.workbench.dataset import open_dataset, read_groups
from firstline.workbench.evidence import Evidence
from firstline_core.bundle.manifest import Score, encode_manifest, parse_manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import Proof, certify, start_shares, starts_at
from firstline_core.routing.contracts import certify_stream, net_loss

_DIGITS = Path(__file__).parents[4] / "models/digits"
_BUNDLE = open_bundle(_DIGITS / "bundle")
_DATA = (str(_DIGITS / "bundle"), "--data", str(_DIGITS / "heldout"), "--delta", "0.1")


@pytest.fixture(scope="module")
def rows() -> Evidence:
    """An edge that is often wrong of classes from seven on, and else the more seldom the higher its score."""
    random = np.random.default_rng(3)
    full = random.integers(0, 10, 6000)
    scores = random.random(6000)
    wrong = random.random(6000) < np.where(full >= 7, 0.5, 0.2 * (1 - scores) ** 2)
    edge = np.where(wrong, (full + random.integers(1, 3, 6000)) % 10, full)
    truth = np.where(random.random(6000) < 0.03, (full + 5) % 10, full)
    return Evidence(_BUNDLE.manifest.edge[0], np.eye(10, dtype=np.float32)[edge], None, scores, full, truth)


@pytest.mark.parametrize("select", [0.0, 0.3])
def test_each_class_is_held_to_its_own_rows(rows: Evidence, select: float) -> None:
    terms = Terms(epsilon=0.08, delta=0.1, score="bundle", seed=2, select_fraction=select)
    found = certify_classes(_BUNDLE, rows, terms)
    labels, proof = _BUNDLE.manifest.labels, found.proof
    assert isinstance(proof, GroupsProof) and set(proof.groups) == set(labels)
    rest = found.selection.rest
    assert len(rest) == 6000 * (1 - select)
    part = np.setdiff1d(np.arange(6000), rest)
    for at, label in enumerate(labels):
        mine, placing = rest[rows.edge[rest] == at], part[rows.edge[part] == at]
        losses = (rows.edge != rows.full)[mine]
        starts = starts_at(rows.scores[placing], start_shares(len(mine))) if select else None
        assert proof.groups[label] == certify(rows.scores[mine], losses, 0.08, 0.1 / 10, starts=starts, seed=2)
    assert not proof.groups["nine"].certified and proof.groups["three"].certified

    certificate = found.certificate
    assert certificate is not None
    thresholds = {label: group.threshold for label, group in proof.groups.items()}
    assert {label: group.threshold for label, group in certificate.groups.items()} == thresholds
    assert certificate.threshold == min(limit for limit in thresholds.values() if limit is not None)
    assert certificate.risk_upper == max(group.risk_upper or 0 for group in proof.groups.values()) <= 0.08
    assert certificate.n == sum(group.n for group in proof.groups.values()) == len(rest)
    limits = [thresholds[labels[at]] for at in rows.edge[rest]]
    kept = [limit is not None and sure >= limit for sure, limit in zip(rows.scores[rest], limits, strict=True)]
    assert certificate.kept == pytest.approx(np.mean(kept))
    assert certificate.audit_epsilon == 0.08
    assert certificate.threshold_for("nine") == np.inf
    other = replace(found, selection=replace(found.selection, score=Score("entropy")))
    strictest = max(limit for limit in thresholds.values() if limit is not None)
    assert policy_of(_BUNDLE.manifest.policy, other).threshold == strictest  # of classes without a certificate
    model = msgspec.structs.replace(_BUNDLE.manifest.edge[0], certificate=certificate)
    manifest = msgspec.structs.replace(_BUNDLE.manifest, edge=(model,))
    assert parse_manifest(encode_manifest(manifest)) == manifest


def test_what_audits_test_of_harm_is_the_disagreement_seen(rows: Evidence) -> None:
    certificate = certify_classes(_BUNDLE, rows, Terms(0.08, 0.1, "harm", "bundle", select_fraction=0)).certificate
    assert certificate is not None and certificate.audit_epsilon is not None
    kept = [
        sure >= certificate.threshold_for(_BUNDLE.manifest.labels[at])
        for sure, at in zip(rows.scores, rows.edge, strict=True)
    ]
    assert (rows.edge != rows.full)[kept].mean() < certificate.audit_epsilon < 0.1


def test_the_stream_is_certified_on_paired_costs(rows: Evidence) -> None:
    found = certify_stream_bundle(_BUNDLE, rows, Terms(0.03, 0.05, score="bundle", seed=1, select_fraction=0))
    costs = net_loss(rows.edge == rows.truth, rows.full == rows.truth)
    expected = certify_stream(rows.scores, costs, 0.03, 0.05, seed=1)
    certificate = found.certificate
    assert certificate is not None and expected.certified
    assert (certificate.contract, certificate.threshold, certificate.kept, certificate.risk_upper) == (
        "stream", expected.threshold, expected.kept, expected.given_up_upper,
    )  # fmt: skip
    assert (
        certificate.promise
        == "the tiered accuracy is at most 3 percentage points below the full model's, with confidence 95 %"
    )
    assert certificate.audit_epsilon is None  # audits see no labels
    assert certificate.histogram is not None


def test_a_part_of_the_rows_places_the_streams_thresholds(rows: Evidence) -> None:
    found = certify_stream_bundle(_BUNDLE, rows, Terms(0.03, 0.05, seed=1))
    assert (found.selection.used, found.proof.n) == (600, 5400)
    certificate = found.certificate
    assert certificate is not None and certificate.score_digest == found.selection.score.digest


def test_a_stream_of_too_few_rows_says_how_many_more(rows: Evidence) -> None:
    few = Evidence(rows.variant, rows.probabilities[:50], None, rows.scores[:50], rows.full[:50], rows.full[:50])
    found = certify_stream_bundle(_BUNDLE, few, Terms(0.02, 0.05))
    assert found.certificate is None and not found.proof.certified
    assert found.proof.n_needed > 100


def test_known_groups(rows: Evidence) -> None:
    sites = ["north" if at % 3 else "south" for at in range(6000)]
    proof = certify_by(_BUNDLE, rows, sites, "group", Terms(0.3, 0.1, score="bundle", select_fraction=0)).proof
    assert isinstance(proof, GroupsProof)
    assert list(proof.groups) == ["north", "south"] and proof.certified and proof.n == 6000
    assert {site: group.n for site, group in proof.groups.items()} == {"north": 4000, "south": 2000}


def test_groups_of_a_file(tmp_path: Path) -> None:
    dataset = open_dataset(_DIGITS / "heldout", 4)
    names, file = [sample.file for sample in dataset.samples], tmp_path / "groups.csv"
    file.write_text(
        "group,file\n" + "".join(f"site {at % 2},{name}\n" for at, name in enumerate(names)) + "a,other.png\n"
    )
    assert read_groups(file, dataset) == ["site 0", "site 1"] * 2
    for text, says in (
        ("file,site\n", "has no column group"),
        (f"file,group\n{names[0]},\n", ":2 needs both"),
        (f"file,group\n{names[0]},a\n{names[0]},b\n", ":3 puts .* into a second group"),
        (f"file,group\n{names[0]},a\n", f"no group for '{names[1]}' and 2 other"),
        ('file,group\n"a,b\n', "is not a CSV file"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            read_groups(file, dataset)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_groups(tmp_path / "none", dataset)


def _run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["certify", *_DATA, *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_the_command_certifies_a_stream(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = _run("--epsilon", 0.02, "--contract", "stream", "--out", out).stdout
    assert (
        "the tiered accuracy is at most 2 percentage points below the full model's, with confidence 90 %, when" in text
    )
    evaluated = CliRunner().invoke(app, ["evaluate", str(out), *_DATA[1:3], "-o", "json"])
    (variant,) = json.loads(evaluated.stdout)["variants"]
    certificate = open_bundle(out).manifest.edge[0].certificate
    assert certificate is not None
    assert (variant["threshold"], variant["tiered"]["edge_share"], variant["by"]) == (
        certificate.threshold,
        certificate.kept,
        "",
    )


def test_the_command_tells_of_each_class_and_group(tmp_path: Path) -> None:
    found = json.loads(_run("--epsilon", 0.05, "--by", "class", "-o", "json").stdout)
    assert list(found)[:8] == ["certified", "threshold", "kept", "risk_upper", "n", "n_needed", "by", "groups"]
    assert found["by"] == "class" and found["groups"]["one"]["n_needed"] >= found["n_needed"] > 0
    file = tmp_path / "groups.csv"
    names = [sample.file for sample in open_dataset(_DIGITS / "heldout").samples]
    file.write_text("file,group\n" + "".join(f"{name},{'ab'[at % 2]}\n" for at, name in enumerate(names)))
    text = _run("--epsilon", 0.08, "--groups", file).stdout
    assert "Certified 2 of 2 by group on 599 rows" in text and "\n a " in text


def test_of_hundreds_of_groups_those_without_proof_do_not_fill_pages(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {f"class-{at}": Proof(False, None, 0.0, None, 1, 500 - at) for at in range(467)}
    groups["good"] = Proof(True, 0.5, 1.0, 0.04, 99, 0)
    proof = GroupsProof(True, 0.5, 0.1, 0.04, 566, 0, by="class", groups=groups)
    print_report(Report(proof, groups_text(proof)), Output.TEXT)
    text = capsys.readouterr().out
    assert text.count("\n class-") == 20 and "class-466 " in text and "\n good" in text
    assert "Nothing is proved of 447 more" in text


def test_what_does_not_go_together_gets_a_sentence(tmp_path: Path) -> None:
    for arguments, says in (
        (("--contract", "stream", "--by", "class"), "about all answers together"),
        (("--contract", "stream", "--loss", "harm"), "about all answers together"),
        (("--by", "class", "--groups", tmp_path / "g"), "name one of them"),
        (("--groups", tmp_path / "g", "--out", tmp_path / "x"), "a device does not know the group of an input"),
    ):
        assert says in _run("--epsilon", 0.05, *arguments, code=2).stderr
    table = ["certify", "--scores", "-", "--epsilon", "0.1", "--delta", "0.1", "--by", "class"]
    assert "go with a bundle" in CliRunner().invoke(app, table).stderr
