"""Requests and responses to and from bytes; the fixtures are what tritonclient 2.x puts on the wire."""

import math
import time
from typing import Any
from uuid import UUID

import numpy as np
import orjson
import pytest

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError, ProtocolError, RequestError
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import (
    Encoded,
    Origin,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from firstline_core.protocol.parameters import timeout_us
from firstline_core.types import InferRequest, InferResponse, Privacy, RequestedOutput, Route, Tensor, Wait

REQUEST_ID = "01890a5d-ac96-774b-bcce-b302099a8057"

TRITON_BINARY_HEADER = (
    b'{"id":"job-7","inputs":[{"name":"x","shape":[2,3],"datatype":"FP32","parameters":{"binary_data_size":24}},'
    b'{"name":"image","shape":[2,1],"datatype":"BYTES","parameters":{"binary_data_size":10}}],'
    b'"parameters":{"timeout":250000,"binary_data_output":true,"privacy":"local_only"}}'
)
TRITON_BINARY = (
    TRITON_BINARY_HEADER
    + b"\x00\x00\x00?\x00\x00\x80\xbf\x00\x00\x00@\x00\x00@@\x00\x00\x80@\x00\x00\xa8@"
    + b"\x02\x00\x00\x00\xff\xd8\x00\x00\x00\x00"
)
TRITON_JSON = (
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[0.5,-1.0]},'
    b'{"name":"text","shape":[1],"datatype":"BYTES","data":["\\u00E9"]}],'
    b'"outputs":[{"name":"probabilities","parameters":{"binary_data":false}},'
    b'{"name":"label","parameters":{"binary_data":true}}],'
    b'"parameters":{"sequence_id":3,"sequence_start":true,"sequence_end":false,"priority":1}}'
)


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]} | changes


def body(*inputs: object, **more: object) -> bytes:
    return orjson.dumps({"inputs": list(inputs) or [tensor()]} | more)


def request(**changes: Any) -> InferRequest:
    inputs = (Tensor("x", np.array([[1, 2]], np.float32)),)
    return InferRequest(**({"model": "m", "inputs": inputs, "request_id": REQUEST_ID} | changes))


class TestTritonsBytes:
    def test_binary(self) -> None:
        got = decode_request(
            "m", TRITON_BINARY, len(TRITON_BINARY_HEADER), Origin(now_s=10.0, principal="p"), version="3"
        )
        assert [each.name for each in got.inputs] == ["x", "image"]
        np.testing.assert_array_equal(got.inputs[0].array, [[0.5, -1, 2], [3, 4, 5.25]])
        assert got.inputs[1].array.tolist() == [[b"\xff\xd8"], [b""]]
        assert (got.id, got.binary_output, got.privacy) == ("job-7", True, Privacy.LOCAL_ONLY)
        assert got.deadline_s == pytest.approx(10.25)
        assert (got.version, got.principal, got.rows) == ("3", "p", 2)

    def test_json(self) -> None:
        got = decode_request("m", TRITON_JSON, None)
        assert got.inputs[0].array.tolist() == [[0.5, -1.0]]
        assert got.inputs[1].array.tolist() == ["é".encode()]
        assert got.outputs == (RequestedOutput("probabilities", False), RequestedOutput("label", True))
        assert got.deadline_s is None

    def test_kserve_sends_nulls_its_own_id_and_the_model(self) -> None:
        sent = body(tensor(parameters=None), id="a", model_name="other", parameters={"x": 1}, outputs=None)
        got = decode_request("m", sent, None)
        assert (got.model, got.id) == ("m", "a")

    def test_response(self) -> None:
        outputs = (Tensor("p", np.array([[0.25, 0.75]], np.float32)), Tensor("label", np.array([b"cat"], np.object_)))
        encoded = encode_response(
            request(binary_output=True, outputs=(RequestedOutput("p", False), RequestedOutput("label"))),
            InferResponse("m", "1", outputs, id="job-7"),
        )
        # These very bytes were read by tritonclient's InferResult.
        header = (
            b'{"model_name":"m","model_version":"1","id":"job-7","outputs":[{"name":"p","datatype":"FP32",'
            b'"shape":[1,2],"data":[0.25,0.75]},{"name":"label","datatype":"BYTES","shape":[1],'
            b'"parameters":{"binary_data_size":7}}]}'
        )
        header += b" " * (-len(header) % 8)
        assert encoded == Encoded(header + b"\x03\x00\x00\x00cat", len(header))


