from typing import Any

import numpy as np
import pytest

from firstline_core.errors import FirstlineError, InvalidTensorError, PayloadTooLargeError, RequestError
from firstline_core.protocol.grpc import codec
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.oip import Origin
from firstline_core.types import (
    DATATYPES,
    Answer,
    InferRequest,
    InferResponse,
    Reason,
    RequestedOutput,
    Route,
    Status,
    Tensor,
    Tier,
)


def infer(*inputs: tuple[str, str, tuple[int, ...]], raw: tuple[bytes, ...] = (), **fields: Any) -> Any:
    proto = message("ModelInferRequest")(model_name="m", raw_input_contents=raw, **fields)
    for name, datatype, shape in inputs:
        proto.inputs.add(name=name, datatype=datatype, shape=shape)
    return proto


def read(proto: Any, limits: Limits = DEFAULT_LIMITS, **options: Any) -> InferRequest:
    return codec.decode_request(*codec.split(proto.SerializeToString(), limits), Origin(limits=limits, **options))


def test_aligned_raw_tensors_are_not_copied() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto = infer(("x", "FP32", (2, 3)), raw=(array.tobytes(),), model_version="7", id="mine")
    request = read(proto, principal="device:a")
    np.testing.assert_array_equal(request.inputs[0].array, array)
    assert not read(infer(("x", "UINT8", (2, 1)), raw=(b"ab",))).inputs[0].array.flags.writeable
    assert (request.model, request.version, request.id, request.principal) == ("m", "7", "mine", "device:a")


def test_parameters_and_outputs_are_decoded_as_in_json() -> None:
    proto = infer(("x", "UINT8", (1, 1)), raw=(b"\1",))
    proto.parameters["route"].string_param = "cloud"
    proto.parameters["timeout"].int64_param = 2_000_000
    proto.parameters["priority"].uint64_param = 1
    proto.parameters["nothing"].SetInParent()
    proto.outputs.add(name="p").parameters["classification"].int64_param = 3
    request = read(proto, now_s=10.0)
    assert (request.route, request.deadline_s, request.priority) == (Route.CLOUD, 12.0, 1)
    assert request.outputs == (RequestedOutput("p", None, 3),)


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "FP16"])
def test_typed_contents_are_read_for_every_datatype(datatype: str) -> None:
    dtype = DATATYPES[datatype]
    array = np.array([[b"a"], [b"\xff"]], np.object_) if dtype.hasobject else np.array([[0], [1]], dtype)
    proto = infer(("x", datatype, (2, 1)))
    getattr(proto.inputs[0].contents, codec.CONTENTS[datatype]).extend(array.reshape(-1).tolist())
    found = read(proto).inputs[0]
    assert found.datatype == datatype
    assert found.array.tolist() == array.tolist()


def test_typed_floats_may_be_infinite() -> None:
    proto = infer(("x", "FP32", (1, 2)))
    proto.inputs[0].contents.fp32_contents.extend([np.inf, np.nan])
    assert read(proto).inputs[0].array[0, 0] == np.inf


def wrong(change: Any) -> Any:
    proto = infer(("x", "FP32", (1, 1)), raw=(bytes(4),))
    change(proto)
    return proto


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda proto: proto.ClearField("inputs"), "0 inputs and 1 raw_input_contents"),
        (lambda proto: proto.raw_input_contents.append(b""), "1 inputs and 2 raw_input_contents"),
        (lambda proto: proto.inputs[0].contents.fp32_contents.append(1), "both 'contents' and 'raw_input_contents'"),
        (lambda proto: proto.ClearField("raw_input_contents"), "0 elements in 'fp32_contents'"),
        (lambda proto: setattr(proto.inputs[0], "datatype", "FP99"), "datatype 'FP99'"),
        (lambda proto: proto.inputs[0].shape.append(7), "4 bytes of binary data"),
        (lambda proto: proto.inputs[0].shape.append(-1), "size -1"),
        (lambda proto: setattr(proto.inputs[0], "name", ""), "Input 0"),
        (lambda proto: proto.inputs[0].parameters["shared_memory_region"].SetInParent() or setattr(
            proto.inputs[0].parameters["shared_memory_region"], "string_param", "r"), "shared_memory_region"),
        (lambda proto: setattr(proto.parameters["timeout"], "string_param", "5"), "'timeout' is '5'"),
    ],
)  # fmt: skip
def test_an_invalid_request_is_refused_with_a_reason(change: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read(wrong(change))


def test_fp16_travels_raw_alone() -> None:
    with pytest.raises(InvalidTensorError, match="no typed contents"):
        read(infer(("x", "FP16", (1, 1))))
    proto = infer(("x", "FP16", (1, 1)), raw=(np.float16(0.5).tobytes(),))
    assert read(proto).inputs[0].array.tolist() == [[0.5]]


def test_bytes_that_are_no_message_are_refused() -> None:
    for sent in (b"\xff", b"\x0a\x05a", b"\x0a\x02\xff\xfe", b"\x2a\x02\x0a\x05"):
        with pytest.raises(InvalidTensorError, match="not a ModelInferRequest"):
            codec.decode_request(*codec.split(sent, DEFAULT_LIMITS), Origin(limits=DEFAULT_LIMITS))


def test_sizes_are_bounded_before_protobuf_parses_anything() -> None:
    small = Limits(body_bytes=4096, json_bytes=64, elements=16, byte_elements=4)
    for sent, reason in (
        (bytes(5000), "larger than 4096 bytes"),
        (b"\x2a\x00" * 2000, "more than 1024 fields"),
        (b"\x1a\x64" + b"i" * 100, "more than 64 bytes beside"),
        (infer(("x", "FP32", (17, 1)), raw=(bytes(68),)).SerializeToString(), "at most 16 elements"),
    ):
        with pytest.raises(PayloadTooLargeError, match=reason):
            codec.decode_request(*codec.split(sent, small), Origin(limits=small))


def test_a_response_has_raw_tensors_and_the_answer_metadata() -> None:
    answer = Answer("i" * 36, Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, 0.5, "d")
    response = InferResponse("m", "1", (Tensor("p", np.array([[0.25, 0.75]], np.float32)),), "mine", answer)
    request = InferRequest("m", (Tensor("x", np.zeros((1, 1), np.float32)),), "i", outputs=(RequestedOutput("p"),))
    reply = codec.encode_response(request, response)
    assert (reply.model_name, reply.model_version, reply.id) == ("m", "1", "mine")
    assert (reply.outputs[0].name, reply.outputs[0].datatype, list(reply.outputs[0].shape)) == ("p", "FP32", [1, 2])
    assert np.frombuffer(reply.raw_output_contents[0], np.float32).tolist() == [0.25, 0.75]
    parameters = codec.read_parameters(reply.parameters)
    assert (parameters["status"], parameters["certified"], parameters["confidence"]) == ("final", True, 0.5)
    unknown = InferRequest("m", request.inputs, "i", outputs=(RequestedOutput("q"),))
    with pytest.raises(FirstlineError, match="no output 'q'"):
        codec.encode_response(unknown, response)
