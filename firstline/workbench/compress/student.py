"""Makes a student: the source with fewer blocks or channels, or a smaller existing model, refitted and trained."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from firstline.workbench.compress.block_pruning import blocks, drop_blocks
from firstline.workbench.compress.channel_pruning import prune_channels
from firstline.workbench.compress.checkpoint import checkpoint_file
from firstline.workbench.compress.distillation import distil
from firstline.workbench.compress.intermediate import with_outputs
from firstline.workbench.compress.refitting import refit
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.errors import ConfigError
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Array

RECONSTRUCTION_ROWS = 256
SHORTENING_ROWS = 64
DEPTH = 0.4
STARTED_RATE = 5e-4  # learning rate of a student that is trained already
_TRAINED_BY = ("firstline", "numpy", "onnxruntime", "onnx2torch", "torch")
"""Packages whose versions a student's weights depend on."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """How a student is cut and trained.

    Attributes:
        keep: share of the channels inside the blocks.
        depth: share of the residual blocks.
        start: id of the model that it starts as; "" for the source.
        epochs: of distillation; with 0 it is only refitted, without PyTorch.
        threads: of the training; 0 for PyTorch's default.
        rate: learning rate.
    """

    keep: float = 1.0
    depth: float = 1.0
    start: str = ""
    epochs: int = 30
    threads: int = 1
    rate: float = 1e-3


def require_change(lesson: Lesson) -> None:
    """Raises ConfigError if the student would be a copy of the model that it starts as."""
    if lesson.keep < 1 or lesson.depth < 1:
        return
    if not lesson.start:
        raise ConfigError("A student of all channels and blocks is the model itself; keep less of one.")
    if not lesson.epochs:
        raise ConfigError(
            f"A student that starts as '{lesson.start}', of which nothing is cut, and that is taught for 0 epochs is "
            "a copy of it; teach it, or keep less of its channels or blocks."
        )


def start_of(manifest: Manifest, source: Model, wanted: str) -> Model:
    """Returns the model that a student starts as, which must have the input and output of the source.

    Raises:
        ConfigError: there is no such model, or it is of another kind.
    """
    if not wanted:
        return source
    known = {model.id: model for model in manifest.models}
    if wanted not in known:
        raise ConfigError(f"Bundle '{manifest.name}' has no model '{wanted}'; it has: {', '.join(known)}.")
    start = known[wanted]
    if (start.runtime, start.precision) != ("onnx", "fp32"):
        raise ConfigError(f"'{wanted}' is {start.precision} of {start.runtime}; a student starts as ONNX in fp32.")
    if (start.preprocess, start.postprocess) != (source.preprocess, source.postprocess):
        raise ConfigError(f"'{wanted}' is fed or read otherwise than '{source.id}', which is to teach it.")
    return start


def student(
    source: Path,
    out: Path,
    rows: Array,
    lesson: Lesson,
    *,
    options: RuntimeOptions,
    start: Path | None = None,
    checkpoints: Path | None = None,
    say: Callable[[str], None] = lambda words: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, str]:
    """Writes the student's file.

    Args:
        source: the teacher, which returns logits.
        out: the student's file.
        rows: (n, ...) images as the model takes them, without labels.
        lesson: how it is cut and trained.
        options: how the teacher runs.
        start: file of the model that the student starts as; None for the source.
        checkpoints: folder in which the training is saved after each epoch and from which it is resumed; None for none.
        say: receives what is done next.
        progress: receives how much of each step is done.

    Returns:
        The parameters that are needed to repeat it.

    Raises:
        ConfigError: the model cannot be cut or trained, or there is nothing to do.
    """
    import onnx

    teacher, whole = onnx.load(source), onnx.load(start or source)
    if len(teacher.graph.output) != 1:
        raise ConfigError(f"A student is taught by one output; its teacher has {len(teacher.graph.output)}.")
    require_change(lesson)
    cut, parameters = _cut(whole, rows[:RECONSTRUCTION_ROWS], lesson, progress)
    parameters |= {"rows": str(len(rows)), "epochs": str(lesson.epochs)}
    if lesson.epochs:
        hints = [] if start is not None else _ends(cut)
        place = None
        if checkpoints is not None:
            how = (lesson, options, hints, [version(name) for name in _TRAINED_BY])
            models = (one.SerializeToString(deterministic=True) for one in (cut, teacher))
            place = checkpoint_file(checkpoints, rows, [*models, repr(how).encode()])
        cut = _taught(
            cut,
            teacher,
            hints,
            rows,
            lesson=lesson,
            options=options,
            checkpoint=place,
            say=say,
            progress=progress,
        )
        parameters |= {"rate": f"{lesson.rate:g}", "torch": version("torch")}
    onnx.save(cut, out)
    return parameters


def _cut(whole: Any, rows: Array, lesson: Lesson, progress: Callable[[int, int], None]) -> tuple[Any, dict[str, str]]:
    """The cut and refitted model, with the parameters of the cut."""
    parameters = {"start": lesson.start} if lesson.start else {}
    cut = whole
    if lesson.depth < 1:
        cut, gone = drop_blocks(cut, lesson.depth, rows[:SHORTENING_ROWS], progress=progress)
        parameters |= {"depth": f"{lesson.depth:g}", "dropped_blocks": str(len(gone))}
    if lesson.keep < 1:
        cut, pairs = prune_channels(cut, lesson.keep)
        parameters |= {"keep": f"{lesson.keep:g}", "pruned_pairs": str(pairs)}
    return (refit(cut, whole, rows, progress=progress) if cut is not whole else whole), parameters


def _taught(
    cut: Any,
    teacher: Any,
    hints: list[str],
    rows: Array,
    *,
    lesson: Lesson,
    options: RuntimeOptions,
    checkpoint: Path | None,
    say: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Any:
    import onnx

    wanted = [teacher.graph.output[0].name, *hints]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "teacher.onnx"
        onnx.save(with_outputs(teacher, wanted), file)
        with closing(OnnxRuntime(file, providers=options.providers, threads=options.threads)) as runtime:
            name = runtime.inputs[0].name

            def teach(seen: Array) -> list[Array]:
                outputs = runtime.run({name: seen})
                return [outputs[one] for one in wanted]

            return distil(
                cut,
                teach,
                rows,
                hints=hints,
                epochs=lesson.epochs,
                rate=lesson.rate,
                threads=lesson.threads,
                checkpoint=checkpoint,
                say=say,
                progress=progress,
            )


def _ends(cut: Any) -> list[str]:
    """The sums at the end of each sequence of blocks; the whole model has them too."""
    found = blocks(cut.graph)
    read = {block.shortcut for block in found}
    return [block.sum for block in found if (block.after or block.sum) not in read]