class TestRequest:
    def test_an_encoded_request_is_decoded(self) -> None:
        sent = request(
            id="mine",
            outputs=(RequestedOutput("a", True), RequestedOutput("b")),
            binary_output=True,
            route=Route.CLOUD,
            privacy=Privacy.LOCAL_ONLY,
            wait=Wait.FIRST,
            deadline_s=7.5,
            priority=3,
            source="gate 4",
            full_model_digest="sha256:cd",
        )
        encoded = encode_request(sent, now_s=5.0)
        got = decode_request("m", encoded.body, encoded.header_length, Origin(now_s=100.0, trust_request_id=True))
        for name in ("id", "request_id", "outputs", "binary_output", "route", "privacy", "wait", "priority", "source"):
            assert getattr(got, name) == getattr(sent, name)
        assert got.full_model_digest == sent.full_model_digest
        assert got.deadline_s == pytest.approx(102.5)

    @pytest.mark.parametrize(("priority", "level"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (2**64 - 1, 3)])
    def test_a_priority_below_the_lowest_level_is_the_lowest(self, priority: int, level: int) -> None:
        assert decode_request("m", body(parameters={"priority": priority}), None).priority == level

    def test_a_passed_deadline_is_sent_as_one_microsecond(self) -> None:
        encoded = encode_request(request(deadline_s=1.0), binary=False, now_s=9.0)
        assert orjson.loads(encoded.body)["parameters"]["timeout"] == 1

    def test_binary_numbers_are_read_in_place(self) -> None:
        encoded = encode_request(request(inputs=(Tensor("x", np.ones((1, 64), np.float64)),)))
        array = decode_request("m", encoded.body, encoded.header_length).inputs[0].array
        assert np.shares_memory(array, np.frombuffer(encoded.body, np.uint8))

    def test_misaligned_numbers_are_copied(self) -> None:
        header = orjson.dumps({"inputs": [tensor(data=None, parameters={"binary_data_size": 8})]})
        for spaces in range(4):
            text = header + b" " * spaces
            array = decode_request("m", text + np.array([1, 2], "<f4").tobytes(), len(text)).inputs[0].array
            assert array.flags.aligned
            assert array.tolist() == [[1, 2]]

    def test_the_request_id_is_a_devices_only(self) -> None:
        sent = body(parameters={"request_id": REQUEST_ID.upper()})
        assert decode_request("m", sent, None, Origin(trust_request_id=True)).request_id == REQUEST_ID
        minted = decode_request("m", sent, None).request_id
        assert minted != REQUEST_ID
        assert UUID(minted).version == 7
        assert UUID(decode_request("m", body(), None, Origin(trust_request_id=True)).request_id).version == 7

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"route": {}}, "auto, edge, cloud"),
            ({"privacy": "LOCAL_ONLY"}, "any, local_only"),
            ({"wait": 1}, "final, first"),
            ({"timeout": 0.5}, "microseconds"),
            ({"timeout": True}, "microseconds"),
            ({"timeout": "10"}, "microseconds"),
            ({"priority": -1}, "1 .the highest. to 3"),
            ({"priority": "1"}, "1 .the highest. to 3"),
            ({"priority": True}, "1 .the highest. to 3"),
            ({"source": 4}, "string"),
            ({"source": "x" * 129}, "129 characters; .* at most 128"),
            ({"binary_data_output": 1}, "true or false"),
            ({"full_model_digest": 1}, "string"),
            ({"request_id": 7}, "string"),
            ({"request_id": "7"}, "UUID"),
            ({"request_id": f"{{{REQUEST_ID}}}"}, "UUID"),
        ],
    )
    def test_an_invalid_value_of_a_parameter_is_refused(self, parameters: dict[str, object], message: str) -> None:
        with pytest.raises(RequestError, match=f"'{next(iter(parameters))}'.*{message}"):
            decode_request("m", body(parameters=parameters), None, Origin(trust_request_id=True))

    @pytest.mark.parametrize(
        ("sent", "message"),
        [
            (b"\xff", "not valid JSON"),
            (b"[" * 100_000, "not valid JSON"),
            (b"{}{}", "not valid JSON"),
            (b'{"inputs":{}}', "array"),
            (b'{"inputs":[]}', "at least one tensor"),
            (body(7), "Input 0"),
            (body(tensor(name="")), "Input 0"),
            (body(tensor(), tensor()), "'x' appears twice"),
            (body(tensor(datatype=["FP32"])), "datatype"),
            (body(tensor(datatype="FP31")), "datatype"),
            (body(tensor(shape="12")), "array of sizes"),
            (body(tensor(shape=[-1, -2])), "size -1"),
            (body(tensor(shape=[1, 2.0])), "size 2.0"),
            (body(tensor(shape=[True, 2])), "size true"),
            (body(tensor(shape=[], data=[1])), "at least 1"),
            (body(tensor(data=None)), "neither"),
            (body(tensor(data=5)), "flat or nested"),
            (body(tensor(parameters={"binary_data_size": 8})), "both"),
            (body(tensor(data=None, parameters={"binary_data_size": 8})), "Inference-Header-Content-Length"),
            (body(tensor(data=None, parameters={"binary_data_size": 8.0})), "number of bytes"),
            (body(tensor(parameters=[])), "'parameters'"),
            (body(tensor(), tensor(name="y", shape=[2, 1])), "'y' has 2 rows, but 'x' has 1"),
            (body(outputs=[{"name": "a"}, {"name": "a"}]), "'a' appears twice"),
            (body(outputs=["a"]), "Requested output 0"),
            (body(outputs=7), "'outputs'"),
            (body(outputs=[{"name": "a", "parameters": {"classification": 0}}]), "'classification' is 0"),
            (body(outputs=[{"name": "a", "parameters": {"shared_memory_region": "r"}}]), "shared_memory_region"),
            (body(outputs=[{"name": "a", "parameters": {"binary_data": "yes"}}]), "true or false"),
            (body(parameters=7), "'parameters'"),
            (body(id=7), "'id'"),
        ],
    )
    def test_a_malformed_body_is_refused_with_a_reason(self, sent: bytes, message: str) -> None:
        with pytest.raises(RequestError, match=message):
            decode_request("m", sent, None)

    @pytest.mark.parametrize("length", [-1, 0, len(TRITON_BINARY) + 1, 10**17])
    def test_an_impossible_header_length(self, length: int) -> None:
        with pytest.raises(InvalidTensorError, match="Inference-Header-Content-Length is"):
            decode_request("m", TRITON_BINARY, length)

    def test_the_binary_part_is_used_up_exactly(self) -> None:
        with pytest.raises(InvalidTensorError, match="1 byte after the last binary tensor"):
            decode_request("m", TRITON_BINARY + b"\0", len(TRITON_BINARY_HEADER))
        with pytest.raises(InvalidTensorError, match="'image' has 'binary_data_size' 10, but 9 bytes are left"):
            decode_request("m", TRITON_BINARY[:-1], len(TRITON_BINARY_HEADER))

    @pytest.mark.parametrize(
        ("sent", "limits"),
        [
            (body(), Limits(body_bytes=10)),
            (body(), Limits(json_bytes=10)),
            (body(), Limits(elements=1)),
            (body(tensor(), tensor(name="y")), Limits(elements=3)),
            (body(tensor(datatype="BYTES", data=["a", "b"])), Limits(byte_elements=1)),
            (body(tensor(shape=[2, 1])), Limits(rows=1)),
            (body(tensor(), tensor(name="y")), Limits(tensors=1)),
            (body(outputs=[{"name": "a"}, {"name": "b"}]), Limits(tensors=1)),
            (body(), Limits(dimensions=1)),
            (body(id="abc"), Limits(id_chars=2)),
            (body(tensor(shape=[2**40, 2**40])), Limits()),
            (body(tensor(shape=[0, 2**62], data=[])), Limits()),
        ],
    )
    def test_over_a_limit(self, sent: bytes, limits: Limits) -> None:
        with pytest.raises(PayloadTooLargeError):
            decode_request("m", sent, None, Origin(limits=limits))


