"""Small ONNX and TFLite graphs, and what a row's answer depends on in each: nothing else, the batch, or the run.

A graph is a chain of blocks on `x` FP32 [n, 4]. Blocks after an impure one keep what it changed, so that the last
output shows it. Some pure blocks look impure: a softmax over the first axis of transposed values, noise times 0.
"""

from __future__ import annotations

import tempfile
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import Builder
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import write_graph
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.row_check import RowCheck, check_model_rows
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InferenceError
from firstline_core.processing.steps import InputSpec, PreStep
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Arrays

WIDTH = 4
_ROWS = 12

DependsOn = Literal["nothing", "batch", "run"]
_ORDER: tuple[DependsOn, ...] = ("nothing", "batch", "run")


class GraphInput(NamedTuple):
    """A graph to build.

    Args:
        runtime: "onnx" or "tflite".
        blocks: names of its blocks, in order.
        seed: of its weights and of the rows.
        batch: of the manifest.
    """

    runtime: Literal["onnx", "tflite"]
    blocks: tuple[str, ...]
    seed: int
    batch: Literal[1] | None

    @property
    def depends_on(self) -> DependsOn:
        """What a row's answer depends on by construction, run as the manifest says."""
        table = _table(self.runtime)
        found = max(
            (at for at, kind in enumerate(_ORDER) if any(name in table[kind] for name in self.blocks)), default=0
        )
        return "nothing" if self.batch == 1 and _ORDER[found] == "batch" else _ORDER[found]


def _table(runtime: str) -> Mapping[DependsOn, Mapping[str, object]]:
    return _ONNX if runtime == "onnx" else _TFLITE


def graph_input(random: Random) -> GraphInput:
    """Returns a graph with up to two impure blocks."""
    runtime: Literal["onnx", "tflite"] = "tflite" if random.random() < 0.15 else "onnx"
    table = _table(runtime)
    pure, impure = [*table["nothing"]], [*table["batch"], *table["run"]]
    before = random.choices(pure, k=random.randint(0, 3))
    changed = random.choices(impure, k=random.choice((0, 0, 1, 1, 2)))
    after = ["product"] * random.randint(0, 2) if changed else random.choices(pure, k=random.randint(0, 2))
    return GraphInput(runtime, (*before, *changed, *after), random.randrange(2**32), random.choice((None, None, 1)))


@contextmanager
def loaded_graph(graph: GraphInput, *preprocess: PreStep) -> Iterator[tuple[Bundle, LoadedModel, Arrays]]:
    """Builds the graph and loads a bundle of it; yields both, and rows that differ in their magnitudes.

    Args:
        graph: its description.
        preprocess: steps before the model, which keep the width of a row.
    """
    with tempfile.TemporaryDirectory() as folder:
        root, rng = Path(folder), np.random.default_rng(graph.seed)
        file = (_write_onnx if graph.runtime == "onnx" else _write_tflite)(root, graph.blocks, rng)
        declared = model(file, root, preprocess=preprocess, batch=graph.batch)
        spec = InputSpec("x", "FP32", (-1, WIDTH))
        bundle = write_manifest(root, [declared], [str(label) for label in range(WIDTH)], inputs=(spec,))
        rows = rng.standard_normal((_ROWS, WIDTH)) * np.resize([1.0, 0.1, 5.0], _ROWS)[:, None]
        with closing(load_model(bundle, bundle.manifest.models[0], RuntimeOptions())) as loaded:
            yield bundle, loaded, {"x": rows.astype(np.float32)}


def check_graph(graph: GraphInput) -> RowCheck:
    """Builds the graph and checks a bundle of it as every tier does.

    Raises:
        AssertionError: the check finds something else than was built in.
        InferenceError: the answer of a row depends on something else than the row.
    """
    with loaded_graph(graph) as (bundle, loaded, rows):
        found = check_model_rows(bundle, loaded, rows)
    assert found.depends_on == graph.depends_on, f"{graph} was found to depend on {found.depends_on}: {found}"
    if found.depends_on != "nothing":
        raise InferenceError(found.sentence(loaded.model.id))
    return found


def _orthogonal(rng: np.random.Generator) -> NDArray[np.float32]:
    """Weights that keep lengths, so that no difference is lost."""
    return np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)


# ONNX.


