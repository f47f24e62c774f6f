import subprocess
import sys
from importlib import resources
from pathlib import Path

import onnx
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc
from onnx import helper
from support.sample_models import linear_model

from firstline_core.runtime.onnx_file import messages, parse_model, text_of


def test_the_declaration_is_that_of_the_package_onnx(tmp_path: Path) -> None:
    compiled, site = tmp_path / "compiled.binpb", Path(onnx.__file__).parents[1]
    assert protoc.main(["", f"-I{site}", f"--descriptor_set_out={compiled}", "onnx/onnx-ml.proto"]) == 0
    checked_in = FileDescriptorSet.FromString(
        resources.files("firstline_core.runtime").joinpath("onnx.binpb").read_bytes()
    )
    assert checked_in == FileDescriptorSet.FromString(compiled.read_bytes())


def test_messages_are_read_in_the_order_of_the_graph(tmp_path: Path) -> None:
    model = onnx.load(linear_model(tmp_path / "m.onnx", pixels=4, classes=2))
    found = list(messages(parse_model(model.SerializeToString()).graph))
    nodes = [each.op_type for each in found if each.DESCRIPTOR.name == "NodeProto"]
    assert nodes == [node.op_type for node in model.graph.node]
    tensors = [each.name for each in found if each.DESCRIPTOR.name == "TensorProto"]
    assert tensors == [tensor.name for tensor in model.graph.initializer]


def test_a_file_that_is_not_onnx_is_refused() -> None:
    with pytest.raises(ValueError, match="not an ONNX file"):
        parse_model(b"hello")


_PARSE_WITH_LITTLE_MEMORY = """
import resource
from firstline_core.runtime.onnx_file import parse_model
content = b"\\x12\\x80\\x80\\x80\\x20" + bytes(1 << 26)  # a long name of the producer
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 25),) * 2)
try:
    parse_model(content)
except MemoryError:
    print("MemoryError")
"""


def test_too_little_memory_is_no_damage() -> None:
    found = subprocess.run([sys.executable, "-c", _PARSE_WITH_LITTLE_MEMORY], capture_output=True, text=True)
    assert found.stdout == "MemoryError\n", found.stderr


def test_a_name_that_is_not_utf_8_is_text() -> None:
    model = helper.make_model(helper.make_graph([], "graph", [], []), producer_name="producer")
    damaged = model.SerializeToString().replace(b"producer", b"\xff\xfeoducer")
    assert text_of(parse_model(damaged).producer_name) == "\ufffd\ufffdoducer"
