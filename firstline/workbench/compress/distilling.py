"""Teaches a smaller model to answer as a larger one does, on images without labels. Needs `[train]`.

The student's weights are trained in PyTorch and written back into the ONNX file, node by node, so that nothing else of
the file changes: no exporter stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.compress.checkpoint import Training
from firstline.workbench.compress.inside import opened
from firstline.workbench.compress.normalising import folded, normalised
from firstline_core.errors import ConfigError
from firstline_core.types import Array

_SHIFT = 4
_NOISE = 0.05
_WARM_UP = 0.05
_MIXED = 0.5  # share of the batches that are mixed
NORMALISING_ROWS = 256


def can_train() -> bool:
    """Whether PyTorch and onnx2torch are here."""
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
    """Trains on the teacher's tempered probabilities, by Kullback and Leibler's divergence, and on what lies inside.

    Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2. What the teacher is asked is never
    the same twice (Beyer et al. 2022, "A good teacher is patient and consistent": both see the same view): images are
    flipped, shifted, made noisy, and mixed with one another (Zhang et al. 2018, "mixup"). A student that was cut from
    its teacher learns much sooner from tensors on the way (Romero et al. 2015, "FitNets"): of them, rectified, the
    squared error counts, by the teacher's mean square.

    Args:
        student: an ONNX model with logits as its only output; it is not changed.
        teach: the teacher: (n, ...) rows to (n, classes) logits, and behind them its `hints`.
        rows: (n, ...) float32 as the models take them; of four axes they are images [n, channels, height, width].
        hints: tensors of the student that ought to be the teacher's.
        epochs: how often each image is shown.
        temperature: divides the logits of both.
        rate: of learning, at its highest: it rises for a twentieth of the steps, and falls as a cosine.
        batch: images of a step.
        threads: that PyTorch may use; 0 leaves it to that.
        seed: of order and views.
        checkpoint: where the training is put down after each epoch, and taken up; None for nowhere.
        say: told in words that it was taken up.
        progress: told how many epochs are done, of how many.

    Returns:
        The student with other weights.

    Raises:
        ConfigError: PyTorch is not installed, or a model that it cannot hold; a checkpoint that is damaged, or cannot
            be written.
    """
    torch = _torch()
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    output = student.graph.output[0].name
    small = _onnx2torch().convert(opened(student, [output, *hints]))
    normalised(small, torch.from_numpy(views(rows[:NORMALISING_ROWS], random)))
    parameters = [parameter for parameter in small.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-4)
    steps = epochs * max(1, len(rows) // batch)
    shape = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _share_of_rate(step, steps))
    divergence = torch.nn.KLDivLoss(reduction="batchmean")
    training = Training(small, optimiser, shape, random)
    begun = training.taken_up(checkpoint) if checkpoint is not None else 0
    if begun:
        say(f"The training goes on after epoch {begun} of {epochs}")
    for epoch in range(begun, epochs):
        for chosen in np.array_split(random.permutation(len(rows)), max(1, len(rows) // batch)):
            seen = views(rows[chosen], random)
            wanted, *inside = (torch.from_numpy(told) for told in teach(seen))
            said = small(torch.from_numpy(seen))
            said, *mine = said if hints else [said]
            wanted = torch.softmax(wanted / temperature, dim=1)
            loss = divergence(torch.log_softmax(said / temperature, dim=1), wanted) * temperature**2
            for own, its in zip(mine, map(torch.relu, inside), strict=True):
                loss = loss + (torch.relu(own) - its).square().mean() / (its.square().mean() + 1e-12)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            shape.step()
        if checkpoint is not None:
            training.put_down(checkpoint, epoch + 1)
        progress(epoch + 1, epochs)
    return _written_back(student, folded(small))


def views(rows: Array, random: np.random.Generator) -> NDArray[np.float32]:
    """Other views of the same rows: what the teacher says of these is as good a lesson.

    Args:
        rows: (n, ...) float32.
        random: decides.
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

    It imports torchvision for two operators of detectors, and torchvision's compiled half loads only beside the very
    build of PyTorch that it was made for: where it does not, its Python half asks for operators that nobody registered.
    They are declared here then, and never called; declared beside a compiled half they would end the process.
    """
    torch = import_module("torch")
    try:
        import_module("torchvision")
    except RuntimeError:  # the operator is not there
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(declared)  # what it declares goes with it
    return import_module("onnx2torch")


_declared: list[Any] = []


def _written_back(model: Any, network: Any) -> Any:
    """The ONNX model with the network's weights: both have their convolutions and products in the same order."""
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
