"""Trains a smaller model of a bundle to answer as a larger one does, on images without labels. Needs `[train]`.

The weights are trained in PyTorch and written back into the ONNX file, node by node, so that nothing else in the file
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.errors import ConfigError
from firstline_core.runtime.base import RowByRow
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Array

_BATCH = 64
_TEMPERATURE = 2.0
_RATE = 5e-4  # of a model that is trained already
_WARM_UP = 0.05
_SHIFT = 4
_NOISE = 0.05
_MIXED = 0.5  # share of the batches that are mixed
_NORMALISING_ROWS = 256
_MARK = "normalised"


class Lesson(Struct, frozen=True):
    """How a student is trained.

    Attributes:
        start: id of the model that it starts as.
        epochs: how often each image is shown.
        threads: of PyTorch; 0 for its default.
        rate: highest learning rate; it rises for a twentieth of the steps and falls as a cosine.
    """

    start: str
    epochs: int = 30
    threads: int = 1
    rate: float = _RATE


def require_training() -> None:
    """Raises ConfigError if PyTorch or onnx2torch is not installed."""
    if any(find_spec(name) is None for name in ("torch", "onnx2torch")):
        raise ConfigError("Students are trained with PyTorch: pip install 'firstline[train]'.")


def start_of(manifest: Manifest, source: Model, wanted: str) -> Model:
    """Returns the model that a student starts as, which must have the input and output of its teacher, the source.

    Raises:
        ConfigError: there is no such model, or it is of another kind, or the source cannot teach.
    """
    start = manifest.model(wanted)
    if start.id == source.id:
        raise ConfigError(f"'{wanted}' cannot teach itself; name a smaller model with --student, or another with --of.")
    if source.runtime != "onnx" or not source.shows_logits:
        raise ConfigError(
            f"A student learns the logits of an ONNX model; '{source.id}' is {source.runtime}, or has no softmax "
            "behind its output."
        )
    if (start.runtime, start.precision) != ("onnx", "fp32"):
        raise ConfigError(f"'{wanted}' is {start.precision} of {start.runtime}; a student starts as ONNX in fp32.")
    if (start.presteps, start.postprocess) != (source.presteps, source.postprocess):
        raise ConfigError(f"'{wanted}' is fed or read otherwise than '{source.id}', which is to teach it.")
    return start


def train_student(
    teacher: Path,
    start: Path,
    out: Path,
    rows: Array,
    lesson: Lesson,
    *,
    options: RuntimeOptions,
    one_by_one: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, str]:
    """Writes the student's file.

    Args:
        teacher: an ONNX file whose only output are logits.
        start: the file of the model that the student starts as.
        out: the student's file.
        rows: (n, ...) images as the models take them, without labels.
        lesson: how it is trained.
        options: how the teacher runs.
        one_by_one: the teacher runs with one row at a time, because its manifest says `batch: 1`.
        progress: receives the number of finished epochs and their total.

    Returns:
        The parameters that are needed to repeat it.

    Raises:
        ConfigError: the model cannot be trained.
    """
    import onnx

    with closing(OnnxRuntime(teacher, providers=options.providers, threads=options.threads)) as runtime:
        if len(runtime.outputs) != 1:
            raise ConfigError(f"A student is taught by one output; its teacher has {len(runtime.outputs)}.")
        given, found = runtime.inputs[0].name, runtime.outputs[0].name
        teach = RowByRow(runtime).run if one_by_one else runtime.run
        student = distil(onnx.load(start), lambda seen: teach({given: seen})[found], rows, lesson, progress=progress)
    onnx.save(student, out)
    return {
        "start": lesson.start,
        "rows": str(len(rows)),
        "epochs": str(lesson.epochs),
        "rate": f"{lesson.rate:g}",
        "torch": version("torch"),
    }


def distil(
    student: Any,
    teach: Callable[[Array], Array],
    rows: Array,
    lesson: Lesson,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """Trains on the teacher's tempered probabilities (Kullback-Leibler divergence).

    The loss is that of Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2. Teacher and
    student see the same view (Beyer et al. 2022, "A good teacher is patient and consistent"), which is new each time:
    images are flipped, shifted, made noisy, and mixed with one another (Zhang et al. 2018, "mixup").

    Args:
        student: an ONNX model with logits as its only output; it is not changed.
        teach: the teacher: (n, ...) rows to (n, classes) logits.
        rows: (n, ...) float32 as the models take them; with four axes, images [n, channels, height, width].
        lesson: how it is trained.
        progress: receives the number of finished epochs and their total.

    Returns:
        The student with trained weights.

    Raises:
        ConfigError: PyTorch cannot represent the model.
    """
    torch = import_module("torch")
    if lesson.threads:
        torch.set_num_threads(lesson.threads)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    network = import_module("onnx2torch").convert(student)
    normalised(network, torch.from_numpy(views(rows[:_NORMALISING_ROWS], random)))
    optimiser = torch.optim.AdamW(network.parameters(), lr=lesson.rate, weight_decay=1e-4)
    batches = max(1, len(rows) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, lesson.rate, lesson.epochs * batches, pct_start=_WARM_UP, cycle_momentum=False
    )
    divergence = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)
    for epoch in range(lesson.epochs):
        for chosen in np.array_split(random.permutation(len(rows)), batches):
            seen = views(rows[chosen], random)
            answered, wanted = (
                torch.log_softmax(logits / _TEMPERATURE, dim=1)
                for logits in (network(torch.from_numpy(seen)), torch.from_numpy(teach(seen)))
            )
            optimiser.zero_grad()
            (divergence(answered, wanted) * _TEMPERATURE**2).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        progress(epoch + 1, lesson.epochs)
    return _written_back(student, folded(network))


def views(rows: Array, random: np.random.Generator) -> NDArray[np.float32]:
    """Returns augmented views of the rows.

    Args:
        rows: (n, ...) float32.
        random: source of the augmentation.
    """
    made = rows.astype(np.float32, copy=True)
    if made.ndim == 4:
        turned = random.random(len(made)) < 0.5
        made[turned] = made[turned, ..., ::-1]
        padded = np.pad(made, ((0, 0), (0, 0), (_SHIFT, _SHIFT), (_SHIFT, _SHIFT)), mode="reflect")
        height, width = made.shape[2:]
        for at, (down, right) in enumerate(random.integers(0, 2 * _SHIFT + 1, (len(made), 2))):
            made[at] = padded[at, :, down : down + height, right : right + width]
    made += random.normal(0, _NOISE * random.random(), made.shape).astype(np.float32)
    if random.random() < _MIXED:
        share = random.beta(1, 1, (len(made), *([1] * (made.ndim - 1)))).astype(np.float32)
        made = share * made + (1 - share) * made[random.permutation(len(made))]
    return made


def normalised(network: Any, rows: Any) -> Any:
    """Adds batch normalisation behind every convolution, in place, and returns the network in training mode.

    Models for devices have theirs folded away, and learn badly without. Scale and shift are set so that the output
    does not change (Ioffe and Szegedy 2015, "Batch Normalization", section 3).

    Args:
        network: a torch.nn.Module with convolutions.
        rows: input tensor that means and variances are computed from.
    """
    torch = import_module("torch")
    seen: dict[str, Any] = {}
    convolutions = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, torch.nn.Conv2d)]
    hooks = [
        layer.register_forward_hook(lambda _layer, _given, made, name=name: seen.update({name: made}))
        for name, layer in convolutions
    ]
    with torch.no_grad():
        network(rows)
        for hook in hooks:
            hook.remove()
        for name, layer in convolutions:
            mean, variance = seen[name].mean((0, 2, 3)), seen[name].var((0, 2, 3), correction=0)
            normalisation = torch.nn.BatchNorm2d(len(mean))
            normalisation.running_mean.copy_(mean)
            normalisation.running_var.copy_(variance)
            normalisation.weight.copy_((variance + normalisation.eps).sqrt())
            normalisation.bias.copy_(mean)
            both = torch.nn.Sequential(layer, normalisation)
            setattr(both, _MARK, True)
            network.set_submodule(name, both)
    return network.train()


def folded(network: Any) -> Any:
    """Returns a copy of the network with every normalisation folded into its convolution."""
    torch = import_module("torch")
    copy = deepcopy(network).eval()
    for name, both in [(name, layer) for name, layer in copy.named_modules() if getattr(layer, _MARK, False)]:
        copy.set_submodule(name, torch.nn.utils.fusion.fuse_conv_bn_eval(*both))
    return copy


def _written_back(model: Any, network: Any) -> Any:
    """The ONNX model with the network's weights; both have their layers in the same order."""
    from onnx import ModelProto, numpy_helper

    torch = import_module("torch")
    written = ModelProto()
    written.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in written.graph.initializer}
    layers = [layer for layer in network.modules() if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear))]
    nodes = [node for node in written.graph.node if node.op_type in ("Conv", "Gemm")]
    trained = {id(parameter) for layer in layers for parameter in layer.parameters()}
    if len(layers) != len(nodes) or trained != {id(parameter) for parameter in network.parameters()}:
        raise ConfigError("Only models of convolutions and one dense layer behind them can be trained here.")
    for node, layer in zip(nodes, layers, strict=True):
        for name, parameter in zip(node.input[1:], (layer.weight, layer.bias), strict=False):
            array, shape = parameter.detach().numpy(), tuple(constants[name].dims)
            if shape != array.shape:
                array = array.T
            if shape != array.shape:
                raise ConfigError(f"The weights '{name}' have another shape in PyTorch; this model cannot be trained.")
            constants[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return written
