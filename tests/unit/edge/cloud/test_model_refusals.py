from __future__ import annotations

from support.logs import captured_lines

from firstline_core.errors import InvalidTensorError, LinkDownError, ModelMismatchError, UnknownModelError
from firstline_edge.cloud.client import ModelRefusals


def test_what_is_new_is_warned_of_once_and_forgotten_with_an_answer() -> None:
    model_refusals = ModelRefusals()
    with captured_lines() as lines:
        for _ in range(3):
            model_refusals.record("m", "1", ModelMismatchError("Other bundle."))
        assert model_refusals.message_of("m", "1") == "Other bundle."
        model_refusals.record("m", "1", UnknownModelError("No m."))
        model_refusals.clear("m", "1")
        model_refusals.clear("m", "1")
    assert [(line["level"], line.get("error")) for line in lines] == [
        ("warning", "Other bundle."),
        ("warning", "No m."),
        ("info", None),
    ]
    assert model_refusals.message_of("m", "1") == ""


def test_one_requests_fault_and_the_links_are_not_the_models() -> None:
    model_refusals = ModelRefusals()
    with captured_lines() as lines:
        model_refusals.record("m", "1", InvalidTensorError("Bad row."))
        model_refusals.record("m", "1", LinkDownError("Down."))
    assert lines == [] and model_refusals.message_of("m", "1") == ""
