"""The models as ONNX. Input `image` FP32 [n, 8, 8, 1] in 0..1, output `logits` FP32 [n, 10], any n."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from training import KernelMachine, Linear

# Old enough for every ONNX Runtime that a device still carries.
OPSET = 17
IR_VERSION = 8


def edge_onnx(model: Linear) -> bytes:
    """One matrix product."""
    return _serialised(
        "digits_edge",
        [
            helper.make_node("Flatten", ["image"], ["pixels"]),
            helper.make_node("Gemm", ["pixels", "weights", "bias"], ["logits"], transB=1),
        ],
        {"weights": model.weights, "bias": model.bias},
    )


def full_onnx(model: KernelMachine) -> bytes:
    """The kernel in plain tensor operators, with |x - c|^2 written as |x|^2 - 2 x.c + |c|^2.

    The centres are stored as bytes, a quarter of their size; a runtime unpacks them once, when it loads the model.
    The dual weights are stored to 4 decimals: a solver's last digits differ from processor to processor, and
    would change the file. It moves logits by about 0.001.
    """
    unit = model.centres.astype(np.float64) / 255
    return _serialised(
        "digits_full",
        [
            helper.make_node("Flatten", ["image"], ["pixels"]),
            helper.make_node("Cast", ["centres_uint8"], ["centres_255"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["centres_255", "one_255th"], ["centres"]),
            helper.make_node(
                "Gemm",
                ["pixels", "centres", "minus_gamma_centre_norms"],
                ["near"],
                alpha=2 * model.gamma,
                transB=1,
            ),
            helper.make_node("ReduceSumSquare", ["pixels"], ["norms"], axes=[1], keepdims=1),
            helper.make_node("Mul", ["norms", "gamma"], ["gamma_norms"]),
            helper.make_node("Sub", ["near", "gamma_norms"], ["minus_gamma_distances"]),
            helper.make_node("Exp", ["minus_gamma_distances"], ["kernel"]),
            helper.make_node("MatMul", ["kernel", "dual"], ["logits"]),
        ],
        {
            "centres_uint8": model.centres,
            "one_255th": np.float32(1 / 255),
            "minus_gamma_centre_norms": (-model.gamma * (unit**2).sum(axis=1)).astype(np.float32),
            "gamma": np.float32(model.gamma),
            "dual": np.round(model.dual, 4).astype(np.float32),
        },
    )


def _serialised(name: str, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray | np.generic]) -> bytes:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 8, 8, 1])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()],
    )
    model = helper.make_model(
        graph,
        producer_name="firstline models/digits",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))
