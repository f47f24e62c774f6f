"""The messages and the service of `inference.proto`, built at run time from its checked-in descriptor.

Generated Python code requires a protobuf package of the same age; a descriptor does not. After a change of
`inference.proto`, compile it again in this folder:

    python -m grpc_tools.protoc -I. --descriptor_set_out=inference.binpb inference.proto
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

_PROTO = "inference.proto"

# A separate pool: the process may also hold code that another package generated for the same names.
_POOL = descriptor_pool.DescriptorPool()
for _compiled in FileDescriptorSet.FromString(
    resources.files(__package__).joinpath("inference.binpb").read_bytes()
).file:
    _POOL.Add(_compiled)
_FILE = _POOL.FindFileByName(_PROTO)
_CLASSES = {
    descriptor.name: message_factory.GetMessageClass(descriptor) for descriptor in _FILE.message_types_by_name.values()
}

SERVICE: ServiceDescriptor = _FILE.services_by_name["GRPCInferenceService"]


def message(name: str) -> Any:
    """Returns the class of a message by its name: `message("ServerLiveRequest")`."""
    return _CLASSES[name]
