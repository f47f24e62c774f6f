"""ONNX models that tests use, made when a test needs them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.support.onnx_models import float_graph, write_graph


def average_colours(path: Path, *, dtype: int = TensorProto.FLOAT, size: int | str = "side") -> Path:
    """[n, 3, size, size] to each channel's mean [n, 3]: a classifier of the dominant colour."""
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels"], ["logits"], axes=[2, 3], keepdims=0),
    ]
    return write_graph(
        path,
        nodes,
        [helper.make_tensor_value_info("image", dtype, ["n", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [],
    )


def one_box(path: Path, *, size: tuple[int | str, int | str] = (8, 16), white: float = 1) -> Path:
    """[n, 3, height, width] to rows [n, 1, 6]: the box 4, 2, 8, 6 of class 1, as sure as the image is bright.

    The score is the mean of the pixels divided by `white`.
    """
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["columns"], axes=[2], keepdims=0),
        helper.make_node("ReduceMean", ["columns"], ["mean"], axes=[1, 2]),
        helper.make_node("Mul", ["mean", "score"], ["scored"]),
        helper.make_node("Add", ["scored", "box"], ["rows"]),
    ]
    box = np.array([[[4, 2, 8, 6, 0, 1]]], np.float32)
    score = np.array([[[0, 0, 0, 0, 1 / white, 0]]], np.float32)
    return float_graph(path, nodes, {"x": ["n", 3, *size]}, {"rows": ["n", 1, 6]}, box=box, score=score)


def bright_cells(path: Path) -> Path:
    """[n, 1, 8, 8] to rows [n, 16, 6]: a box for each cell of 2x2 pixels, as sure as the cell is bright."""
    corners = [(x, y, x + 2, y + 2, 0, 0) for y in range(0, 8, 2) for x in range(0, 8, 2)]
    nodes = [
        helper.make_node("Conv", ["x", "mean"], ["cells"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["cells", "shape"], ["scores"]),
        helper.make_node("Mul", ["scores", "column"], ["scored"]),
        helper.make_node("Add", ["scored", "corners"], ["rows"]),
    ]
    constants = {
        "mean": np.full((1, 1, 2, 2), 0.25, np.float32),
        "shape": np.array([-1, 16, 1], np.int64),
        "column": np.array([[[0, 0, 0, 0, 1, 0]]], np.float32),
        "corners": np.array([corners], np.float32),
    }
    return float_graph(path, nodes, {"x": ["n", 1, 8, 8]}, {"rows": ["n", 16, 6]}, **constants)


def linear_model(
    file: Path, *, pixels: int, classes: int, softmax: bool = False, outputs: int = 1, seed: int = 0
) -> Path:
    """`image` FP32 [n, pixels] times made-up weights: `scores` FP32 [n, classes], `outputs` times over."""
    weights = np.random.default_rng(seed).standard_normal((pixels, classes)).astype(np.float32)
    names = ["scores", *(f"scores_{n}" for n in range(1, outputs))]
    nodes = [helper.make_node("MatMul", ["image", "weights"], ["product"])]
    nodes += [helper.make_node("Softmax" if softmax else "Identity", ["product"], [name]) for name in names]
    shapes = {name: ["n", classes] for name in names}
    return float_graph(file, nodes, {"image": ["n", pixels]}, shapes, weights=weights)


def two_inputs(file: Path) -> Path:
    """`a` and `b` FP32 [n, 2] to their sum."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"])]
    return float_graph(file, nodes, {"a": ["n", 2], "b": ["n", 2]}, {"sum": ["n", 2]})


def reversing_graph(file: Path, classes: int) -> Path:
    """A processing graph that turns the classes round."""
    return _product_graph(file, "given", np.eye(classes, dtype=np.float32)[::-1].copy(), "turned")


def first_column_graph(file: Path, classes: int) -> Path:
    """A score graph: the first class's probability."""
    return _product_graph(file, "probabilities", np.eye(classes, 1, dtype=np.float32), "score")


def _product_graph(file: Path, input_name: str, weights: NDArray[np.float32], output_name: str) -> Path:
    nodes, (before, after) = [helper.make_node("MatMul", [input_name, "weights"], [output_name])], weights.shape
    return float_graph(file, nodes, {input_name: ["n", before]}, {output_name: ["n", after]}, weights=weights)


def beep_model(file: Path, samples: int = 8000) -> Path:
    """`waveform` FP32 [n, 8000] to logits [n, 2]: whether a tone of 1 kHz is in the first samples of a second."""
    angles = 2 * np.pi * 1000 * np.arange(8000) / 8000
    waves = np.stack([np.cos(angles), np.sin(angles)], axis=1) / samples
    waves[samples:] = 0
    constants: dict[str, Any] = {"waves": waves, "gains": [[0, 400]], "offsets": [2, 0]}
    nodes = [
        helper.make_node("MatMul", ["waveform", "waves"], ["parts"]),
        helper.make_node("ReduceSumSquare", ["parts"], ["energy"], axes=[1]),
        helper.make_node("MatMul", ["energy", "gains"], ["scaled"]),
        helper.make_node("Add", ["scaled", "offsets"], ["logits"]),
    ]
    weights = {name: np.array(array, np.float32) for name, array in constants.items()}
    return float_graph(file, nodes, {"waveform": ["n", 8000]}, {"logits": ["n", 2]}, **weights)


def word_model(file: Path, words: int, *, tokens: int | str = "tokens") -> Path:
    """`input_ids` and `attention_mask` INT64 [n, tokens] to logits [n, 2]: odd words for the second class."""
    weights = np.array([[4, 0], [0, 4]] * words, np.float32)[:words]
    return write_graph(
        file,
        [
            helper.make_node("Gather", ["weights", "input_ids"], ["each"]),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
            helper.make_node("Mul", ["each", "column"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "one"], ["logits"], keepdims=0),
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n", tokens])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([1]), "one"),
        ],
    )
