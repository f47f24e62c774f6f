"""What a bundle is to be made of, before its files are read: the input of `bundle.create_bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from firstline.workbench.spelling import PlainPost, PlainPre
from firstline_core.bundle.manifest import InputSpec
from firstline_core.errors import ConfigError

ScoreKind = Literal["max_probability", "margin", "entropy"]
_LABELS_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model file and its processing.

    Args:
        file: .onnx or .tflite.
        id: unique in the bundle; "" lets it be chosen from runtime and precision.
        precision: for people, e.g. "int8"; "" lets it be read from the file's weights.
        input: the model's input by name; "" where it has one.
        output: the model's output by name; "" where it has one.
        measured: figures measured on this very file, e.g. {"accuracy": 0.97}.
    """

    file: Path
    preprocess: tuple[PlainPre, ...] = ()
    postprocess: tuple[PlainPost, ...] = ()
    id: str = ""
    precision: str = ""
    input: str = ""
    output: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """When an edge answer is kept: see `manifest.Policy`.

    Args:
        score: a kind of `routing/confidence.py`, or a file: an ONNX graph that scores.
        threshold: in [0, 1] for the kinds; 1 keeps next to nothing, until someone has chosen better.
    """

    score: ScoreKind | Path = "max_probability"
    temperature: float = 1.0
    threshold: float = 1.0


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """A bundle to be made.

    Args:
        labels: in the order of the probabilities, after any label_offset.
        edge: variants in order of preference.
        input: as clients see it; None follows from the first model: encoded images where its processing starts with
            `decode`, else what the model takes.
    """

    name: str
    version: int
    labels: tuple[str, ...]
    edge: tuple[ModelSpec, ...]
    full: ModelSpec | None = None
    policy: PolicySpec = PolicySpec()
    input: InputSpec | None = None

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        return (*self.edge, self.full) if self.full is not None else self.edge


def read_labels(file: Path, skip: int = 0) -> tuple[str, ...]:
    """A text file's lines, one label each.

    Args:
        file: UTF-8; lines at the end that are empty do not count.
        skip: leading lines to leave out, e.g. 1 where a list of 1,001 starts with the background class.

    Raises:
        ConfigError: the file cannot be read, or a label is empty.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_LABELS_LIMIT_BYTES + 1)
        lines = content.decode("utf-8-sig").rstrip().splitlines()
    except OSError as error:
        raise ConfigError(f"The labels {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The labels {file} are not UTF-8 text, one label a line.") from error
    if len(content) > _LABELS_LIMIT_BYTES:
        raise ConfigError(f"The labels {file} have more than {_LABELS_LIMIT_BYTES} bytes; is it the right file?")
    labels = tuple(line.strip() for line in lines[skip:])
    if "" in labels:
        raise ConfigError(f"{file}:{skip + labels.index('') + 1} is empty; every line is a label.")
    return labels