class TestResponse:
    def test_only_requested_outputs_are_returned_in_their_order(self) -> None:
        outputs = tuple(Tensor(name, np.zeros((1, 1), np.int8)) for name in ("a", "b", "c"))
        infer_request = request(outputs=(RequestedOutput("c", True), RequestedOutput("a")))
        encoded = encode_response(infer_request, InferResponse("m", "1", outputs))
        got = decode_response(encoded.body, encoded.header_length)
        assert [each.name for each in got.outputs] == ["c", "a"]
        with pytest.raises(InvalidTensorError, match="no output 'd'; it has: a, b, c"):
            encode_response(request(outputs=(RequestedOutput("d"),)), InferResponse("m", "1", outputs))

    @pytest.mark.parametrize("array", [np.array([np.nan], np.float32), np.array([b"\xff"], np.object_)])
    def test_values_beyond_json_are_sent_as_binary_data(self, array: np.ndarray[Any, Any]) -> None:
        response = InferResponse("m", "1", (Tensor("y", array),))
        with pytest.raises(InvalidTensorError, match=r"Output 'y'.*binary_data"):
            encode_response(request(), response)
        encoded = encode_response(request(binary_output=True), response)
        got = decode_response(encoded.body, encoded.header_length).output("y")
        assert repr(got.tolist()) == repr(array.tolist())

    def test_another_servers_response_has_no_answer(self) -> None:
        sent = orjson.dumps({"model_name": "m", "outputs": [tensor()], "parameters": {"status": "ok"}})
        assert decode_response(sent, None).answer is None

    @pytest.mark.parametrize("sent", [b"", b"{}", b'{"outputs":[{}]}', b'{"model_name":7,"outputs":[]}'])
    def test_a_malformed_response_is_the_far_sides_fault(self, sent: bytes) -> None:
        with pytest.raises(ProtocolError, match="server's response"):
            decode_response(sent, None)


