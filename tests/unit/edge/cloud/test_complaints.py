from __future__ import annotations

from support.logs import captured_lines

from firstline_core.errors import InvalidTensorError, LinkDownError, ModelMismatchError, UnknownModelError
from firstline_edge.cloud.complaints import Complaints


def test_what_is_new_is_warned_of_once_and_forgotten_with_an_answer() -> None:
    complaints = Complaints()
    with captured_lines() as lines:
        for _ in range(3):
            complaints.note("m", "1", ModelMismatchError("Other bundle."))
        assert complaints.of("m", "1") == "Other bundle."
        complaints.note("m", "1", UnknownModelError("No m."))
        complaints.settle("m", "1")
        complaints.settle("m", "1")
    assert [(line["level"], line.get("error")) for line in lines] == [
        ("warning", "Other bundle."),
        ("warning", "No m."),
        ("info", None),
    ]
    assert complaints.of("m", "1") == ""


def test_one_requests_fault_and_the_links_are_not_the_models() -> None:
    complaints = Complaints()
    with captured_lines() as lines:
        complaints.note("m", "1", InvalidTensorError("Bad row."))
        complaints.note("m", "1", LinkDownError("Down."))
    assert lines == [] and complaints.of("m", "1") == ""
