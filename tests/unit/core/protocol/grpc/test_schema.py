"""What is read from `inference.proto` is what protobuf's own compiler reads from it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from firstline_core.protocol.grpc import schema


def compiled(folder: Path) -> FileDescriptorProto:
    from grpc_tools import protoc

    with resources.as_file(resources.files("firstline_core.protocol.grpc").joinpath("inference.proto")) as file:
        code = protoc.main(["", f"-I{file.parent}", f"--descriptor_set_out={folder / 'out'}", str(file)])
    assert code == 0
    return FileDescriptorSet.FromString((folder / "out").read_bytes()).file[0]


def without_what_follows(messages: Any) -> None:
    """protoc writes down the JSON names that it derives."""
    for each in messages:
        for field in each.field:
            field.ClearField("json_name")
        without_what_follows(each.nested_type)


def test_the_compiler_reads_the_same(tmp_path: Path) -> None:
    expected, found = compiled(tmp_path), schema.parse(schema.proto_text())
    without_what_follows(expected.message_type)
    assert [method.name for method in found.service[0].method] == [m.name for m in expected.service[0].method]
    for ours, theirs in zip(found.service[0].method, expected.service[0].method, strict=True):
        assert ours.client_streaming == theirs.client_streaming
        assert ours.server_streaming == theirs.server_streaming
        assert (ours.input_type, ours.output_type) == (theirs.input_type, theirs.output_type)
    assert found.message_type == expected.message_type
    assert found.enum_type == expected.enum_type


@pytest.mark.parametrize("text", ["extend Foo {}", "message M { bytes = 1; }", "message M { Unknown a = 1; }"])
def test_more_than_is_known_of_the_language_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, KeyError, IndexError)):
        schema.parse(text)