@pytest.mark.parametrize("timeout", [2**53, 2**63, 2**64 - 1])
def test_a_huge_timeout_can_be_forwarded(timeout: int) -> None:
    body = (
        b'{"parameters":{"timeout":%d},"inputs":[{"name":"x","datatype":"BOOL","shape":[1],"data":[true]}]}' % timeout
    )
    request = decode_request("m", body, None, Origin(now_s=1e6))
    sent = encode_request(request, now_s=1e6)
    assert decode_request("m", sent.body, sent.header_length).deadline_s == pytest.approx(2**53 / 1e6)
    assert timeout_us(math.inf, 0.0) == 2**53


@pytest.mark.parametrize("shape", [[1 << 20], [1, 1 << 20], [4096, 2]])
def test_a_tensor_of_many_empty_elements_is_refused_before_they_are_read(shape: list[int]) -> None:
    size = 4 * math.prod(shape)
    head = orjson.dumps(
        {"inputs": [{"name": "x", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": size}}]}
    )
    took_s = []
    for _ in range(3):  # a search for garbage may take longer
        started_s = time.thread_time()
        with pytest.raises(PayloadTooLargeError, match="at most 4096"):
            decode_request("m", head + bytes(size), len(head))
        took_s.append(time.thread_time() - started_s)
    assert min(took_s) < 0.05