class _Onnx:
    """The nodes and weights of a graph that is being built."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._names = 0

    def add(self, kind: str, *operands: str | NDArray[Any], outputs: int = 1, **attributes: Any) -> str:
        """Adds an operator, with arrays as weights, and returns the name of its first output."""
        return self.add_all(kind, *operands, outputs=outputs, **attributes)[0]

    def add_all(self, kind: str, *operands: str | NDArray[Any], outputs: int, **attributes: Any) -> list[str]:
        """Adds an operator and returns the names of all its outputs."""
        names = [one if isinstance(one, str) else self._weight(one) for one in operands]
        made = [self._name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, names, made, **attributes))
        return made

    def quantised(self, value: str) -> str:
        """Adds dynamic quantisation and its reversal."""
        return self.add("DequantizeLinear", *self.add_all("DynamicQuantizeLinear", value, outputs=3))

    def _weight(self, array: NDArray[Any]) -> str:
        name = self._name()
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def _name(self) -> str:
        self._names += 1
        return f"t{self._names}"


def _transposed(graph: _Onnx, value: str, kind: str, **attributes: Any) -> str:
    """Applies an operator to the transposed values."""
    turned = graph.add("Transpose", value, perm=[1, 0])
    return graph.add("Transpose", graph.add(kind, turned, **attributes), perm=[1, 0])


def _floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def _normalised(graph: _Onnx, value: str, *, training: int) -> str:
    ones = np.ones(WIDTH, np.float32)
    weights = [ones, ones, np.zeros(WIDTH, np.float32), ones]
    outputs = 3 if training else 1
    return graph.add("BatchNormalization", value, *weights, outputs=outputs, training_mode=training)


def _dropped(graph: _Onnx, value: str, *, training: bool) -> str:
    """Uses the mask too: ONNX Runtime removes a dropout in training mode whose mask is unused."""
    output, mask = graph.add_all("Dropout", value, np.array(0.5, np.float32), np.array(training), outputs=2)
    return graph.add("Add", output, graph.add("Cast", mask, to=1))


def _noise(graph: _Onnx, value: str, factor: float) -> str:
    noise = graph.add("RandomUniformLike", value, dtype=1)
    return graph.add("Add", value, graph.add("Mul", noise, _floats(factor)))


def _divided(graph: _Onnx, value: str) -> str:
    """Divides by the largest input of the batch."""
    return graph.add("Div", value, graph.add("Add", graph.add("ReduceMax", graph.add("Abs", "x")), _floats(0.1)))


OnnxBlock = Callable[[_Onnx, str], str]

_ONNX: dict[DependsOn, dict[str, OnnxBlock]] = {
    "nothing": {
        "product": lambda g, x: g.add("MatMul", x, _orthogonal(g.rng)),
        "bias": lambda g, x: g.add("Add", x, g.rng.standard_normal(WIDTH).astype(np.float32)),
        "softmax": lambda g, x: g.add("Softmax", x, axis=-1),
        "transposed softmax": lambda g, x: _transposed(g, x, "Softmax", axis=0),
        "transposed mean": lambda g, x: g.add("Sub", x, _transposed(g, x, "ReduceMean", axes=[0], keepdims=1)),
        "tanh": lambda g, x: g.add("Tanh", x),
        "rectifier": lambda g, x: g.add("Relu", x),
        "centred classes": lambda g, x: g.add("Sub", x, g.add("ReduceMean", x, axes=[1], keepdims=1)),
        "running sum of classes": lambda g, x: g.add("CumSum", x, np.array(1)),
        "normalised": lambda g, x: _normalised(g, x, training=0),
        "dropout": lambda g, x: _dropped(g, x, training=False),
        "noise times 0": lambda g, x: _noise(g, x, 0.0),
        "quantised weights": lambda g, x: g.add("MatMul", x, g.quantised(g.add("Identity", _orthogonal(g.rng)))),
    },
    "batch": {
        "softmax over rows": lambda g, x: g.add("Add", x, g.add("Softmax", x, axis=0)),
        "mean of the rows": lambda g, x: g.add("Add", x, g.add("ReduceMean", x, axes=[0], keepdims=1)),
        "running sum of rows": lambda g, x: g.add("CumSum", x, np.array(0)),
        "divided by the largest": _divided,
        "quantised dynamically": lambda g, x: g.quantised(g.add("Add", x, "x")),  # `x`, for different ranges
    },
    "run": {
        "dropout in training": lambda g, x: _dropped(g, x, training=True),
        "noise": lambda g, x: _noise(g, x, 1.0),
        "normalised in training": lambda g, x: _normalised(g, x, training=1),
    },
}
"""By what an answer depends on after each block: the blocks by name."""


def _write_onnx(root: Path, blocks: tuple[str, ...], rng: np.random.Generator) -> Path:
    graph = _Onnx(rng)
    value = "x"
    made = ChainMap(*_ONNX.values())
    for name in blocks:
        value = made[name](graph, value)
    last = graph.add("Identity", value)
    ports = [helper.make_tensor_value_info(name, 1, ["n", WIDTH]) for name in ("x", last)]
    return write_graph(root / "m.onnx", graph.nodes, ports[:1], ports[1:], graph.weights)


# TFLite.


def _object(kind: str, **fields: object) -> Any:
    """Returns an object of the schema with these fields."""
    made = getattr(schema, f"{kind}T")()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _subgraph() -> Any:
    return _object("SubGraph", tensors=[], operators=[], inputs=[], outputs=[])


class _TfLite:
    """A subgraph that is being built; its batch is 1, as in most converted models."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.graph = _subgraph()
        self.model = _object("Model", version=3, operatorCodes=[], buffers=[schema.BufferT()], subgraphs=[self.graph])

    def tensor(
        self, shape: tuple[int, ...], content: NDArray[Any] | None = None, kind: int = 0, *, is_variable: bool = False
    ) -> int:
        """Adds a tensor, FP32 if `content` does not say otherwise, and returns its index."""
        buffer = 0
        if content is not None:
            buffer = len(self.model.buffers)
            kind = {"f": schema.TensorType.FLOAT32, "i": schema.TensorType.INT32}[content.dtype.kind]
            self.model.buffers.append(_object("Buffer", data=np.frombuffer(content.tobytes(), np.uint8)))
        index = len(self.graph.tensors)
        fields = {"shape": list(shape), "type": kind, "isVariable": is_variable, "name": f"t{index}", "buffer": buffer}
        self.graph.tensors.append(_object("Tensor", **fields))
        return index

    def constant(self, content: NDArray[Any]) -> int:
        """Adds a weight and returns its index."""
        return self.tensor(content.shape, content)

    def add(self, kind: str, inputs: list[int], *, options: str = "", made: int | None = None, **fields: object) -> int:
        """Adds an operator and returns the index of its output, FP32 [1, WIDTH] unless `made` names one."""
        code = getattr(schema.BuiltinOperator, kind)
        made = self.tensor((1, WIDTH)) if made is None else made
        outputs = [made] if made >= 0 else []
        operator = _object("Operator", opcodeIndex=len(self.model.operatorCodes), inputs=inputs, outputs=outputs)
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = _object(options, **fields)
        self.model.operatorCodes.append(_object("OperatorCode", builtinCode=code, deprecatedBuiltinCode=min(code, 127)))
        self.graph.operators.append(operator)
        return made

    def handle(self, name: str) -> int:
        """Adds a reference to a resource variable."""
        made = self.tensor((), kind=schema.TensorType.RESOURCE)
        return self.add("VAR_HANDLE", [], made=made, options="VarHandleOptions", container="", sharedName=name)

    def assign(self, handle: int, value: int) -> None:
        self.add("ASSIGN_VARIABLE", [handle, value], made=-1, options="AssignVariableOptions")

    def product(self, value: int) -> int:
        weights = self.constant(_orthogonal(self.rng))
        return self.add("FULLY_CONNECTED", [value, weights, -1], options="FullyConnectedOptions")

    def sum(self, first: int, second: int) -> int:
        return self.add("ADD", [first, second], options="AddOptions")


