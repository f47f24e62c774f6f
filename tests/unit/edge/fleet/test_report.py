"""The report of a device to its fleet."""

import msgspec
import pytest

from firstline_core.fleet.twin import LIMIT_BYTES, SENTENCE_CHARACTERS, UPDATES, Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_edge.fleet.report import within_limit

MODEL = RunningModel("m" * 64, 2**53, variant="v" * 64, edge_digest="e" * 64, full_digest="f" * 64)


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}", "\0"])
def test_a_report_of_many_failures_is_short_enough(letter: str) -> None:
    failed = Update("n" * 64, 2**53, UpdateState.FAILED, rollout="r" * 64, message=letter * SENTENCE_CHARACTERS)
    report = within_limit(Reported("s" * 64, 1, models=(MODEL,) * 64, updates=(failed,) * UPDATES))
    assert len(msgspec.json.encode(report)) <= LIMIT_BYTES
    assert all(each.message for each in report.updates)


def test_a_short_report_says_everything() -> None:
    failed = Update("n" * 64, 1, UpdateState.FAILED, message="x" * SENTENCE_CHARACTERS)
    report = Reported("s", 1, updates=(failed,))
    assert within_limit(report) == report
