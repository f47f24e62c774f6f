"""The codec: every tensor comes back as it went; test_fuzzing.py sends it broken bodies."""

import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firstline_core.errors import RequestError
from firstline_core.protocol.answer import from_parameters, to_parameters
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
    infer_request = InferRequest("m", outputs, REQUEST_ID, binary_output=binary)
    encoded = encode_response(infer_request, InferResponse("m", "1", outputs, id="x"))
    got = decode_response(encoded.body, encoded.header_length)
    assert (got.model, got.version, got.id, same(got.outputs, outputs)) == ("m", "1", "x", True)


@given(st.data())
def test_outputs_are_encoded_separately(data: st.DataObject) -> None:
    outputs = data.draw(tensor_lists(binary=False, first=None))
    requested = tuple(
        RequestedOutput(tensor.name, data.draw(st.sampled_from((None, True, False))))
        for tensor in data.draw(st.permutations(outputs))
    )
    infer_request = InferRequest("m", outputs, REQUEST_ID, outputs=requested, binary_output=data.draw(st.booleans()))
    encoded = encode_response(infer_request, InferResponse("m", "1", outputs))
    by_name = {tensor.name: tensor for tensor in outputs}
    got = decode_response(encoded.body, encoded.header_length).outputs
    assert same(got, tuple(by_name[output.name] for output in requested))


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
    RowAnswer, st.sampled_from(Tier), st.sampled_from(Reason), st.sampled_from(Status), st.booleans(), scores, names
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
