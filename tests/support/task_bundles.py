"""A tiny bundle of each task, with a request for it and its answer."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from support.images import encode, images
from support.sample_bundles import NUMBERS, detector_bundle, number_bundle

from bench.support.bundles import artefact, model, write_manifest
from bench.support.onnx_models import float_graph, linear, write_graph
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.bundle.store import Bundle
from firstline_core.processing.steps import Argmax, Ctc, Decode, Gallery, Layout, Resize, Scale, Softmax, Threshold
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.base import Task
from firstline_core.tasks.embedding import Embedding
from firstline_core.tasks.regression import Regression
from firstline_core.tasks.segmentation import Segmentation
from firstline_core.tasks.tensors import DeclaredTensor, Tensors
from firstline_core.tasks.text import Text
from firstline_core.types import Arrays, Tensor

_PICTURE = np.full((80, 80, 3), 255, np.uint8)
_NUMBERS = Tensor("x", np.array([[1, -2], [-3, 4], [0.5, 0.25]], np.float32))


def _photos() -> Tensor:
    left = _PICTURE.copy()
    left[:, 40:] = 0
    return images(encode(_PICTURE), encode(left))


def _with_full(root: Path, path: Path, task: Task, score: str = "", **fields: Any) -> Bundle:
    """A bundle whose edge and full model are the same."""
    inputs = {name: fields.pop(name) for name in ("inputs",) if name in fields}
    edge = model(path, root, id="edge", **fields)
    policy = Policy(Score(score or task.score_kinds[0]), 0.0)
    full = msgspec.structs.replace(edge, id="full")
    return write_manifest(root, [edge], (), task=task, full=full, policy=policy, **inputs)


def _classification(root: Path) -> Bundle:
    bundle = number_bundle(root)
    edge = bundle.manifest.edge[0]
    return write_manifest(root, [edge], ["a", "b"], inputs=(NUMBERS,), full=msgspec.structs.replace(edge, id="full"))


def _regression(root: Path) -> Bundle:
    path = linear(root / "m.onnx", np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    return _with_full(root, path, Regression(("a", "b", "c"), absolute=1), "small_values", inputs=(NUMBERS,))


def _segmentation(root: Path) -> Bundle:
    """Pixels [n, 3, 32, 64] are their own logits: the label is the brightest channel."""
    shape, nodes = ["n", 3, 32, 64], [helper.make_node("Identity", ["x"], ["logits"])]
    path = float_graph(root / "m.onnx", nodes, {"x": shape}, {"logits": shape})
    steps = (Decode(), Resize(64, 32), Scale(), Layout("NCHW"))
    task = Segmentation(("red", "green", "blue"), width=64, height=32)
    return _with_full(root, path, task, preprocess=steps, postprocess=(Softmax(), Argmax("NCHW")))


def _anomaly(root: Path) -> Bundle:
    path = linear(root / "m.onnx", np.array([[1], [1]], np.float32))
    return _with_full(root, path, Anomaly(), postprocess=(Threshold(0.5),), inputs=(NUMBERS,))


def _embedding(root: Path) -> Bundle:
    path = linear(root / "m.onnx", np.eye(2, dtype=np.float32))
    np.save(root / "gallery.npy", np.array([[1, -1], [-1, 1]], np.float32))
    steps = (Gallery(artefact(root / "gallery.npy", root), least=0.1),)
    return _with_full(root, path, Embedding(3, labels=("left", "right")), postprocess=steps, inputs=(NUMBERS,))


def _tensors(root: Path) -> Bundle:
    """Outputs of several datatypes, of 60,000 elements a row."""
    large = (-1, 200, 300)
    kinds = {
        "BOOL": TensorProto.BOOL,
        "UINT8": TensorProto.UINT8,
        "INT64": TensorProto.INT64,
        "FP16": TensorProto.FLOAT16,
    }
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=1),
        helper.make_node("Unsqueeze", ["sum", "axis"], ["cell"]),
        helper.make_node("Expand", ["cell", "shape"], ["field"]),
        helper.make_node("Relu", ["field"], ["positive"]),
    ]
    nodes += [helper.make_node("Cast", ["positive"], [name.lower()], to=kind) for name, kind in kinds.items()]
    path = write_graph(
        root / "m.onnx",
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info(name.lower(), kind, ["n", *large[1:]]) for name, kind in kinds.items()],
        [numpy_helper.from_array(np.array([1]), "axis"), numpy_helper.from_array(np.array([1, *large[1:]]), "shape")],
    )
    declared = tuple(DeclaredTensor(name.lower(), name, large) for name in kinds)
    return _with_full(root, path, Tensors(declared, absolute=0.1), inputs=(NUMBERS,))


def _text(root: Path) -> Bundle:
    """Five steps of four symbols, the blank among them; one symbol has two bytes in UTF-8."""
    symbols = root / "symbols.txt"
    symbols.write_text("a\nb\n\u00fc\n", encoding="utf-8")
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["logits"]),
    ]
    weights, shape = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32), np.array([0, 5, 4])
    path = float_graph(root / "m.onnx", nodes, {"x": ["n", 2]}, {"logits": ["n", 5, 4]}, weights=weights, shape=shape)
    steps = (Softmax(), Ctc(artefact(symbols, root)))
    return _with_full(root, path, Text(), inputs=(NUMBERS,), postprocess=steps)


TASKS: Mapping[str, tuple[Callable[[Path], Bundle], Tensor]] = {
    "classification": (_classification, _NUMBERS),
    "detection": (detector_bundle, _photos()),
    "segmentation": (_segmentation, _photos()),
    "regression": (_regression, _NUMBERS),
    "anomaly": (_anomaly, _NUMBERS),
    "embedding": (_embedding, _NUMBERS),
    "text": (_text, _NUMBERS),
    "tensors": (_tensors, _NUMBERS),
}
"""What writes a bundle of each task into a folder, and the input of a request for it."""


def write_tasks(folder: Path) -> dict[str, Arrays]:
    """Writes a bundle of each task, named after it, and returns the outputs for its request."""
    expected: dict[str, Arrays] = {}
    for name, (write, inputs) in TASKS.items():
        root = folder / name
        root.mkdir(parents=True)
        written = write(root).manifest
        bundle = write_manifest(
            root,
            written.edge,
            (),
            **{field: getattr(written, field) for field in ("task", "inputs", "full", "policy")},
            name=name,
        )
        with closing(load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())) as loaded:
            expected[name] = loaded.predict({inputs.name: inputs.array}).outputs
    return expected
