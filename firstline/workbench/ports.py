"""The input and output that a bundle uses of a model file; recognises outputs that are not a classifier's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from firstline_core.bundle.manifest import Model
from firstline_core.errors import ConfigError, ModelLoadError
from firstline_core.processing.steps import Binary, Columns, Graph, LabelOffset, Softmax
from firstline_core.runtime.base import Runtime, pick_port
from firstline_core.telemetry.wording import counted
from firstline_core.types import DATATYPES, TensorSpec


def input_port(runtime: Runtime, name: str, what: str) -> TensorSpec:
    """Returns an input of the model.

    Args:
        runtime: its loaded file.
        name: "" for the only input.
        what: the model, for messages.

    Raises:
        ConfigError: the model has several inputs and no name was given, none of the name, or one without rows.
    """
    port = _port(runtime.inputs, name, what, "input")
    if len(port.shape) == 1 and port.shape[0] > 1:
        raise ConfigError(
            f"{what}: its input '{port.name}' is declared as {list(port.shape)}, without an axis of rows; "
            f"export the model so that its input is [rows, {port.shape[0]}], or name it in the recipe's `without_rows`."
        )
    return port


def with_output(
    model: Model, runtime: Runtime, labels: Sequence[str], source: Path, warn: Callable[[str], None]
) -> Model:
    """Returns the model with the name of its output, and with the step `binary` if it has one output for two labels.

    Args:
        model: as declared.
        runtime: its loaded file.
        labels: of the bundle.
        source: the user's name of the file, for messages.
        warn: receives a sentence about what is assumed.

    Raises:
        ConfigError: the output is not a classifier's, or there is another number of labels.
    """
    output = _output(runtime, model, source)
    if output.datatype == "BYTES":
        raise ConfigError(
            f"{source.name}: its output '{output.name}' has strings; export the model with its probabilities as output."
        )
    if DATATYPES[output.datatype].kind == "b" or output.datatype in ("INT32", "INT64"):
        raise ConfigError(
            f"{source.name}: its output '{output.name}' is {output.datatype}, which are class numbers and no "
            "probabilities; export the model with its probabilities or logits as output."
        )
    rows = runtime.inputs[0].shape[0]
    if len(output.shape) == 1 and output.shape[0] > 1 and output.shape[0] != rows:
        raise ConfigError(
            f"{source.name}: its output '{output.name}' is declared as {list(output.shape)}, without an axis of rows; "
            "export the model so that its output is [rows, labels], without squeezing, or name it in the recipe's "
            "`without_rows`."
        )
    if not model.output and len(runtime.outputs) > 1:
        model = msgspec.structs.replace(model, output=output.name)
    sizes = output.shape[1:]
    # The rank or a size is unknown, or a graph changes it: only a run can tell.
    if (
        not output.shape
        or any(size < 0 for size in sizes)
        or any(isinstance(step, Graph) for step in model.postprocess)
    ):
        return model
    count = math.prod(sizes)
    if count == 1 and len(labels) == 2:
        return _binary(model, labels, source, warn)
    _check_count(model, output, len(labels), source)
    return model


def _port(specs: Sequence[TensorSpec], name: str, what: str, side: Literal["input", "output"]) -> TensorSpec:
    try:
        return pick_port(specs, name, what, side)
    except ModelLoadError as error:  # the file loads: it is the caller's spec that does not fit it
        raise ConfigError(error.message) from error


def _output(runtime: Runtime, model: Model, source: Path) -> TensorSpec:
    """Returns the declared output, else the only one with real numbers: class numbers may accompany probabilities."""
    what = f"{source.name}: Model '{model.id}'"
    real = [spec for spec in runtime.outputs if DATATYPES[spec.datatype].kind == "f"]
    if model.output or len(runtime.outputs) == 1:
        return _port(runtime.outputs, model.output, what, "output")
    if len(real) == 1:
        return real[0]
    if len(real) > 1 and all(len(spec.shape) == 1 for spec in real):
        names = ", ".join(f"'{spec.name}'" for spec in real[:5])
        raise ConfigError(
            f"{source.name} has an output for each label, {names}, instead of one for all; export the model again with "
            "one tensor of probabilities: options={'zipmap': False} for skl2onnx."
        )
    return _port(runtime.outputs, "", what, "output")


def _binary(model: Model, labels: Sequence[str], source: Path, warn: Callable[[str], None]) -> Model:
    if any(isinstance(step, Softmax) for step in model.postprocess):
        raise ConfigError(
            f"{source.name} has 1 output and there are 2 labels: write binary:logit in place of softmax, which gives 1 "
            "for any single output."
        )
    if any(isinstance(step, Binary) for step in model.postprocess):
        return model
    warn(
        f"{source.name}: its one output is read as the probability of the second label, '{labels[1]}'; write binary as "
        "its postprocessing to confirm this, or binary:logit."
    )
    return msgspec.structs.replace(model, postprocess=(*model.postprocess, Binary()))


def _check_count(model: Model, output: TensorSpec, labels: int, source: Path) -> None:
    """Compares outputs with labels. This is the most common mistake, so the message is detailed."""
    offset = sum(step.offset for step in model.postprocess if isinstance(step, LabelOffset))
    outputs = math.prod(output.shape[1:])
    if any(isinstance(step, Columns) and len(step.indices) == labels for step in model.postprocess):
        return
    if outputs - offset == labels:
        return
    dropped = f", {outputs - offset} after label_offset:{offset}," if offset else ""
    counts = f"{source.name} has {counted(outputs, 'output')}{dropped} and there are {counted(labels, 'label')}"
    if unlike := _unlike_a_classifier(output):
        raise ConfigError(f"{counts}: {unlike}")
    if not offset and outputs == labels + 1:
        raise ConfigError(
            f"{counts}: add label_offset:1 to its postprocessing where its first output is a background class, or give "
            "the label that is missing."
        )
    if labels == outputs - offset + 1:
        raise ConfigError(
            f"{counts}: leave out the first label (--labels-skip 1) where it is a background class that the model "
            f"{'does not count' if not offset else 'drops'}, or correct the labels."
        )
    raise ConfigError(f"{counts}: give the labels of this model, one for each output.")


def _unlike_a_classifier(output: TensorSpec) -> str:
    """Returns a sentence that names the kind of model whose output has this shape; "" for a classifier's."""
    kinds = {0: "the value of a regression model", 2: "the boxes of a detector", 3: "a mask or a feature map"}
    kind = kinds.get(sum(size != 1 for size in output.shape[1:]))
    if kind is None:
        return ""
    return (
        f"output '{output.name}' {list(output.shape)} looks like {kind}. A classifier has one "
        "probability or logit for each label; for two labels one output is enough. A detector needs a recipe with a "
        "table [detection]."
    )
