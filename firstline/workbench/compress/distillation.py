"""Trains a smaller model to answer as a larger one does, on images without labels. Needs `[train]`.

The weights are trained in PyTorch and written back into the ONNX file, node by node, without an exporter, so that
nothing else in the file changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.compress.checkpoint import Training
from firstline.workbench.compress.intermediate import with_outputs
from firstline_core.errors import ConfigError
from firstline_core.types import Array

_MARK = "normalised"
_SHIFT = 4
_NOISE = 0.05
_WARM_UP = 0.05
_MIXED = 0.5  # share of the batches that are mixed
NORMALISING_ROWS = 256


def can_train() -> bool:
    """Whether PyTorch and onnx2torch are installed."""
    return all(find_spec(name) is not None for name in ("torch", "onnx2torch"))


def distil(
    student: Any,
    teach: Callable[[Array], Sequence[Array]],
    rows: Array,
    *,
    hints: Sequence[str] = (),
    epochs: int,
    temperature: float = 2.0,
    rate: float = 1e-3,
    batch: int = 64,
    threads: int = 1,
    seed: int = 0,
    checkpoint: Path | None = None,
    say: Callable[[str], None] = lambda words: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """Trains on the teacher's tempered probabilities (Kullback-Leibler divergence) and on intermediate tensors.

    The loss is that of Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2. Teacher and
    student see the same view (Beyer et al. 2022, "A good teacher is patient and consistent"), which is new each time:
    images are flipped, shifted, made noisy, and mixed with one another (Zhang et al. 2018, "mixup"). A student that was
    cut from its teacher learns faster from intermediate tensors (Romero et al. 2015, "FitNets"): their squared error
    after rectification is added, relative to the teacher's mean square.

    Args:
        student: an ONNX model with logits as its only output; it is not changed.
        teach: the teacher: (n, ...) rows to (n, classes) logits, and behind them its `hints`.
        rows: (n, ...) float32 as the models take them; with four axes, images [n, channels, height, width].
        hints: intermediate tensors of the student that should equal the teacher's.
        epochs: how often each image is shown.
        temperature: divides the logits of both.
        rate: highest learning rate; it rises for a twentieth of the steps and falls as a cosine.
        batch: images of a step.
        threads: of PyTorch; 0 for its default.
        seed: of order and views.
        checkpoint: file in which the training is saved after each epoch and resumed from; None for none.
        say: receives a sentence if the training is resumed.
        progress: receives the number of finished epochs and their total.

    Returns:
        The student with trained weights.

    Raises:
        ConfigError: PyTorch is not installed or cannot represent the model; the checkpoint is damaged or cannot be
            written.
    """
    torch = _torch()
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    output = student.graph.output[0].name
    small = _onnx2torch().convert(with_outputs(student, [output, *hints]))
    normalised(small, torch.from_numpy(views(rows[:NORMALISING_ROWS], random)))
    parameters = [parameter for parameter in small.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-4)
    steps = epochs * max(1, len(rows) // batch)
    shape = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _share_of_rate(step, steps))
    training = Training(small, optimiser, shape, random)
    begun = training.resume(checkpoint) if checkpoint is not None else 0
    if begun:
        say(f"The training continues after epoch {begun} of {epochs}")
    for epoch in range(begun, epochs):
        for chosen in np.array_split(random.permutation(len(rows)), max(1, len(rows) // batch)):
            seen = views(rows[chosen], random)
            loss = _loss(small(torch.from_numpy(seen)), teach(seen), temperature)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            shape.step()
        if checkpoint is not None:
            training.save(checkpoint, epoch + 1)
        progress(epoch + 1, epochs)
    return _written_back(student, folded(small))


def _loss(outputs: Any, wanted: Sequence[Array], temperature: float) -> Any:
    """Divergence of the tempered probabilities, plus the error of the intermediate tensors."""
    torch = import_module("torch")
    logits, *inside = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    teacher_logits, *teacher_inside = (torch.from_numpy(array) for array in wanted)
    divergence = torch.nn.KLDivLoss(reduction="batchmean")
    probabilities = torch.softmax(teacher_logits / temperature, dim=1)
    loss = divergence(torch.log_softmax(logits / temperature, dim=1), probabilities) * temperature**2
    for own, teachers in zip(inside, map(torch.relu, teacher_inside), strict=True):
        loss = loss + (torch.relu(own) - teachers).square().mean() / (teachers.square().mean() + 1e-12)
    return loss


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


def _share_of_rate(step: int, steps: int) -> float:
    done = step / steps
    return done / _WARM_UP + 1e-3 if done < _WARM_UP else 0.5 * (1 + float(np.cos(np.pi * done)))


def require_training() -> None:
    """Raises ConfigError where PyTorch is not installed."""
    if not can_train():
        raise ConfigError("Students are trained with PyTorch: pip install 'firstline[train]'.")


def _torch() -> Any:
    require_training()
    return import_module("torch")


def _onnx2torch() -> Any:
    """The converter.

    It imports torchvision for two operators of detectors. torchvision's compiled part loads only with the build of
    PyTorch that it was made for; without it, its Python part fails on unregistered operators. In that case they are
    declared here and never called. If the compiled part is loaded too, declaring them ends the process.
    """
    torch = import_module("torch")
    try:
        import_module("torchvision")
    except RuntimeError:  # the operator is not registered
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(declared)  # the declaration lasts as long as the object
    return import_module("onnx2torch")


_declared: list[Any] = []


def normalised(network: Any, rows: Any) -> Any:
    """Adds batch normalisation behind every convolution, in place, and returns the network in training mode.

    Models for devices have theirs folded away, and learn badly without. Scale and shift are set so that the output
    does not change (Ioffe and Szegedy 2015, "Batch Normalization", section 3).

    Args:
        network: a torch.nn.Module with convolutions.
        rows: input tensor that means and variances are computed from.
    """
    torch = import_module("torch")
    seen: dict[str, tuple[Any, Any]] = {}

    def look(name: str) -> Any:
        def hook(_layer: Any, _given: Any, made: Any) -> None:
            seen[name] = made.mean((0, 2, 3)), made.var((0, 2, 3), correction=0)

        return hook

    hooks = [layer.register_forward_hook(look(name)) for name, layer in _convolutions(network)]
    with torch.no_grad():
        network(rows)
    for hook in hooks:
        hook.remove()
    for name, (mean, variance) in seen.items():
        normalisation = torch.nn.BatchNorm2d(len(mean))
        normalisation.running_mean.copy_(mean)
        normalisation.running_var.copy_(variance)
        with torch.no_grad():
            normalisation.weight.copy_((variance + normalisation.eps).sqrt())
            normalisation.bias.copy_(mean)
        both = torch.nn.Sequential(network.get_submodule(name), normalisation)
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


def _convolutions(network: Any) -> list[tuple[str, Any]]:
    torch = import_module("torch")
    return [(name, layer) for name, layer in network.named_modules() if isinstance(layer, torch.nn.Conv2d)]


def _written_back(model: Any, network: Any) -> Any:
    """The ONNX model with the network's weights; both have their layers in the same order."""
    from onnx import ModelProto, numpy_helper

    written = ModelProto()
    written.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in written.graph.initializer}
    torch = import_module("torch")
    layers = [layer for layer in network.modules() if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear))]
    nodes = [node for node in written.graph.node if node.op_type in ("Conv", "Gemm")]
    trained = {id(parameter) for layer in layers for parameter in layer.parameters()}
    if len(layers) != len(nodes) or trained != {id(parameter) for parameter in network.parameters()}:
        raise ConfigError("Only models of convolutions and one dense layer behind them can be trained here.")
    for node, layer in zip(nodes, layers, strict=True):
        for name, parameter in zip(node.input[1:], (layer.weight, layer.bias), strict=False):
            array = parameter.detach().numpy()
            known = constants[name]
            if list(known.dims) == list(array.T.shape) and list(known.dims) != list(array.shape):
                array = array.T
            if list(known.dims) != list(array.shape):
                raise ConfigError(
                    f"The weights '{name}' are of another shape in PyTorch; this model cannot be trained."
                )
            known.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return written
