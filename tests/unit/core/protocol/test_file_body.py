"""Bodies of the file route: files, multipart forms, and JSON with files in base64."""

import base64
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.protocol.file_body import form_fields, is_file, read_body
from firstline_core.protocol.limits import Limits
from firstline_core.types import ModelMetadata, TensorSpec

LIMITS = Limits(rows=3)
IMAGE, WORDS = TensorSpec("image", "BYTES", (-1,)), TensorSpec("words", "BYTES", (-1,))
NUMBERS = TensorSpec("x", "FP32", (-1, 2))


def model(*inputs: TensorSpec) -> ModelMetadata:
    return ModelMetadata("m", ("1",), "onnx", inputs, (), files=("image",))


def read(metadata: ModelMetadata, body: bytes, content_type: str = "") -> dict[str, list[object]]:
    return {tensor.name: tensor.array.tolist() for tensor in read_body(metadata, body, content_type, LIMITS)}


def form(*fields: tuple[str, bytes]) -> tuple[bytes, str]:
    """A form as an HTTP client writes it."""
    headers = {"Content-Type": "multipart/form-data; boundary=0f59a34c0cb410b28dee3a96522c54ad"}
    files = [(name, ("a.bin", content)) for name, content in fields]
    request = httpx.Request("POST", "http://tier", files=files, headers=headers)
    return request.read(), request.headers["Content-Type"]


@pytest.mark.parametrize(
    ("content_type", "plain"),
    [
        ("", True),
        ("image/jpeg", True),
        ("application/x-www-form-urlencoded", True),
        ("application/json; charset=utf-8", False),
        ("multipart/form-data; boundary=a", False),
    ],
)
def test_other_types_are_the_file_itself(content_type: str, plain: bool) -> None:
    assert is_file(model(IMAGE), content_type) is plain
    assert not is_file(model(NUMBERS), content_type)
    if plain:
        assert read(model(IMAGE), b'{"a": 1}', content_type) == {"image": [b'{"a": 1}']}


@pytest.mark.parametrize("name", ["image", "file", "\u00fcber", 'a"b'])
def test_the_only_input_is_a_field_of_any_name(name: str) -> None:
    assert read(model(IMAGE), *form((name, b"\xff\xd8\r\n--\r\n"))) == {"image": [b"\xff\xd8\r\n--\r\n"]}
    assert read(model(IMAGE), *form((name, b"a"), (name, b"b"))) == {"image": [b"a", b"b"]}
    assert read(model(NUMBERS), *form((name, b"[1, 2]"))) == {"x": [[1, 2]]}


def test_fields_are_inputs_by_name() -> None:
    metadata = model(IMAGE, WORDS, NUMBERS)
    found = read(metadata, *form(("words", b"hello"), ("x", b"[[1, 2]]"), ("image", b"\xff")))
    assert found == {"image": [b"\xff"], "words": [b"hello"], "x": [[1, 2]]}
    assert read(metadata, *form(("image", b"\xff"))) == {"image": [b"\xff"]}