def _lite_noise(graph: _TfLite, value: int, factor: float) -> int:
    shape = graph.constant(np.array([1, WIDTH], np.int32))
    noise = graph.add("RANDOM_UNIFORM", [shape], options="RandomOptions", seed=0, seed2=0)
    return graph.sum(value, graph.add("MUL", [noise, graph.constant(_floats(factor))], options="MulOptions"))


def _lite_memory(graph: _TfLite, value: int) -> int:
    """A filter over the last values, whose variable every tier resets."""
    memory = 3
    feature, time = graph.constant(_orthogonal(graph.rng)), graph.constant(np.ones((WIDTH, memory), np.float32))
    state = graph.tensor((1, memory * WIDTH), is_variable=True)
    return graph.add("SVDF", [value, feature, time, -1, state], options="SVDFOptions", rank=1)


def _lite_counter(graph: _TfLite, value: int) -> int:
    """Adds the number of earlier runs, from a resource variable, which an interpreter does not reset."""
    name = f"v{len(graph.model.subgraphs)}"
    main, graph.graph = graph.graph, _subgraph()
    graph.model.subgraphs.append(graph.graph)
    graph.assign(graph.handle(name), graph.constant(np.zeros((1, WIDTH), np.float32)))
    graph.graph = main
    graph.add("CALL_ONCE", [], made=-1, options="CallOnceOptions", initSubgraphIndex=len(graph.model.subgraphs) - 1)
    handle = graph.handle(name)
    before = graph.add("READ_VARIABLE", [handle], options="ReadVariableOptions")
    graph.assign(handle, graph.sum(before, graph.constant(np.ones((1, WIDTH), np.float32))))
    return graph.sum(value, before)


TfLiteBlock = Callable[[_TfLite, int], int]

_TFLITE: dict[DependsOn, dict[str, TfLiteBlock]] = {
    "nothing": {
        "product": lambda g, x: g.product(x),
        "softmax": lambda g, x: g.add("SOFTMAX", [x], options="SoftmaxOptions", beta=1.0),
        "tanh": lambda g, x: g.add("TANH", [x]),
        "memory": _lite_memory,
        "noise times 0": lambda g, x: _lite_noise(g, x, 0.0),
    },
    "batch": {},
    "run": {"noise": lambda g, x: _lite_noise(g, x, 1.0), "counter": _lite_counter},
}
"""As `_ONNX`. An interpreter runs one row at a time, so that no block depends on the batch."""


def _write_tflite(root: Path, blocks: tuple[str, ...], rng: np.random.Generator) -> Path:
    built = _TfLite(rng)
    first = value = built.tensor((1, WIDTH))
    built.graph.tensors[first].name = "x"
    made = ChainMap(*_TFLITE.values())
    for name in (*blocks, "product"):
        value = made[name](built, value)
    built.graph.inputs, built.graph.outputs = [first], [value]
    builder = Builder()
    builder.Finish(built.model.Pack(builder), b"TFL3")
    file = root / "m.tflite"
    file.write_bytes(bytes(builder.Output()))
    return file
