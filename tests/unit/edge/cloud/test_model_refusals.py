from support.logs import captured_lines

from firstline_core.clock import SimulatedClock
from firstline_core.errors import InvalidTensorError, LinkDownError, ModelMismatchError, UnknownModelError
from firstline_edge.cloud.client import ModelRefusals


def test_a_new_refusal_is_logged_once_and_cleared_by_an_answer() -> None:
    model_refusals = ModelRefusals(SimulatedClock())
    with captured_lines() as lines:
        for _ in range(3):
            model_refusals.record(("m", "1"), ModelMismatchError("Other bundle."))
        assert model_refusals.message_of(("m", "1")).startswith("Other bundle. Corrections wait 60 more min ")
        model_refusals.record(("m", "1"), UnknownModelError("No m."))
        model_refusals.clear(("m", "1"))
        model_refusals.clear(("m", "1"))
    assert [(line["level"], line.get("error")) for line in lines] == [
        ("warning", "Other bundle."),
        ("warning", "No m."),
        ("info", None),
    ]
    assert model_refusals.message_of(("m", "1")) == ""


def test_faults_of_requests_and_links_are_not_recorded() -> None:
    model_refusals = ModelRefusals(SimulatedClock())
    with captured_lines() as lines:
        model_refusals.record(("m", "1"), InvalidTensorError("Bad row."))
        model_refusals.record(("m", "1"), LinkDownError("Down."))
    assert lines == [] and model_refusals.message_of(("m", "1")) == ""
