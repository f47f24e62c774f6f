"""Cuts a bundle's full model and measures the cuts on this machine, on given data."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

import numpy as np

from firstline.workbench.data.dataset import Dataset
from firstline.workbench.observe import Progress
from firstline.workbench.quality import quality
from firstline.workbench.splitting.checkpoint import Checkpoint
from firstline.workbench.splitting.graphs import onnx_cut, onnx_points
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.planning.split import Cut, Form, FormName, Splits
from firstline_core.runtime.base import Runtime
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.tasks.base import Task
from firstline_core.types import Array, Arrays, join_rows, payload_bytes

AUTO = "auto"
_NARROWER = 0.9
_MOST = 6
_SCALED = 16
_FORMS: tuple[FormName, ...] = ("fp32", "fp16", "int8")

Given = ParamSpec("Given")
Result = TypeVar("Result")
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Halves:
    """A model cut at one tensor, both halves loaded."""

    tensor: str
    head: Runtime
    tail: Runtime

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor, of one row."""
        return (1, *self.tail.inputs[0].shape[1:])

    def checkpoints(self) -> list[Checkpoint]:
        """Returns all encodings of the tensor."""
        shape = self.shape
        # A scale takes eight bytes, too many for a channel of a few numbers.
        wide = len(shape) == 4 and math.prod(shape) >= _SCALED * shape[1]
        return [Checkpoint(form, shape, 1 if wide else None) for form in _FORMS]

    def begin(self, rows: Arrays) -> Array:
        """Computes the tensor from the whole model's prepared rows, whose first tensor is its input."""
        values = next(iter(rows.values()))
        return self.head.run({self.head.inputs[0].name: values})[self.head.outputs[0].name]

    def finish(self, tensor: Array, whole: LoadedModel, rows: Arrays) -> Arrays:
        """Computes the whole model's answer from the tensor and the prepared rows."""
        return whole.finish(self.tail.run({self.tail.inputs[0].name: tensor}), rows)


