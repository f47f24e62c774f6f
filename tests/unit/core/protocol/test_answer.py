"""An answer in V2 parameters."""

from typing import Any

import pytest
from msgspec.structs import replace

from firstline_core.errors import InvalidTensorError
from firstline_core.protocol.answer import from_dict, from_parameters, to_dict, to_parameters
from firstline_core.types import Answer, Attempt, Reason, RowAnswer, Status, Tier

ROW = RowAnswer(Tier.CACHE, Reason.CONFIDENT, Status.FINAL, True, 0.75, "d")
ANSWER = Answer(
    request_id="id",
    status=Status.PROVISIONAL,
    certified=False,
    durable=True,
    tier=Tier.EDGE,
    reason=Reason.LINK_DOWN,
    confidence=0.25,
    model_digest="d",
    attempts=(Attempt(Tier.CLOUD, "link_down", 0.5),),
    rows=(ROW, replace(ROW, confidence=None)),
)


def test_v2_parameters_are_scalars_only() -> None:
    parameters = to_parameters(ANSWER)
    assert parameters == {
        "request_id": "id",
        "status": "provisional",
        "certified": False,
        "durable": True,
        "tier": "edge",
        "reason": "link_down",
        "confidence": 0.25,
        "model_digest": "d",
        "attempts": '[{"tier":"cloud","outcome":"link_down","ms":0.5}]',
        "rows": (
            '[{"tier":"cache","reason":"confident","status":"final","certified":true,"confidence":0.75,'
            '"model_digest":"d"},{"tier":"cache","reason":"confident","status":"final","certified":true,'
            '"model_digest":"d"}]'
        ),
    }
    assert from_parameters(parameters) == ANSWER


def test_unknown_fields_are_omitted() -> None:
    bare = replace(ANSWER, confidence=None, rows=(), attempts=())
    parameters = to_parameters(bare)
    assert "confidence" not in parameters
    assert "rows" not in parameters
    assert from_parameters(parameters) == bare
    assert to_dict(bare)["attempts"] == []


@pytest.mark.parametrize("changed", [True, False])
def test_a_correction_states_whether_the_answer_changed(changed: bool) -> None:
    corrected = replace(ANSWER, status=Status.FINAL, changed=changed)
    parameters = to_parameters(corrected)
    assert parameters["changed"] is changed
    assert from_parameters(parameters) == corrected
    with pytest.raises(InvalidTensorError, match="'changed': expected `bool"):
        from_parameters(parameters | {"changed": 1})


def test_a_refusal_is_a_sentence() -> None:
    refused = replace(ANSWER, reason=Reason.CLOUD_ERROR, refusal="Row 0 is not an image.")
    parameters = to_parameters(refused)
    assert parameters["refusal"] == "Row 0 is not an image."
    assert from_parameters(parameters) == refused


def test_an_answer_is_decoded_from_its_dictionary() -> None:
    assert from_dict(to_dict(ANSWER)) == ANSWER
    bare = replace(ANSWER, confidence=None, attempts=(), rows=())
    assert from_dict(to_dict(ANSWER) | {"confidence": None, "attempts": None, "rows": None}) == bare
    with pytest.raises(InvalidTensorError, match="The answer's 'rows'"):
        from_dict(to_dict(ANSWER) | {"rows": "[]"})


def test_parameters_of_another_server() -> None:
    assert from_parameters({"tier": "gold", "status": "ok"}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"status": "done"},
        {"status": None},
        {"certified": "true"},
        {"durable": 1},
        {"tier": 3},
        {"reason": "because"},
        {"confidence": True},
        {"confidence": float("nan")},
        {"confidence": float("inf")},
        {"model_digest": None},
        {"request_id": 7},
        {"attempts": []},
        {"attempts": "not json"},
        {"attempts": "{}"},
        {"attempts": "[7]"},
        {"attempts": '[{"tier":"edge","outcome":"ok"}]'},
        {"rows": '[{"tier":"edge"}]'},
    ],
)
def test_a_bad_value_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidTensorError, match="The answer's '"):
        from_parameters(to_parameters(ANSWER) | change)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("key", "field"), [("attempts", "ms"), ("rows", "confidence")])
def test_numbers_that_are_not_finite_are_refused(key: str, field: str, number: float) -> None:
    record = to_dict(ANSWER)
    record[key][0][field] = number
    with pytest.raises(InvalidTensorError, match=rf"The answer's '{key}.*{field}'"):
        from_dict(record)
