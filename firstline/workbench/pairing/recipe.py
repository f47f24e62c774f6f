"""Writes the recipe of a pair: the steps, and as comments what was assumed and how sure it is."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstline.workbench.recognition import Reading
from firstline_core.tasks import AnyTask
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.segmentation import Segmentation

_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Described:
    """A model of the recipe.

    Attributes:
        file: of the model.
        reading: how it is fed and read.
        notes: assumptions, decisions and measurements, as sentences.
    """

    file: Path
    reading: Reading
    notes: Sequence[str]


def recipe_text(name: str, task: AnyTask, labels_source: str, models: Mapping[str, Described], score: str) -> str:
    """Returns a recipe that `firstline bundle create --recipe` reads.

    Args:
        name: of the bundle.
        task: of the bundle.
        labels_source: where `labels.txt` is from.
        models: by role, "edge" or "full".
        score: that the policy begins with.
    """
    lines = [
        "# Written by `firstline pair`. Comments say what was assumed; after a change, run:",
        f"# firstline bundle create --recipe recipe.toml --out bundle  # {name}",
        f"name = {json.dumps(name)}",
        "version = 1",
        'labels = "labels.txt"',
        *_comment(f"The labels are from {labels_source}."),
    ]
    if isinstance(task, Detection):
        lines += ["", "[detection]", f"k = {task.k}"]
    elif isinstance(task, Segmentation):
        lines += ["", "[segmentation]", f"width = {task.width}", f"height = {task.height}"]
    for role, described in models.items():
        lines += ["", *_model(role, described)]
    threshold = "1" if len(models) > 1 else "0"
    lines += ["", "[policy]", f"score = {json.dumps(score)}", f"threshold = {threshold}", ""]
    return "\n".join(lines)


def _model(role: str, described: Described) -> Iterator[str]:
    reading = described.reading
    yield from _comment(f"{reading.family}, {reading.sure:.0%} sure.")
    for note in described.notes:
        yield from _comment(f"- {note}")
    yield "[[edge]]" if role == "edge" else "[full]"
    yield f'id = "{role}"'
    yield f"file = {json.dumps(str(described.file.absolute()))}"
    yield f"preprocess = {json.dumps(reading.preprocess)}"
    yield f"postprocess = {json.dumps(reading.postprocess)}"
    if reading.output:
        yield f"output = {json.dumps(reading.output)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
