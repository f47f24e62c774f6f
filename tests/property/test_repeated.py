"""What is known of heads and replies that come again says the same as reading and writing them anew."""

from __future__ import annotations

import copy
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.protocol import oip, repeated, reply_form
from firstline_core.types import (
    Answer,
    Attempt,
    InferRequest,
    InferResponse,
    Reason,
    RequestedOutput,
    Status,
    Tensor,
    Tier,
)

TEXT = st.text(max_size=6) | st.sampled_from(["id", "timeout", '"id":"x"', "request_id", '"data": [1]', "data"])
UUIDS = st.sampled_from(["01890a5d-ac96-774b-bcce-b302099a8057", "01890A5D-AC96-774B-BCCE-B302099A8057", "no uuid"])
VALUES = st.none() | st.booleans() | st.integers(-5, 2**40) | TEXT


@st.composite
def heads(draw: st.DrawFn) -> dict[str, Any]:
    """Heads that are right, or nearly so: with the names that are looked for where they do not belong, too."""
    head: dict[str, Any] = {}
    if draw(st.booleans()):
        head["id"] = draw(TEXT | st.integers(0, 9))
    parameters: dict[str, Any] = {}
    for name, values in (
        ("request_id", UUIDS),
        ("timeout", st.integers(0, 10**16) | TEXT),
        ("id", VALUES),
        ("priority", st.integers(0, 4)),
        ("promised", st.booleans()),
        ("data", VALUES),
    ):
        if draw(st.integers(0, 3)) == 0:
            parameters[name] = draw(values)
    if parameters:
        head["parameters"] = parameters
    return head


def described(numbers: list[float], extra: dict[str, Any]) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [1, len(numbers)]} | extra


def bodies(head: dict[str, Any], numbers: list[float], form: str) -> tuple[bytes, int | None]:
    head = copy.deepcopy(head)
    if form == "json":
        head["inputs"] = [described(numbers, {"data": numbers})]
        return orjson.dumps(head), None
    if form == "nested":
        head["inputs"] = [described(numbers, {"data": [numbers]})]
        return orjson.dumps(head, option=orjson.OPT_INDENT_2), None
    raw = np.array(numbers, np.float32).tobytes()
    head["inputs"] = [described(numbers, {"parameters": {"binary_data_size": len(raw)}})]
    text = orjson.dumps(head)
    return text + raw, len(text)


def outcome(body: bytes, length: int | None, *, trusted: bool) -> object:
    try:
        request = oip.decode_request("m", body, length, now_s=7.0, principal="p", trust_request_id=trusted)
    except FirstlineError as error:
        return error.code, error.message
    keeps_id = trusted and b"request_id" in body
    return (
        *(request.id, request.deadline_s, request.priority, request.promised, request.outputs, request.principal),
        *(request.request_id if keeps_id and request.promised else len(request.request_id),),
        [(each.name, each.datatype, each.shape, each.array.tobytes()) for each in request.inputs],
    )


@given(
    heads(),
    st.lists(
        st.tuples(
            heads(), st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3)
        ),
        max_size=3,
    ),
    st.sampled_from(["json", "binary", "nested"]),
    st.booleans(),
)
def test_a_head_that_is_known_means_what_it_means(
    head: dict[str, Any], others: list[tuple[dict[str, Any], list[float]]], form: str, trusted: bool
) -> None:
    asked = [(head, [1.0, 2.5, -3.0])] * 3 + [(head | other, numbers) for other, numbers in others]
    known = repeated.PLANS = repeated.Plans()
    for each, numbers in asked:
        body, length = bodies(each, numbers, form)
        now = outcome(body, length, trusted=trusted)
        repeated.PLANS = repeated.Plans()  # that knows nothing
        try:
            assert now == outcome(body, length, trusted=trusted)
        finally:
            repeated.PLANS = known


def test_a_head_is_known_from_the_second_time_on() -> None:
    repeated.PLANS = repeated.Plans()
    for number in range(4):
        body, length = bodies({"id": f"q{number}", "parameters": {"timeout": 10 + number}}, [1.0, 2.0], "binary")
        request = oip.decode_request("m", body, length, now_s=1.0)
        assert (request.id, request.deadline_s) == (f"q{number}", pytest.approx(1.0 + (10 + number) / 1e6))
    assert len(repeated.PLANS._plans) == 1


@pytest.mark.parametrize("form", ["binary", "json"])
def test_to_know_a_head_keeps_no_body(form: str) -> None:
    repeated.PLANS = repeated.Plans()
    tracemalloc.start()
    try:
        for _ in range(3):
            body, length = bodies({}, [1.0] * 100_000, form)
            oip.decode_request("m", body, length)
        del body
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert len(repeated.PLANS._plans) == 1


def test_a_body_of_another_length_is_read_anew() -> None:
    repeated.PLANS = repeated.Plans()
    body, length = bodies({}, [1.0, 2.0], "binary")
    for _ in range(3):
        oip.decode_request("m", body, length)
    with pytest.raises(FirstlineError, match="bytes are left"):
        oip.decode_request("m", body[:-1], length)
    with pytest.raises(FirstlineError, match="follow the last"):
        oip.decode_request("m", body + b"1", length)


@given(st.data())
def test_a_response_in_a_known_form_is_what_the_encoder_writes(data: st.DataObject) -> None:
    binary = data.draw(st.booleans())
    request = InferRequest(
        model="m",
        inputs=(),
        request_id="",
        outputs=data.draw(st.sampled_from([(), (RequestedOutput("y", True),), (RequestedOutput("y"),)])),
        binary_output=binary,
    )
    shape = data.draw(st.sampled_from([(1, 3), (2, 3), (1, 1)]))
    identifier = data.draw(TEXT)
    for _ in range(3):
        values = data.draw(st.lists(st.floats(width=32), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
        response = InferResponse(
            model="m",
            version=data.draw(st.sampled_from(["1", "2"])),
            outputs=(Tensor("y", np.array(values, np.float32).reshape(shape)),),
            id=identifier,
            answer=Answer(
                request_id=new_request_id(),
                status=Status.FINAL,
                certified=True,
                durable=False,
                tier=data.draw(st.sampled_from(list(Tier))),
                reason=Reason.REQUESTED,
                confidence=data.draw(st.sampled_from([None, None, 0.5])),
                model_digest="d" * 64,
                attempts=(Attempt(Tier.CLOUD, "ok", data.draw(st.floats(0, 1e6))),),
            ),
        )
        assert written(oip.encode_response, request, response) == written(anew, request, response)


def anew(request: InferRequest, response: InferResponse) -> object:
    return oip._encode_anew(request, response, ())


def written(encode: Any, request: InferRequest, response: InferResponse) -> object:
    try:
        return encode(request, response)
    except FirstlineError as error:
        return error.message


def test_forms_are_bounded() -> None:
    assert len(reply_form._forms) <= reply_form._FORMS