class _Measurements:
    """Measurements of the rows: seconds by step, and answers and sizes by tensor and form (without both: the whole)."""

    def __init__(self) -> None:
        self.seconds: defaultdict[Key, list[float]] = defaultdict(list)
        self.answers: defaultdict[Key, list[Arrays]] = defaultdict(list)
        self.sizes: defaultdict[Key, list[int]] = defaultdict(list)

    def timed(self, key: Key, call: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
        """Calls a function and records its seconds."""
        began_s = time.perf_counter()
        result = call(*given, **named)
        self.seconds[key].append(time.perf_counter() - began_s)
        return result

    def median_ms(self, *key: str) -> float:
        """Returns the median of a step."""
        return round(1000 * float(np.median(self.seconds[key])), 5)


def measure_splits(
    bundle: Bundle,
    dataset: Dataset,
    *,
    at: str = AUTO,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> Splits:
    """Measures the whole model and its cuts in turns, row by row, so that other work affects all of them alike.

    Args:
        bundle: with a full model that takes encoded images.
        dataset: images; labels may be absent.
        at: the tensor to cut at; "auto" takes those that are a tenth narrower than all before them, because an earlier
            cut that sends no more leaves more to the faster side.
        options: how the models run.
        progress: receives the number of measured rows and their total.

    Raises:
        ConfigError: no full model, a model that cannot be cut there, or data that does not fit.
        ModelLoadError: the model, or a half of it, does not load here.
    """
    model = full_of(bundle)
    if model.without_rows:
        raise ConfigError(f"'{model.id}' has no axis of rows; export it with one to split it.")
    with ExitStack() as stack:
        whole = load_model(bundle, model, options)
        stack.callback(whole.close)
        truth = dataset.truth(bundle.manifest.task, bundle.manifest.inputs)
        rows = [row for _, row in dataset.rows(bundle.manifest.inputs)]
        tensors, found = chosen(bundle, whole, rows[0], at, options)
        cuts = [stack.enter_context(halves(bundle, tensor, options)) for tensor in tensors]
        _measure_row(whole, cuts, rows[0], _Measurements())  # the first run includes lazy initialisation
        measurements = _Measurements()
        for done, row in enumerate(rows, 1):
            _measure_row(whole, cuts, row, measurements)
            progress(done, len(rows))
    return Splits(
        bundle=bundle.manifest.name,
        version=bundle.manifest.version,
        model=model.id,
        model_digest=model.digest,
        runtime=whole.runtime.provider,
        threads=options.threads,
        prepare_ms=measurements.median_ms("prepare"),
        model_ms=measurements.median_ms("model"),
        input_bytes=sum(payload_bytes(row.values()) for row in rows) / len(rows),
        rows=len(rows),
        points=found,
        cuts=tuple(_cut_of(cut, measurements, bundle.manifest.task, truth) for cut in cuts),
    )


def full_of(bundle: Bundle) -> Model:
    """The model to cut.

    Raises:
        ConfigError: the bundle has no full model, that model is not in ONNX, or the inputs are not encoded images.
    """
    manifest = bundle.manifest
    if manifest.full is None:
        raise ConfigError(f"Bundle '{manifest.name}' has no full model to cut.")
    if len(manifest.inputs) > 1 or manifest.inputs[0].kind != "image":
        names = ", ".join(f"'{spec.name}' of kind {spec.kind}" for spec in manifest.inputs)
        raise ConfigError(f"Only a full model of one image is cut, and the bundle takes {names}.")
    if manifest.full.runtime != "onnx":
        raise ConfigError(f"'{manifest.full.id}' is a TFLite model, and only ONNX models are cut; export it as ONNX.")
    return manifest.full


def cut_files(bundle: Bundle, tensor: str) -> tuple[bytes, bytes]:
    """Returns both halves of the full model as files.

    Raises:
        ConfigError: the model cannot be cut there.
    """
    model = full_of(bundle)
    return onnx_cut(bundle.file(model.artefact).read_bytes(), tensor, model.inputs[0].tensor, model.output)


@contextmanager
def halves(bundle: Bundle, tensor: str, options: RuntimeOptions) -> Iterator[Halves]:
    """Yields both halves of the full model, loaded.

    Raises:
        ConfigError: the model cannot be cut there.
        ModelLoadError: a half does not load here.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="firstline-split-")))
        loaded: list[Runtime] = []
        for name, content in zip(("head", "tail"), cut_files(bundle, tensor), strict=True):
            path = folder / f"{name}.onnx"
            path.write_bytes(content)
            loaded.append(load_runtime(path, "onnx", options))
            stack.callback(loaded[-1].close)
        yield Halves(tensor, *loaded)


def chosen(
    bundle: Bundle, whole: LoadedModel, inputs: Arrays, at: str, options: RuntimeOptions
) -> tuple[list[str], int]:
    """Returns the tensors to cut at, and the number of possible ones.

    Raises:
        ConfigError: the model has no such tensor, or none at all.
    """
    content = bundle.file(whole.model.artefact).read_bytes()
    points = onnx_points(content, whole.inputs[0].port.name, whole.output_names[0])
    if not points:
        raise ConfigError(f"Model '{whole.model.id}' has no place at which one tensor alone crosses.")
    if at != AUTO:
        if at not in points:
            raise ConfigError(f"Model '{whole.model.id}' cannot be cut at '{at}'; name one of {', '.join(points)}.")
        return [at], len(points)
    rows = whole.prepare(inputs)
    sizes = {}
    for point in points:
        with halves(bundle, point, options) as made:
            value = made.begin(rows)
            sizes[point] = min(len(one.pack(value)) for one in made.checkpoints())
    return narrowest(sizes), len(points)


def narrowest(sizes: dict[str, int]) -> list[str]:
    """Returns the tensors that are a tenth smaller than all before them; if there are many, the last ones."""
    kept: list[str] = []
    for tensor, size_bytes in sizes.items():
        if not kept or size_bytes < _NARROWER * sizes[kept[-1]]:
            kept.append(tensor)
    return kept[-_MOST:]


def _measure_row(whole: LoadedModel, cuts: Sequence[Halves], inputs: Arrays, into: _Measurements) -> None:
    rows = into.timed(("prepare",), whole.prepare, inputs)
    into.answers[()].append(into.timed(("model",), whole.run, rows))
    for cut in cuts:
        crossing = into.timed(("head", cut.tensor), cut.begin, rows)
        for checkpoint in cut.checkpoints():
            key = cut.tensor, checkpoint.form
            packed = into.timed(("pack", *key), checkpoint.pack, crossing)
            unpacked = into.timed(("unpack", *key), checkpoint.unpack, packed)
            answer = into.timed(("tail", cut.tensor), cut.finish, unpacked, whole, rows)
            into.sizes[key].append(len(packed))
            into.answers[key].append(answer)


def _cut_of(cut: Halves, found: _Measurements, task: Task, truth: Arrays | None) -> Cut:
    return Cut(
        tensor=cut.tensor,
        shape=cut.shape,
        head_ms=found.median_ms("head", cut.tensor),
        tail_ms=found.median_ms("tail", cut.tensor),
        forms=tuple(_form(cut.tensor, checkpoint, found, task, truth) for checkpoint in cut.checkpoints()),
    )


def _form(tensor: str, checkpoint: Checkpoint, found: _Measurements, task: Task, truth: Arrays | None) -> Form:
    key = tensor, checkpoint.form
    through, whole = join_rows(found.answers[key]), join_rows(found.answers[()])
    lost = None if truth is None else quality(task, whole, {}, truth) - quality(task, through, {}, truth)
    return Form(
        name=checkpoint.form,
        raw_bytes=checkpoint.raw_bytes,
        sent_bytes=float(np.mean(found.sizes[key])),
        pack_ms=found.median_ms("pack", *key),
        unpack_ms=found.median_ms("unpack", *key),
        disagreement=float(task.loss(through, whole).mean(dtype=np.float64)),
        accuracy_loss=None if lost is None else round(lost, 12),
    )
