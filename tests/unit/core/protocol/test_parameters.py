"""An audit's note and a contract's notice, as V2 parameters."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from firstline_core.errors import InvalidTensorError, RequestError
from firstline_core.protocol.answer import from_dict, to_dict, to_parameters
from firstline_core.protocol.oip import Origin, decode_request, encode_request
from firstline_core.protocol.parameters import alarm_parameters, note_parameters, read_alarm, read_note
from firstline_core.types import Answer, AuditNote, ContractAlarm, InferRequest, Reason, Status, Tensor, Tier

NOTE = AuditNote(propensity=0.5, epsilon=0.05, threshold=0.9, edge_digest="0a" * 32)
ANSWER = Answer("id", Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, "d")


def test_a_note_is_four_parameters() -> None:
    parameters = note_parameters(NOTE)
    assert parameters == {
        "audit_propensity": 0.5,
        "audit_epsilon": 0.05,
        "audit_threshold": 0.9,
        "audit_edge_digest": "0a" * 32,
    }
    assert read_note(parameters, rows=1) == NOTE


def test_the_events_of_a_note_are_json_in_a_parameter() -> None:
    note = replace(NOTE, events={"missed person": 0.05, 'invented "car"': 0.1})
    parameters = note_parameters(note)
    assert parameters["audit_events"] == r'{"missed person":0.05,"invented \"car\"":0.1}'
    assert read_note(parameters, rows=1) == note
    assert (note.bounds, NOTE.bounds) == (note.events, {"": 0.05})


def test_whole_numbers_are_numbers() -> None:
    assert read_note(note_parameters(NOTE) | {"audit_propensity": 1, "audit_threshold": -7}, rows=1) == replace(
        NOTE, propensity=1.0, threshold=-7.0
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("propensity", 0),
        ("propensity", 1.5),
        ("propensity", float("nan")),
        ("propensity", "0.5"),
        ("epsilon", 0),
        ("epsilon", 1),
        ("epsilon", float("nan")),
        ("threshold", float("inf")),
        ("threshold", 10**400),
        ("edge_digest", "0A" * 32),
        ("edge_digest", "0a" * 31),
        ("edge_digest", 7),
        *(("events", value) for value in (7, "", "[]", '{"missed a": 1}', '{"missed a": "0.1"}', "[" * 10_000)),
    ],
)
def test_an_invalid_audit_parameter_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"audit_{name}"):
        read_note(note_parameters(NOTE) | {f"audit_{name}": value}, rows=1)


@pytest.mark.parametrize("name", note_parameters(NOTE))
def test_half_a_note_is_refused(name: str) -> None:
    half: dict[str, Any] = note_parameters(NOTE) | {name: None}
    with pytest.raises(RequestError, match=f"lacks {name}"):
        read_note(half, rows=1)


def test_an_audit_is_of_one_row() -> None:
    with pytest.raises(RequestError, match="one row"):
        read_note(note_parameters(NOTE), rows=2)


def test_a_request_without_an_audit_has_no_audit_parameters() -> None:
    request = InferRequest("m", (Tensor("x", np.zeros((1, 1), np.float32)),), "")
    body = encode_request(request, binary=False).body
    assert b"audit" not in body and b"alarm" not in body
    assert read_note({}, rows=5) is None
    assert read_alarm({}) is read_alarm({"alarm_edge_digest": None}) is None


@pytest.mark.parametrize("event", [{}, {"alarm_event": "missed person"}])
def test_alarms_are_accepted_only_from_callers_that_may_audit(event: dict[str, str]) -> None:
    alarm = ContractAlarm(NOTE.edge_digest, event.get("alarm_event", ""))
    sent = InferRequest("m", (Tensor("x", np.zeros((3, 1), np.float32)),), "", alarm=alarm)
    encoded = encode_request(sent)
    assert alarm_parameters(alarm) == {"alarm_edge_digest": NOTE.edge_digest} | event
    assert decode_request("m", encoded.body, encoded.header_length, Origin(trust_request_id=True)).alarm == alarm
    assert decode_request("m", encoded.body, encoded.header_length).alarm is None


@pytest.mark.parametrize("value", ["", "0A" * 32, "0a" * 31, True, 7, ["0a" * 32]])
def test_an_alarm_that_names_no_variant_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match="alarm_edge_digest"):
        read_alarm({"alarm_edge_digest": value})


def test_an_answer_without_a_notice_is_as_it_was() -> None:
    assert set(to_parameters(ANSWER)) == {
        *("request_id", "status", "certified", "durable", "tier", "reason", "model_digest", "attempts")
    }


@pytest.mark.parametrize(
    "parameters",
    [
        {"contract_alarm": 1},
        {"escalations_per_hour": 3},
        {"contract_alarm": True, "escalations_per_hour": -1},
        {"contract_alarm": True, "escalations_per_hour": float("nan")},
        {"contract_alarm": True, "escalations_per_hour": True},
        {"contract_alarm": True, "escalations_per_hour": "3"},
        {"contract_devices": 3},
        {"contract_alarm": True, "contract_devices": 0},
        {"contract_alarm": True, "contract_devices": 2**31},
        {"contract_alarm": True, "contract_devices": True},
        {"contract_alarm": True, "contract_devices": 2.0},
    ],
)
def test_an_invalid_notice_is_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(InvalidTensorError, match=r"contract_alarm|escalations_per_hour|contract_devices"):
        from_dict(to_dict(ANSWER) | parameters)
