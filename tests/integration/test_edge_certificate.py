"""From `firstline certify` to the answers of a device: certified there, and no longer once the bundle was changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.agent import CHECKOUT, edge_settings
from support.digits import HELDOUT, scans
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import open_bundle
from firstline_core.types import Answer, Reason
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.doctor_models import model_findings
from firstline_edge.cli.explain import describe
from firstline_edge.cli.status import describe as describe_status

pytestmark = pytest.mark.usefixtures("few_checked_rows")

PROMISE = "at most 3 % of edge answers disagree with the full model, with confidence 90 %"


def certified(out: Path, *promise: object) -> Path:
    """A bundle with a certificate of the command; returns its folder."""
    arguments = [CHECKOUT / "models" / "digits" / "bundle", *promise, "--data", HELDOUT, "--out", out]
    result = CliRunner().invoke(app, ["certify", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return out


async def ask(settings: Any) -> tuple[list[Answer], dict[str, Any], list[str]]:
    """What the agent says of some scans, of itself, and of the first scan when asked to explain."""
    async with EdgeAgent(settings) as agent:
        answers = [
            response.answer for scan in scans(40) if (response := await agent.data_plane.infer_file("digits", scan))
        ]
        status = agent.operations.status()
        agent.recorder.flush()
        lines = [json.loads(line) for line in agent.state.decisions_path.read_text().splitlines()]
    return [answer for answer in answers if answer is not None], status, describe(lines[-len(answers)])


async def test_device_uses_and_reports_the_certified_threshold_until_the_score_changes(tmp_path: Path) -> None:
    bundle = certified(tmp_path / "certified", "--epsilon", 0.03, "--delta", 0.1)
    settings = edge_settings(tmp_path / "state", models__directories=[str(bundle)])
    manifest = json.loads((bundle / MANIFEST_NAME).read_text())
    threshold = manifest["edge"][0]["certificate"]["threshold"]
    assert threshold < manifest["policy"]["threshold"]

    for _ in ("by the model", "from the cache"):
        answers, status, story = await ask(settings)
        for answer in answers:
            assert answer.certified == (answer.reason is Reason.CONFIDENT) == (answer.confidence >= threshold)
    assert any(answer.certified for answer in answers)
    (model,) = status["models"]
    assert (model["threshold"], model["uncertified"]) == (threshold, None)
    assert (model["certificate"]["epsilon"], model["certificate"]["delta"]) == (0.03, 0.1)
    assert f"        certified: {PROMISE}" in describe_status("http://h", status)
    assert story[-1].endswith(f"It is certified: {PROMISE}.")
    (finding, *_) = model_findings(settings, [open_bundle(bundle)])
    assert finding.detail.endswith(f"certified: {PROMISE}")
    other = edge_settings(tmp_path, models__directories=[str(bundle)], policy__kind="edge_only")
    (finding, *_) = model_findings(other, [open_bundle(bundle)])
    assert finding.detail.endswith("not certified: policy.kind is edge_only, which no certificate covers")

    # The cache has what was certified.
    manifest["policy"]["score"]["temperature"] = 0.5
    (bundle / MANIFEST_NAME).write_text(json.dumps(manifest))
    answers, status, story = await ask(settings)
    assert answers and not any(answer.certified for answer in answers)
    (model,) = status["models"]
    assert (model["threshold"], model["certificate"]) == (manifest["policy"]["threshold"], None)
    assert model["uncertified"] == "its certificate is void: it was made for another score"
    assert "not certified: its certificate is void" in " ".join(story)


async def test_device_uses_the_certified_threshold_of_each_class(tmp_path: Path) -> None:
    """Certified through the command with a loose promise, which 599 scans prove of some classes only."""
    out = certified(tmp_path / "by class", "--by", "class", "--epsilon", 0.14, "--delta", 0.4)
    groups = json.loads((out / MANIFEST_NAME).read_text())["edge"][0]["certificate"]["groups"]
    thresholds = {label: group["threshold"] for label, group in groups.items()}
    proved = [threshold for threshold in thresholds.values() if threshold is not None]
    assert 0 < len(proved) < 10

    settings = edge_settings(tmp_path / "state", models__directories=[str(out)])
    async with EdgeAgent(settings) as agent:
        for _ in ("by the model", "from the cache"):
            tiers = set()
            for scan in scans(60):
                answer = (response := await agent.data_plane.infer_file("digits", scan)).answer
                label = agent.data_plane.metadata("digits", "").labels[int(response.output("probabilities").argmax())]
                assert answer.confidence is not None
                confident = thresholds[label] is not None and answer.confidence >= thresholds[label]
                assert answer.certified == (answer.reason is Reason.CONFIDENT) == confident
                tiers.add(confident)
            assert tiers == {True, False}
        (model,) = agent.operations.status()["models"]
        assert (model["threshold"], model["certificate"]["by"]) == (min(proved), "class")
        assert model["certificate"]["thresholds"] == thresholds
        text = "\n".join(describe_status("http://h", agent.operations.status()))
        assert f"or more: {len(proved)} of 10 classes, each from a score of its own" in text
        assert "in each predicted class, with confidence 60 %" in text
        agent.recorder.flush()
        lines = [json.loads(line) for line in agent.state.decisions_path.read_text().splitlines()]
        assert any("or more, by predicted class)" in text for text in describe(lines[-1]))


async def test_stream_certificate_sets_the_threshold(tmp_path: Path) -> None:
    out = certified(tmp_path / "stream", "--contract", "stream", "--epsilon", 0.02, "--delta", 0.1)
    threshold = json.loads((out / MANIFEST_NAME).read_text())["edge"][0]["certificate"]["threshold"]
    settings = edge_settings(tmp_path / "state", models__directories=[str(out)])
    answers, status, story = await ask(settings)
    for answer in answers:
        assert answer.certified == (answer.reason is Reason.CONFIDENT) == (answer.confidence >= threshold)
    assert any(answer.certified for answer in answers)
    stated = "the tiered accuracy is at most 2 percentage points below the full model's, with confidence 90 %"
    assert status["models"][0]["certificate"]["promise"] == stated
    assert story[-1].endswith(f"It is certified: {stated}.")
    assert status["models"][0]["uncertified"] is None
    by_value = {"policy__kind": "value", "policy__least_value": 0.5}
    for name, settings in {"kind": by_value, "min_threshold": {"policy__min_threshold": threshold + 0.01}}.items():
        other = edge_settings(tmp_path / name, models__directories=[str(out)], **settings)
        answers, status, _ = await ask(other)
        assert any(answer.reason is Reason.CONFIDENT for answer in answers)
        assert not any(answer.certified for answer in answers)
        assert status["models"][0]["uncertified"].startswith(f"policy.{name} is")
