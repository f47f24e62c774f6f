"""Reads ONNX files as protobuf messages, by the declaration of the package `onnx`, which is too large for a device.

To take over the declaration of the installed package, compile it in this folder; SITE contains the packages:

    python -m grpc_tools.protoc -ISITE --descriptor_set_out=onnx.binpb onnx/onnx-ml.proto
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from firstline_core.protocol.protobuf import load_declaration

_FILE = load_declaration(resources.files(__package__).joinpath("onnx.binpb").read_bytes())
_MODEL = GetMessageClass(_FILE.message_types_by_name["ModelProto"])


def parse_model(content: bytes) -> Any:
    """Returns the ModelProto of an ONNX file.

    Raises:
        ValueError: the content is not one.
        MemoryError: there is too little memory for a copy of the content.
    """
    try:
        return _MODEL.FromString(content)
    except DecodeError as error:
        if "alloc failed" in str(error):
            raise MemoryError from error
        raise ValueError("not an ONNX file") from error


def messages(message: Any) -> Iterator[Any]:
    """Yields a message, and the messages inside of it, in the order of their fields."""
    left = [message]
    while left:
        message = left.pop()
        yield message
        inner = [value for field, value in message.ListFields() if field.message_type is not None]
        found = [each for value in inner for each in ((value,) if isinstance(value, Message) else value)]
        left += reversed(found)


def text_of(value: str | bytes) -> str:
    """Returns a text of a file; protobuf gives bytes for one that is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="replace")
