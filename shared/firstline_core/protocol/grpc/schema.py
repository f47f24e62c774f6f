"""The messages of `inference.proto`, made from its text when this is imported: no generated code, no compiler.

Generated code has to be of the same age as the protobuf package that runs it; this text does not. Read is the part of
proto3 that the file uses: messages, also inside others, enums, `repeated`, `map`, `oneof` and services.

    https://protobuf.dev/reference/protobuf/proto3-spec/
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

_TOKEN = re.compile(r'//[^\n]*|"[^"]*"|[\w.]+|[{}<>(),;=]')
_SCALARS = {
    "double": Field.TYPE_DOUBLE,
    "float": Field.TYPE_FLOAT,
    "int64": Field.TYPE_INT64,
    "uint64": Field.TYPE_UINT64,
    "int32": Field.TYPE_INT32,
    "uint32": Field.TYPE_UINT32,
    "bool": Field.TYPE_BOOL,
    "string": Field.TYPE_STRING,
    "bytes": Field.TYPE_BYTES,
}


class _Parser:
    """Reads one file from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [token for token in _TOKEN.findall(text) if not token.startswith("//")]
        self._at = 0
        self.file = descriptor_pb2.FileDescriptorProto(name="inference.proto", syntax="proto3")

    def parse(self) -> descriptor_pb2.FileDescriptorProto:
        while self._at < len(self._tokens):
            kind = self._take()
            if kind == "syntax":
                self._skip("=", '"proto3"', ";")
            elif kind == "package":
                self.file.package = self._take()
                self._skip(";")
            elif kind == "message":
                self._message(self.file.message_type.add())
            elif kind == "enum":
                self._enum(self.file.enum_type.add())
            else:
                self._service(kind)
        self._resolve(self.file.message_type, f".{self.file.package}", {})
        return self.file

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, *expected: str) -> None:
        for token in expected:
            if self._take() != token:
                raise ValueError(f"{token!r} was expected at token {self._at}")

    def _passes(self, token: str) -> bool:
        found = self._tokens[self._at] == token
        self._at += found
        return found

    def _message(self, message: descriptor_pb2.DescriptorProto) -> None:
        message.name = self._take()
        self._skip("{")
        while not self._passes("}"):
            if self._passes("message"):
                self._message(message.nested_type.add())
            elif self._passes("oneof"):
                index = len(message.oneof_decl)
                message.oneof_decl.add(name=self._take())
                self._skip("{")
                while not self._passes("}"):
                    self._field(message, self._take()).oneof_index = index
            elif self._passes("map"):
                self._map(message)
            elif self._passes("repeated"):
                self._field(message, self._take()).label = Field.LABEL_REPEATED
            else:
                self._field(message, self._take())

    def _field(self, message: descriptor_pb2.DescriptorProto, kind: str) -> Field:
        field = message.field.add(label=Field.LABEL_OPTIONAL, name=self._take())
        self._skip("=")
        field.number = int(self._take())
        self._skip(";")
        _set_type(field, kind)
        return field

    def _map(self, message: descriptor_pb2.DescriptorProto) -> None:
        """A map is a repeated message of key and value, named after the field."""
        self._skip("<")
        key = self._take()
        self._skip(",")
        value = self._take()
        self._skip(">")
        field = self._field(message, "")
        field.label = Field.LABEL_REPEATED
        field.type_name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=field.type_name)
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL), key)
        _set_type(entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL), value)

    def _enum(self, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        enum.name = self._take()
        self._skip("{")
        while not self._passes("}"):
            value = enum.value.add(name=self._take())
            self._skip("=")
            value.number = int(self._take())
            self._skip(";")

    def _service(self, kind: str) -> None:
        if kind != "service":
            raise ValueError(f"{kind!r} begins nothing that is known")
        service = self.file.service.add(name=self._take())
        self._skip("{")
        while not self._passes("}"):
            self._skip("rpc")
            method = service.method.add(name=self._take())
            self._skip("(")
            method.client_streaming = self._passes("stream")
            method.input_type = f".{self.file.package}.{self._take()}"
            self._skip(")", "returns", "(")
            method.server_streaming = self._passes("stream")
            method.output_type = f".{self.file.package}.{self._take()}"
            self._skip(")", ";")

    def _resolve(self, messages: Any, scope: str, outer: dict[str, str]) -> None:
        """Replaces the names of types by full ones: inner scopes first."""
        known = outer | {message.name: f"{scope}.{message.name}" for message in messages}
        if not outer:
            known |= {enum.name: f"{scope}.{enum.name}" for enum in self.file.enum_type}
        enums = {f".{self.file.package}.{enum.name}" for enum in self.file.enum_type}
        for message in messages:
            self._resolve(message.nested_type, f"{scope}.{message.name}", known)
            inner = known | {each.name: f"{scope}.{message.name}.{each.name}" for each in message.nested_type}
            for field in message.field:
                if field.type_name:
                    field.type_name = inner[field.type_name]
                    field.type = Field.TYPE_ENUM if field.type_name in enums else Field.TYPE_MESSAGE


def _set_type(field: Field, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind


def parse(text: str) -> descriptor_pb2.FileDescriptorProto:
    """The description that a `.proto` file's text stands for.

    Raises:
        ValueError, KeyError, IndexError: it uses more of the language than is read here.
    """
    return _Parser(text).parse()


def proto_text() -> str:
    """`inference.proto`."""
    return resources.files(__package__).joinpath("inference.proto").read_text("utf-8")


# A pool of its own: a process may also hold the code that another package generated for the same names.
_POOL = descriptor_pool.DescriptorPool()
_FILE = _POOL.Add(parse(proto_text())) or _POOL.FindFileByName("inference.proto")
_CLASSES = {
    descriptor.name: message_factory.GetMessageClass(descriptor) for descriptor in _FILE.message_types_by_name.values()
}

SERVICE: ServiceDescriptor = _FILE.services_by_name["GRPCInferenceService"]


def message(name: str) -> Any:
    """The class of a message, by its name: `message("ServerLiveRequest")`."""
    return _CLASSES[name]
