import numpy as np
import orjson
import pytest

from firstline_core.errors import InvalidTensorError, RequestError
from firstline_core.protocol.oip import decode_request, encode_request, encode_response
from firstline_core.protocol.outputs import classified
from firstline_core.types import InferResponse, Tensor


def asked(**parameters: object) -> bytes:
    """A request that names the output `p`."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0]}]
    return orjson.dumps({"inputs": inputs, "outputs": [{"name": "p", "parameters": parameters}]})


def test_classes_are_written_as_by_triton() -> None:
    found = classified(Tensor("p", np.array([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]], np.float32)), 2, ("a", "b"))
    assert found.datatype == "BYTES"
    assert found.array.tolist() == [[b"0.500000:1:b", b"0.250000:0:a"], [b"1.000000:0:a", b"0.000000:1:b"]]


def test_a_class_without_a_label_has_its_number() -> None:
    found = classified(Tensor("p", np.array([[3, 1, 2]], np.int32)), 9, ("a",))
    assert found.array.tolist() == [[b"3.000000:0:a", b"2.000000:2", b"1.000000:1"]]


@pytest.mark.parametrize("array", [np.zeros(3, np.float32), np.array([[b"x"]], np.object_), np.zeros((1, 2, 2))])
def test_outputs_without_classes_are_refused(array: np.ndarray) -> None:
    with pytest.raises(InvalidTensorError, match="no classes"):
        classified(Tensor("p", array), 1, ())


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "3"])
def test_a_count_is_a_whole_number_from_one_on(count: object) -> None:
    with pytest.raises(RequestError, match="'classification' is"):
        decode_request("m", asked(classification=count), None)


def test_classes_travel_in_json_and_as_binary_data() -> None:
    response = InferResponse("m", "1", (Tensor("p", np.array([[0.25, 0.75]], np.float32)),))
    request = decode_request("m", asked(classification=1), None)
    encoded = encode_request(request)
    assert decode_request("m", encoded.body, encoded.header_length).outputs == request.outputs
    (output,) = orjson.loads(encode_response(request, response, ("a", "b")).body)["outputs"]
    assert output == {"name": "p", "datatype": "BYTES", "shape": [1, 1], "data": ["0.750000:1:b"]}
    binary = decode_request("m", asked(classification=1, binary_data=True), None)
    assert encode_response(binary, response).body.endswith(b"\x0a\0\0\x000.750000:1")