@given(st.lists(st.binary(min_size=1, max_size=64), min_size=1, max_size=3), st.sampled_from(["a", "b c", "--"]))
def test_forms_of_clients_are_read(contents: list[bytes], name: str) -> None:
    body, content_type = form(*((name, content) for content in contents))
    assert form_fields(body, content_type, LIMITS) == [(name, content) for content in contents]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_form_or_refused(body: bytes) -> None:
    for whole in (body, b"--b\r\n" + body + b"\r\n--b--"):
        try:
            fields = form_fields(whole, "multipart/form-data; boundary=b", LIMITS)
        except (InvalidTensorError, PayloadTooLargeError):
            continue
        assert all(name and content for name, content in fields)


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"--b--", "multipart/form-data; boundary=b" + ";" * 1000, "has more than 1 KiB"),
        (b"--b--", "multipart/form-data; boundary*=idna''b", "has no boundary"),
        (b"--b--", "multipart/form-data; boundary*=punycode''%ff", "has no boundary"),
        (b"--c--", "multipart/form-data; boundary=b", "does not end with its boundary"),
        (b"--b\r\nX: y\r\n\r\na", "multipart/form-data; boundary=b", "does not end with its boundary"),
        (b"--b\r\nX: y\r\n\r\na\r\n--b--", "multipart/form-data; boundary=b", "has no name in its Content-Disposition"),
        (b"--b\r\nX: y\r\n--b--", "multipart/form-data; boundary=b", "has no headers that end"),
        (b"--b\r\n" + b"X" * 1100 + b"\r\n\r\na\r\n--b--", "multipart/form-data; boundary=b", "more than 1 KiB"),
        (b"--b\r\n" + b"X: y\n" * 9 + b"\r\n\r\na\r\n--b--", "multipart/form-data; boundary=b", "8 lines"),
        (b"--b\r\nX: y" + b";" * 9 + b"\r\n\r\na\r\n--b--", "multipart/form-data; boundary=b", "8 parameters"),
        (b"--b--", "multipart/form-data; boundary=b", "has these fields: none"),
        (b"--b\r\n", "multipart/mixed; boundary=b", "the type multipart/mixed; send a form as multipart/form-data"),
        (*form(("image", b"")), "The field 'image' of the form is empty"),
        (*form(("image", b"a"), ("min_score", b"0.5")), "these fields: 'image', 'min_score'. Send one field"),
        (b'{"image": "no base64!"}', "application/json", "Element 0 of input 'image' is not base64; JSON carries"),
        (b'["YQ==", "YQ"]', "application/json", "Element 1 of input 'image' is not base64"),
        (
            b'{"image": {"b64": "YQ=="}}',
            "application/json",
            "Input 'image' is an object; a row takes shape [], as a JSON array",
        ),
        (b'{"image": null}', "application/json", "Input 'image' is null; a row takes shape [], as a JSON array"),
        (b'{"image": 7}', "application/json", "image"),
        (b"[]", "application/json", "a row takes shape"),
    ],
)
def test_forms_and_json_that_do_not_fit_are_refused(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(InvalidTensorError) as refused:
        read(model(IMAGE), body, content_type)
    assert message in refused.value.message


def test_fields_without_an_input_are_refused() -> None:
    metadata = model(IMAGE, NUMBERS)
    with pytest.raises(InvalidTensorError, match="has no input 'y'; remove it, or rename it to one of image, x"):
        read(metadata, *form(("y", b"a")))
    with pytest.raises(InvalidTensorError, match=r"have \[1, 2\] rows"):
        read(metadata, *form(("image", b"a"), ("x", b"[[1, 2], [3, 4]]")))
    with pytest.raises(InvalidTensorError, match="several fields 'x'; send one with a JSON array"):
        read(metadata, *form(("x", b"[1, 2]"), ("x", b"[1, 2]")))
    with pytest.raises(PayloadTooLargeError, match="more than 3 fields"):
        read(metadata, *form(*[("image", b"a")] * 4))


def test_json_carries_files_in_base64() -> None:
    encoded = base64.b64encode(b"\xff\xd8\xff").decode()
    for value in (encoded, f"data:image/jpeg;base64,{encoded}", f"{encoded[:2]}\n{encoded[2:]}"):
        assert read(model(IMAGE), json.dumps({"image": value}).encode(), "application/json") == {
            "image": [b"\xff\xd8\xff"]
        }
        assert read(model(IMAGE), json.dumps([value, value]).encode(), "Application/JSON") == {
            "image": [b"\xff\xd8\xff"] * 2
        }
    several = json.dumps({"image": encoded, "words": "h\u00e9", "x": [1, 2]}).encode()
    found = read(model(IMAGE, WORDS, NUMBERS), several)
    assert found == {"image": [b"\xff\xd8\xff"], "words": ["h\u00e9".encode()], "x": [[1, 2]]}


def test_json_carries_text_as_it_is() -> None:
    assert read(model(WORDS), b'["aGk=", "b"]', "application/json") == {"words": [b"aGk=", b"b"]}
    assert read(model(WORDS), b'"hello"', "text/plain") == {"words": [b'"hello"']}


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(PayloadTooLargeError, match="at most 3"):
        read(model(IMAGE), json.dumps(["YQ=="] * 4).encode(), "application/json")
