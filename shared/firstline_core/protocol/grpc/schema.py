"""The messages and the service of `inference.proto`, built at run time from its checked-in descriptor.

After a change of `inference.proto`, compile it again in this folder:

    python -m grpc_tools.protoc -I. --descriptor_set_out=inference.binpb inference.proto
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor

from firstline_core.protocol.protobuf import load_declaration

_FILE = load_declaration(resources.files(__package__).joinpath("inference.binpb").read_bytes())
_CLASSES = {
    descriptor.name: message_factory.GetMessageClass(descriptor) for descriptor in _FILE.message_types_by_name.values()
}

SERVICE: ServiceDescriptor = _FILE.services_by_name["GRPCInferenceService"]


def message(name: str) -> Any:
    """Returns the class of a message by its name: `message("ServerLiveRequest")`."""
    return _CLASSES[name]
