"""The codec: every tensor comes back as it went, and no body, however broken, raises anything unforeseen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firstline_core.errors import ProtocolError, RequestError
from firstline_core.protocol.answer import from_parameters, to_parameters
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Origin, decode_request, decode_response, encode_request, encode_response
from firstline_core.types import (
    DATATYPES,
    Answer,
    Array,
    Attempt,
    AuditNote,
    ContractAlarm,
    ContractNotice,
    InferRequest,
    InferResponse,
    Reason,
    RequestedOutput,
    RowAnswer,
    Status,
    Tensor,
    Tier,
    payload_bytes,
)

REQUEST_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
SMALL = Limits(body_bytes=4096, json_bytes=2048, elements=512, byte_elements=64, rows=8, tensors=4, dimensions=4)

printable = st.characters(codec="utf-8", exclude_categories=["C", "Z"], include_characters=" ")
names = st.text(printable, min_size=1, max_size=8).filter(lambda name: not name.startswith("edge/"))


def elements(datatype: str, binary: bool) -> st.SearchStrategy[Any]:
    dtype = DATATYPES[datatype]
    if dtype.kind == "O":
        return st.binary(max_size=6) if binary else st.text(max_size=6).map(str.encode)
    if dtype.kind == "f" and not binary:
        return hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    return hnp.from_dtype(dtype)


@st.composite
def arrays(draw: st.DrawFn, binary: bool, first: int | None) -> Array:
    """Any datatype and shape; `first` fixes the rows, None allows scalars and sizes of 0."""
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if first is not None:
        shape = (first, *shape)
    count = math.prod(shape)
    values = draw(st.lists(elements(datatype, binary), min_size=count, max_size=count))
    array = np.empty(count, dtype=DATATYPES[datatype])
    array[:] = values
    return array.reshape(shape)


@st.composite
def tensor_lists(draw: st.DrawFn, binary: bool, first: int | None) -> tuple[Tensor, ...]:
    chosen = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    return tuple(Tensor(name, draw(arrays(binary, first))) for name in chosen)


def same(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> bool:
    """Equal bit for bit: names, datatypes, shapes and values, NaN payloads included."""
    return [identity(tensor) for tensor in left] == [identity(tensor) for tensor in right]


def identity(tensor: Tensor) -> tuple[Any, ...]:
    array = tensor.array
    content = array.reshape(-1).tolist() if array.dtype.hasobject else array.tobytes()
    return tensor.name, tensor.datatype, tensor.shape, content


@given(st.data(), st.booleans(), st.integers(1, 3))
def test_requests_survive_a_round_trip(data: st.DataObject, binary: bool, rows: int) -> None:
    sent = InferRequest("m", data.draw(tensor_lists(binary, rows)), REQUEST_ID)
    encoded = encode_request(sent, binary=binary)
    got = decode_request("m", encoded.body, encoded.header_length, Origin(trust_request_id=True))
    assert same(got.inputs, sent.inputs)
    assert got.request_id == REQUEST_ID


shares = st.floats(0, 1, exclude_min=True)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
notes = st.builds(
    AuditNote,
    shares,
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.floats(allow_nan=False, allow_infinity=False),
    digests,
)
notices = st.builds(ContractNotice, st.booleans(), st.none() | st.floats(0, 1e9), st.integers(1, 2**31 - 1))


@given(st.none() | notes, st.none() | st.builds(ContractAlarm, digests, st.text()), st.booleans(), st.booleans())
def test_notes_alarms_and_promises_survive_a_round_trip(
    note: AuditNote | None, alarm: ContractAlarm | None, promised: bool, binary: bool
) -> None:
    inputs = (Tensor("x", np.zeros((1, 1), np.float32)),)
    sent = InferRequest("m", inputs, REQUEST_ID, audit=note, alarm=alarm, promised=promised)
    encoded = encode_request(sent, binary=binary)
    device = decode_request("m", encoded.body, encoded.header_length, Origin(trust_request_id=True))
    assert (device.audit, device.alarm, device.promised) == (note, alarm, promised)
    other = decode_request("m", encoded.body, encoded.header_length)
    assert (other.audit, other.alarm, other.promised) == (None, None, False)


@given(st.data(), notes, st.booleans())
def test_edge_outputs_of_an_audit_survive_a_round_trip(data: st.DataObject, note: AuditNote, binary: bool) -> None:
    inputs, outputs = data.draw(tensor_lists(binary, 1)), data.draw(tensor_lists(binary, 1))
    edge_outputs = {tensor.name: tensor.array for tensor in outputs}
    sent = InferRequest("m", inputs, REQUEST_ID, audit=note, edge_outputs=edge_outputs)
    encoded = encode_request(sent, binary=binary)
    got = decode_request("m", encoded.body, encoded.header_length, Origin(trust_request_id=True))
    assert same(got.inputs, inputs)
    assert same(tuple(Tensor(*each) for each in got.edge_outputs.items()), outputs)
    assert got.size_bytes == sent.size_bytes == payload_bytes(each.array for each in (*inputs, *outputs))
    with pytest.raises(RequestError, match="only devices audit"):
        decode_request("m", encoded.body, encoded.header_length)


@given(st.data(), st.booleans())
def test_responses_survive_a_round_trip(data: st.DataObject, binary: bool) -> None:
    outputs = data.draw(tensor_lists(binary, None))
    asked = InferRequest("m", outputs, REQUEST_ID, binary_output=binary)
    encoded = encode_response(asked, InferResponse("m", "1", outputs, id="x"))
    assert same(decode_response(encoded.body, encoded.header_length).outputs, outputs)


@given(st.data())
def test_outputs_are_encoded_separately(data: st.DataObject) -> None:
    outputs = data.draw(tensor_lists(binary=False, first=None))
    wanted = tuple(
        RequestedOutput(tensor.name, data.draw(st.sampled_from((None, True, False))))
        for tensor in data.draw(st.permutations(outputs))
    )
    asked = InferRequest("m", outputs, REQUEST_ID, outputs=wanted, binary_output=data.draw(st.booleans()))
    encoded = encode_response(asked, InferResponse("m", "1", outputs))
    by_name = {tensor.name: tensor for tensor in outputs}
    got = decode_response(encoded.body, encoded.header_length).outputs
    assert same(got, tuple(by_name[output.name] for output in wanted))


@given(st.data(), st.integers(1, 3))
def test_nested_json_is_the_same_as_flat(data: st.DataObject, rows: int) -> None:
    sent = InferRequest("m", data.draw(tensor_lists(False, rows)), REQUEST_ID)
    head = orjson.loads(encode_request(sent, binary=False).body)
    for entry, tensor in zip(head["inputs"], sent.inputs, strict=True):
        flat = np.empty(len(entry["data"]), dtype=np.object_)
        flat[:] = entry["data"]
        entry["data"] = flat.reshape(tensor.shape).tolist()
    assert same(decode_request("m", orjson.dumps(head), None).inputs, sent.inputs)


scores = st.none() | st.floats(0, 1)
rows_answered = st.builds(
    RowAnswer,
    st.sampled_from(Tier),
    st.sampled_from(Reason),
    st.sampled_from(Status),
    st.booleans(),
    scores,
    names,
)
answers = st.builds(
    Answer,
    request_id=st.uuids().map(str),
    status=st.sampled_from(Status),
    certified=st.booleans(),
    durable=st.booleans(),
    tier=st.sampled_from(Tier),
    reason=st.sampled_from(Reason),
    confidence=scores,
    model_digest=names,
    attempts=st.lists(st.builds(Attempt, st.sampled_from(Tier), names, st.floats(0, 1e9)), max_size=3).map(tuple),
    rows=st.lists(rows_answered, max_size=3).map(tuple),
    changed=st.none() | st.booleans(),
    contract=st.none() | notices,
)


@given(answers)
def test_answers_survive_a_round_trip(answer: Answer) -> None:
    parameters = to_parameters(answer)
    assert all(isinstance(value, str | int | float | bool) for value in parameters.values())
    assert from_parameters(orjson.loads(orjson.dumps(parameters))) == answer


def survives(body: bytes, header_length: int | None) -> None:
    """Read by both decoders: an answer or one of the errors that they promise."""
    try:
        decode_request("m", body, header_length, Origin(trust_request_id=True, limits=SMALL))
    except RequestError as error:
        assert error.message
    try:
        decode_response(body, header_length, SMALL)
    except ProtocolError as error:
        assert error.message


@given(st.binary(max_size=200), st.none() | st.integers(-5, 300))
def test_arbitrary_bytes_are_refused(body: bytes, header_length: int | None) -> None:
    survives(body, header_length)


@given(st.data(), st.booleans())
def test_mutated_bodies_are_read_or_refused(data: st.DataObject, binary: bool) -> None:
    sent = InferRequest("m", data.draw(tensor_lists(binary, 2)), REQUEST_ID, deadline_s=1.0)
    encoded = encode_request(sent, binary=binary)
    body = bytearray(encoded.body)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body)))
        body[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    shift = data.draw(st.integers(-3, 3))
    survives(bytes(body), None if encoded.header_length is None else encoded.header_length + shift)
    survives(bytes(body[: data.draw(st.integers(0, len(body)))]), encoded.header_length)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def or_anything(likely: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return likely | json_values


entries = st.fixed_dictionaries(
    {"name": or_anything(names)},
    optional={
        "datatype": or_anything(st.sampled_from([*DATATYPES, "BF16"])),
        "shape": or_anything(st.lists(st.integers(0, 4), max_size=3)),
        "data": or_anything(st.lists(st.integers(0, 1), max_size=4)),
        "parameters": or_anything(
            st.fixed_dictionaries({}, optional={"binary_data_size": or_anything(st.integers(0, 16))})
        ),
    },
)
parameters = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            "route",
            "privacy",
            "wait",
            "timeout",
            "full_model_digest",
            "request_id",
            "binary_data_output",
            "tier",
            "status",
            "attempts",
            "rows",
            "audit_propensity",
            "audit_epsilon",
            "audit_threshold",
            "audit_edge_digest",
            "contract_alarm",
            "escalations_per_hour",
            "alarm_edge_digest",
            "contract_devices",
        ),
        json_values,
    ),
)
heads = st.fixed_dictionaries(
    {},
    optional={
        "inputs": or_anything(st.lists(or_anything(entries), max_size=3)),
        "outputs": or_anything(st.lists(or_anything(entries), max_size=3)),
        "parameters": or_anything(parameters),
        "id": json_values,
        "model_name": json_values,
        "model_version": json_values,
    },
)


@given(heads, st.binary(max_size=40), st.booleans())
def test_altered_json_is_read_or_refused(head: dict[str, Any], tail: bytes, binary: bool) -> None:
    text = orjson.dumps(head)
    survives(text + tail if binary else text, len(text) if binary else None)
