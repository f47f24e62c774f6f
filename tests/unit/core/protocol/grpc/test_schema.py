from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc


def test_the_descriptor_equals_the_output_of_protoc(tmp_path: Path) -> None:
    package = resources.files("firstline_core.protocol.grpc")
    compiled = tmp_path / "compiled.binpb"
    with resources.as_file(package.joinpath("inference.proto")) as file:
        assert protoc.main(["", f"-I{file.parent}", f"--descriptor_set_out={compiled}", str(file)]) == 0
    checked_in = FileDescriptorSet.FromString(package.joinpath("inference.binpb").read_bytes())
    assert checked_in == FileDescriptorSet.FromString(compiled.read_bytes())
