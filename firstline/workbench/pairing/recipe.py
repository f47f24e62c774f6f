"""Writes the recipe of a pair: the steps, and as comments what was assumed and how sure it is."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from firstline.workbench.pairing.specification import EDGE
from firstline.workbench.recognition.reading import Feed, Reading
from firstline_core.tasks import AnyTask
from firstline_core.tasks.classification import Classification

_WIDTH = 110

# TOML reads JSON's values, but not its escapes of characters beyond U+FFFF.
_toml = partial(json.dumps, ensure_ascii=False)


def recipe_text(
    name: str, task: AnyTask, labels_source: str, models: Mapping[str, tuple[Path, Reading]], score: str
) -> str:
    """Returns a recipe that `firstline bundle create --recipe` reads.

    Args:
        name: of the bundle.
        task: of the bundle.
        labels_source: where `labels.txt` is from.
        models: file and reading by role, "edge" or "full".
        score: that the policy begins with.
    """
    lines = [
        "# Written by `firstline pair`. Comments say what was assumed; after a change, run:",
        f"# firstline bundle create --recipe recipe.toml --out bundle  # {name}",
        f"name = {_toml(name)}",
        "version = 1",
    ]
    fields = msgspec.to_builtins(task)
    if fields.pop("labels", ()):
        lines += ['labels = "labels.txt"', *_comment(f"The labels are from {labels_source}.")]
    lines += _inputs([feed for _, reading in models.values() for feed in reading.feeds])
    lines += _table(fields.pop("kind"), fields)
    for role, (file, reading) in models.items():
        lines += ["", *_model(role, file, reading)]
    threshold = "1" if len(models) > 1 else "0"
    lines += ["", "[policy]", f"score = {_toml(score)}", f"threshold = {threshold}", ""]
    return "\n".join(lines)


def _inputs(feeds: Sequence[Feed]) -> Iterator[str]:
    """Yields the inputs of the bundle, unless they follow from the models."""
    specs = {feed.spec.name: feed.spec for feed in feeds}
    follow = all(spec.kind in ("image", "audio") for spec in specs.values())
    if follow or all(not feed.steps and feed.spec.name == feed.tensor for feed in feeds):
        return
    for name, spec in specs.items():
        yield from ("", f"[inputs.{_key(name)}]")
        if spec.kind == "text":
            yield 'kind = "text"'
        else:
            yield from (f'datatype = "{spec.datatype}"', f"shape = {list(spec.shape)}")


def _table(kind: str, fields: Mapping[str, object]) -> Iterator[str]:
    """Yields the table of a task; a classifier has none."""
    if kind != Classification.kind:
        yield from ("", f"[{kind}]", *(f"{name} = {_toml(value)}" for name, value in fields.items()))


def _model(role: str, file: Path, reading: Reading) -> Iterator[str]:
    yield from _comment(f"{reading.family}, {reading.sure:.0%} sure.")
    for note in reading.assumptions:
        yield from _comment(f"- {note}")
    yield "[[edge]]" if role == EDGE else "[full]"
    yield f'id = "{role}"'
    yield f"file = {_toml(str(file.absolute()))}"
    if len(reading.feeds) == 1 and reading.feeds[0].steps:
        yield f"preprocess = {_toml(reading.preprocess)}"
    yield f"postprocess = {_toml(reading.postprocess)}"
    if reading.output:
        yield f"output = {_toml(reading.output)}"
    if reading.without_rows:
        yield f"without_rows = {_toml(reading.without_rows)}"
    if len(reading.feeds) > 1 or reading.columns:
        yield from _feeds(role, reading)


def _feeds(role: str, reading: Reading) -> Iterator[str]:
    """Yields the table of a model's inputs, without those that the bundle's input of their name feeds as it is."""
    named = [feed for feed in reading.feeds if feed.steps or feed.spec.name != feed.tensor]
    if named and not reading.preprocess:
        yield from ("", f"[{role}.inputs]")
        for feed in named:
            table = f"input = {_toml(feed.spec.name)}, preprocess = {_toml(feed.steps)}"
            yield f"{_key(feed.tensor)} = {{ {table} }}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name, re.ASCII) else _toml(name)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
