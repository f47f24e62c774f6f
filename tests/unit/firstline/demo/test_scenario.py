import pytest

from firstline.demo.scenario import KINDS, CertifiedResult, Record, percentiles_ms, summarise
from firstline_core.types import Status, Tier

CERTIFIED = CertifiedResult("at most 2 % of edge answers disagree", 2, 1)


def answered(tier: Tier, label: str = "7", *, ms: float = 1.0, offline: bool = False) -> Record:
    return Record(
        "7",
        offline,
        0.0,
        label=label,
        tier=tier,
        status=Status.FINAL,
        ms=ms,
        settled=True,
        certified=True,
        last_certified=True,
    )


def test_summary_counts_first_answers_and_judges_last_ones() -> None:
    corrected = Record("7", True, 0.0, label="1", tier=Tier.EDGE, status=Status.PROVISIONAL, ms=3.0)
    corrected.last_label, corrected.settled, corrected.last_certified = "7", True, True
    records = [answered(Tier.EDGE, ms=1.0), answered(Tier.EDGE, "9", ms=2.0), answered(Tier.CLOUD), corrected]
    summary = summarise(records, edge_only=0.5, cloud_only=1.0, certified=CERTIFIED, bytes_sent=99)
    assert summary["requests"] == sum(summary["answers"].values()) == 4
    assert summary["answers"] == {"edge": 2, "cache": 0, "cloud": 1, "provisional": 1}
    assert summary["accuracy"]["tiered"] == 0.75
    assert summary["latency_ms"]["edge"]["p50"] == 1.5
    assert summary["latency_ms"]["cache"] == {"p50": None, "p99": None}
    assert summary["offline"] == {"answered": 1, "corrected": 1}
    assert summary["lost"] == 0
    assert set(summary["latency_ms"]) == set(KINDS)
    assert summary["certified"] == {
        "at_first": 3, "at_last": 4, "promise": CERTIFIED.promise, "images": {"kept": 2, "disagreeing": 1},
    }  # fmt: skip


def test_missing_answer_and_missing_correction_are_lost() -> None:
    unanswered = Record("7", True, 0.0)
    broken = Record("7", True, 0.0, label="1", tier=Tier.EDGE, status=Status.PROVISIONAL)
    summary = summarise([unanswered, broken], edge_only=0, cloud_only=0, certified=CERTIFIED, bytes_sent=0)
    assert summary["lost"] == 2
    assert summary["accuracy"]["tiered"] == 0
    assert summary["offline"] == {"answered": 1, "corrected": 0}
    assert (summary["certified"]["at_first"], summary["certified"]["at_last"]) == (0, 0)


def test_percentiles_are_those_of_the_sample() -> None:
    assert percentiles_ms([float(ms) for ms in range(101)]) == {"p50": 50.0, "p99": pytest.approx(99.0)}
