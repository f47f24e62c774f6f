"""The description of a bundle before its files are read, made in code, from flags or from a TOML recipe.

A recipe declares a bundle:

    name = "cats"
    version = 3
    labels = "labels.txt"          # files lie relative to the models' folder, by default the recipe's own
    labels_skip = 1                # leading lines that are no labels, e.g. a background class
    preprocess = "decode:RGB,resize:224x224,scale"      # for every model that does not say its own
    postprocess = "softmax"
    independent_labels = false     # true: each label has a probability of its own (sigmoid)
    label_threshold = 0.5          # of independent labels in the answer; or { dog = 0.3 }, and 0.5 for the others

    [[edge]]                       # variants in order of preference
    file = "small_int8.tflite"
    preprocess = "decode:RGB,resize:96x96,scale"
    postprocess = ""               # this one ends in a softmax of its own

    [full]
    file = "large.onnx"

    [policy]
    score = "max_probability"      # or another of the task's, or graph:FILE.onnx
    temperature = 1.5
    threshold = 0.9

    [detection]                    # of other tasks than classification: the fields of the task, without labels
    k = 100
    class_groups = { vehicle = ["car", "truck"] }

The table has the name of the task, such as `detection` or `regression`. A table `[task]` with a `kind` is of any task,
also of one that an installed package provides. Without such a table the models are classifiers. The default score is
the first of the task's `score_kinds`. A task without labels needs no `labels`. `loss_graph` of `[tensors]` is a file.

A model with several inputs takes those of the same names, and the bundle's inputs follow from its models. A recipe
states otherwise what does not follow:

    [inputs.photo]                 # an input of the bundle
    kind = "image"                 # image, audio, text or tensor

    [inputs.age]
    datatype = "FP32"
    shape = [-1, 1]                # -1 for the rows, and for other sizes that are free

    [full]
    file = "large.onnx"

    [full.inputs]                  # by the model's inputs: the bundle's input that feeds it, and its steps
    pixels = { input = "photo", preprocess = "decode:RGB,resize:224x224,scale" }
    outline = { input = "photo", preprocess = "decode:L,resize:64x64,scale" }
    age = {}                       # the bundle's input of the same name, which needs no line

A bundle with one input may declare it as the table `[input]`, with `name`.

A model may also have `id`, `precision`, `input`, `output` and `measured`; see `ModelSpec`. Steps are spelled as
`step_syntax.py` describes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Meta, Struct, defstruct
from msgspec.structs import asdict

from firstline.workbench.step_syntax import PlainPost, PlainPre, parse_postprocess, parse_preprocess, spell
from firstline_core.bundle.manifest import TEMPERATURES
from firstline_core.errors import NAME_RULE, ConfigError, TaskError, did_you_mean, listed
from firstline_core.processing.steps import Datatype, InputSpec, Kind, Scale, decoded_kind
from firstline_core.routing.certification import check_share
from firstline_core.storage import settings
from firstline_core.storage.files import naming, read_text
from firstline_core.storage.setting_places import FILE_LIMIT_BYTES, Sources, naming_key, parts_of
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.installed import BUILT_IN, read_task, similar_task
from firstline_core.tasks.tensors import Tensors
from firstline_core.telemetry.wording import counted
from firstline_core.types import NAME_PATTERN

# Of a scale step's numbers, far inside FP32.
_LARGEST = 1e30
_LABELS_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """Where an input of a model gets its data.

    Args:
        input: the bundle's input; "" for that of the same name.
        preprocess: from one to the other.
    """

    input: str = ""
    preprocess: tuple[PlainPre, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model file and its processing.

    Args:
        file: .onnx or .tflite.
        preprocess: of a model with one input.
        inputs: by the model's inputs; those that are not listed get the bundle's input of the same name.
        id: unique in the bundle; "" derives it from runtime and precision.
        precision: for people, e.g. "int8"; "" reads it from the file's weights.
        input: the model's input by name; "" where it has one.
        output: the model's output by name; "" where it has one.
        measured: figures measured on this very file, e.g. {"accuracy": 0.97}.
        without_rows: names of the model's inputs and outputs that have no axis of rows.
    """

    file: Path
    preprocess: tuple[PlainPre, ...] = ()
    postprocess: tuple[PlainPost, ...] = ()
    id: str = ""
    precision: str = ""
    input: str = ""
    output: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, FeedSpec] = field(default_factory=dict)
    without_rows: tuple[str, ...] = ()

    @property
    def presteps(self) -> tuple[PlainPre, ...]:
        """Returns the preprocessing steps of all inputs."""
        return (*self.preprocess, *[step for feed in self.inputs.values() for step in feed.preprocess])


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """When an edge answer is accepted; see `manifest.Policy`.

    Args:
        score: one of the task's `score_kinds`, or a file: an ONNX graph that scores.
        threshold: in [0, 1] for the kinds; 1 accepts almost nothing. None if it is chosen on data, or if the bundle has
            no edge model.
    """

    score: str | Path = "max_probability"
    temperature: float = 1.0
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """A bundle to be created.

    Args:
        labels: in the order of the probabilities, after any label_offset.
        edge: variants in order of preference.
        inputs: as clients see them. Others follow from the models: encoded images where the processing has `decode`,
            texts where the model takes strings, else what the model takes.
        independent_labels: whether each label has a probability of its own; otherwise a row's sum to about 1.
        label_thresholds: of independent labels in the answer, one for each; () for 0.5.
        configured: the task with these labels; None for classifiers.
        recipe: the file that declares the bundle, for errors about its models; None if flags or a program do.
    """

    name: str
    version: int
    labels: tuple[str, ...]
    edge: tuple[ModelSpec, ...]
    full: ModelSpec | None = None
    policy: PolicySpec = PolicySpec()
    inputs: tuple[InputSpec, ...] = ()
    independent_labels: bool = False
    label_thresholds: tuple[float, ...] = ()
    configured: Task | None = None
    recipe: Path | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Returns a recipe's key of each model."""
        edge = tuple(f"edge[{number}]" for number in range(len(self.edge)))
        return (*edge, "full") if self.full is not None else edge

    @property
    def task(self) -> Task:
        return self.configured or Classification(self.labels, self.independent_labels, self.label_thresholds)

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        return (*self.edge, self.full) if self.full is not None else self.edge


def check_spec(spec: BundleSpec) -> None:
    """Checks the manifest's patterns and bounds.

    Raises:
        ConfigError: a field is not valid.
    """
    for _, sentence in _faults(spec, "the file of labels"):
        raise ConfigError(sentence)


def _faults(spec: BundleSpec, labels: str) -> Iterator[tuple[str, str]]:
    """Yields the recipe's key of each invalid field, and what is wrong with it."""
    if not spec.models:
        yield "", "A bundle needs a model: name one with --edge, --full, or both."
    ids = [(f"{key}.id", "id", model.id) for key, model in zip(spec.keys, spec.models, strict=True) if model.id]
    for key, what, name in [("name", "name", spec.name), *ids]:
        if not re.match(NAME_PATTERN, name):
            yield (key, f"The {what} '{name}' is not valid: use {NAME_RULE}.")
    if spec.configured is None and len(spec.labels) < 2:
        yield (
            "labels",
            f"{labels} has {counted(len(spec.labels), 'label')}, but a bundle needs at least two, one a line; for a "
            "model with one output write two lines: no and yes.",
        )
    if spec.version < 1:
        yield "version", f"The version {spec.version} is not valid: versions count up from 1; use 1 or more."
    yield from _policy_faults(spec)
    for key, model in zip(spec.keys, spec.models, strict=True):
        yield from ((key, sentence) for sentence in _step_faults(model.presteps))
        for figure, value in model.measured.items():
            if not math.isfinite(value):
                yield (
                    f"{key}.measured",
                    f"The figure '{figure}' of {model.file.name} is {value:g}; measured figures are finite.",
                )


def _policy_faults(spec: BundleSpec) -> Iterator[tuple[str, str]]:
    policy, (coldest, hottest) = spec.policy, TEMPERATURES
    if not isinstance(policy.score, Path) and spec.edge and policy.score not in spec.task.score_kinds:
        kinds = listed(policy.score, spec.task.score_kinds)
        yield "policy.score", f"The score '{policy.score}' is not one of this task's{kinds}"
    if not coldest <= policy.temperature <= hottest:
        yield (
            "policy.temperature",
            f"The temperature {policy.temperature:g} is not valid: it is a number from {coldest:g} to {hottest:g}.",
        )
    if policy.threshold is None:
        return
    invalid = f"The threshold {policy.threshold:g} is not valid:"
    if isinstance(policy.score, Path) and not math.isfinite(policy.threshold):
        yield "policy.threshold", f"{invalid} it is a finite number."
    if not isinstance(policy.score, Path) and not 0 <= policy.threshold <= 1:
        yield "policy.threshold", f"{invalid} {policy.score} is from 0 to 1, such as 0.9."


def _step_faults(steps: Sequence[PlainPre]) -> Iterator[str]:
    for step in steps:
        if isinstance(step, Scale) and not _fits_fp32(step):
            yield f"The step '{spell((step,))}' is not valid: use finite numbers, and a std other than 0."


def _fits_fp32(step: Scale) -> bool:
    return all(abs(mean) < _LARGEST for mean in step.mean) and all(1 / _LARGEST < abs(s) < _LARGEST for s in step.std)


def read_labels(file: Path, skip: int = 0) -> tuple[str, ...]:
    """Returns the lines of a text file, one label each.

    Args:
        file: UTF-8; empty lines at the end are ignored.
        skip: number of leading lines to ignore, e.g. 1 for a background class.

    Raises:
        ConfigError: the file cannot be read, or a label is empty.
    """
    with naming(f"The file of labels {file}"):
        lines = read_text(file, _LABELS_LIMIT_BYTES).rstrip().splitlines()
    labels = tuple(line.strip() for line in lines[skip:])
    if "" in labels:
        raise ConfigError(f"{file}:{skip + labels.index('') + 1} is empty; every line is a label: delete it.")
    return labels


_FROM_DATA = ("energy", "learned")
"""Scores that a bundle cannot begin with."""
_KINDS = [kind for kind in BUILT_IN if kind != Classification.kind]
_TASK = "task"
_GRAPH = "graph:"


class _Input(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    kind: Kind | None = None
    datatype: Datatype = "BYTES"
    shape: tuple[int, ...] = (-1,)


class _Feed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: str = ""
    preprocess: str = ""


class _Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file: str
    id: str = ""
    precision: str = ""
    preprocess: str | None = None
    postprocess: str | None = None
    input: str = ""
    inputs: dict[str, _Feed] = {}
    output: str = ""
    measured: dict[str, float] = {}
    without_rows: tuple[str, ...] = ()


class _Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    score: str = ""
    temperature: float = 1.0
    threshold: float | None = None


class _Fields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    version: int
    labels: str = ""
    labels_skip: Annotated[int, Meta(ge=0)] = 0
    preprocess: str = ""
    postprocess: str = ""
    independent_labels: bool = False
    label_threshold: float | dict[str, float] | None = None
    input: _Input | None = None
    inputs: dict[str, _Input] = {}
    edge: tuple[_Model, ...] = ()
    full: _Model | None = None
    policy: _Policy = _Policy()
    task: dict[str, Any] | None = None


_Recipe = cast(
    type[_Fields],
    defstruct(
        "_Recipe",
        [(kind, dict[str, Any] | None, None) for kind in _KINDS],
        bases=(_Fields,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    ),
)
"""With a table for each task."""


def read_recipe(file: Path, models: Path | None = None) -> BundleSpec:
    """Reads a recipe.

    Args:
        file: TOML, see the module.
        models: folder that the recipe's paths are relative to; None for the recipe's own.

    Raises:
        ConfigError: the recipe is not valid; names file, line and key.
    """
    with naming(file):
        text = read_text(file, FILE_LIMIT_BYTES)
    if not text.strip():
        raise ConfigError(f"{file} is empty; write name, version, labels, a model and [policy] into it.")
    recipe = settings.load(_Recipe, Sources(file, text))
    spec = _spec(recipe, file, models if models is not None else file.parent)
    for key, sentence in _faults(spec, recipe.labels):
        with naming_key(file, key):
            raise ConfigError(sentence)
    return spec


def _spec(recipe: _Fields, file: Path, folder: Path) -> BundleSpec:
    """Returns the description that a recipe contains."""

    def text(entry: _Model, key: str, name: str) -> tuple[str, str]:
        """Returns the steps of a model, or else those of all models, and their key."""
        own = getattr(entry, name)
        return (getattr(recipe, name), name) if own is None else (own, f"{key}.{name}")

    def before(spelled: str, key: str | list[str]) -> tuple[PlainPre, ...]:
        with naming_key(file, key):
            steps = parse_preprocess(spelled, folder)
            for sentence in _step_faults(steps):
                raise ConfigError(sentence)
        return steps

    def after(spelled: str, key: str) -> tuple[PlainPost, ...]:
        with naming_key(file, key):
            return parse_postprocess(spelled, folder)

    def model(entry: _Model, key: str) -> ModelSpec:
        parsed = {
            "file": folder / entry.file,
            "preprocess": before(*text(entry, key, "preprocess")),
            "postprocess": after(*text(entry, key, "postprocess")),
            "inputs": {
                name: FeedSpec(feed.input, before(feed.preprocess, [*parts_of(key), "inputs", name, "preprocess"]))
                for name, feed in entry.inputs.items()
            },
        }
        return ModelSpec(**asdict(entry) | parsed)

    with naming_key(file, "labels"):
        labels = read_labels(folder / recipe.labels, recipe.labels_skip) if recipe.labels else ()
    configured = _configured(recipe, labels, file, folder)
    task = Classification if configured is None else configured
    edge = tuple(model(entry, f"edge[{number}]") for number, entry in enumerate(recipe.edge))
    full = model(recipe.full, "full") if recipe.full is not None else None
    with naming_key(file, "policy.score"):
        score = parse_score(recipe.policy.score or task.score_kinds[0], folder, task)
    return BundleSpec(
        name=recipe.name,
        version=recipe.version,
        labels=labels,
        edge=edge,
        full=full,
        policy=PolicySpec(score, recipe.policy.temperature, recipe.policy.threshold),
        inputs=_inputs(recipe, (*edge, full) if full is not None else edge, file),
        independent_labels=recipe.independent_labels,
        label_thresholds=_label_thresholds(recipe, labels, file),
        configured=configured,
        recipe=file,
    )


def _inputs(recipe: _Fields, models: Sequence[ModelSpec], file: Path) -> tuple[InputSpec, ...]:
    """Returns the inputs that the recipe declares; BYTES without a kind are images where they are decoded, else text.

    Raises:
        ConfigError: a declaration is not valid.
    """
    declared = [(["inputs", name], name, each) for name, each in recipe.inputs.items()]
    if recipe.input is not None:
        with naming_key(file, "input"):
            if declared:
                raise ConfigError("The recipe has [input] and [inputs]; declare all of them as [inputs.NAME].")
        declared = [(["input"], recipe.input.name, recipe.input)]
    found = []
    for key, name, each in declared:
        try:
            found.append(InputSpec(name, each.datatype, each.shape, each.kind or _kind(name, each, models)))
        except ValueError as error:
            with naming_key(file, key):
                raise ConfigError(f"{error}.") from error
    return tuple(found)


def _kind(name: str, declared: _Input, models: Sequence[ModelSpec]) -> Kind:
    if declared.datatype != "BYTES":
        return "tensor"
    feeds = [(tensor, feed) for model in models for tensor, feed in model.inputs.items()]
    steps = [step for model in models for step in model.preprocess]
    steps += [step for tensor, feed in feeds if (feed.input or tensor) == name for step in feed.preprocess]
    return decoded_kind(steps) or "text"


def _configured(recipe: _Fields, labels: Sequence[str], file: Path, folder: Path) -> Task | None:
    """Returns the task that the recipe's table configures; None for classifiers."""
    tables = {kind: table for kind in (*_KINDS, _TASK) if (table := getattr(recipe, kind, None)) is not None}
    if not tables and not recipe.labels:
        raise ConfigError(f'{file}: a classifier needs `labels = "FILE"`, one label a line.')
    if not tables:
        return None
    name, table = next(iter(tables.items()))
    with naming_key(file, f"{name}.kind" if name == _TASK and similar_task(str(table.get("kind"))) else name):
        if len(tables) > 1:
            raise ConfigError(f"There are {' and '.join(f'[{kind}]' for kind in tables)}; keep one of these tables.")
        return _read_task(name, table, labels, folder)


def _read_task(name: str, table: Mapping[str, Any], labels: Sequence[str], folder: Path) -> Task:
    """Returns the task that a table of a recipe configures."""
    fields = {**table, **({"labels": labels} if labels else {}), **({} if name == _TASK else {"kind": name})}
    if isinstance(graph := fields.get("loss_graph"), str) and fields.get("kind") == Tensors.kind:
        fields["loss_graph"] = _content(folder / graph)
    try:
        return read_task(fields)
    except (ValueError, TaskError) as error:
        raise ConfigError(f"{error}.") from error


def _label_thresholds(recipe: _Fields, labels: Sequence[str], file: Path) -> tuple[float, ...]:
    """Returns the threshold of each label; () if the recipe has none."""
    wanted = recipe.label_threshold
    if wanted is None:
        return ()
    by_label = wanted if isinstance(wanted, dict) else dict.fromkeys(labels, wanted)
    with naming_key(file, "label_threshold"):
        if not recipe.independent_labels:
            raise ConfigError("label_threshold is of independent labels; add `independent_labels = true`.")
        for label, threshold in by_label.items():
            if label not in labels:
                raise ConfigError(f"'{label}' is not a label of {recipe.labels}{did_you_mean(label, labels)}")
            check_share(f"the threshold of '{label}'", threshold)
    return tuple(by_label.get(label, 0.5) for label in labels)


def _content(file: Path) -> bytes:
    with naming(f"The loss graph {file}"):
        return file.read_bytes()


def parse_score(text: str, folder: Path, task: Task | type[Task]) -> str | Path:
    """Returns the kind of a score, or the file of `graph:FILE.onnx`.

    Args:
        text: as in a recipe.
        folder: that the graph's path is relative to.
        task: whose scores there are.

    Raises:
        ConfigError: it is neither.
    """
    kinds = task.score_kinds
    if text in kinds and text not in _FROM_DATA:
        return text
    if text.startswith(_GRAPH) and text != _GRAPH:
        return folder / text.removeprefix(_GRAPH)
    if text in _FROM_DATA:
        raise ConfigError(
            f"A bundle starts without the score '{text}', which takes data: make it with another one, then "
            f"`firstline certify BUNDLE --data DIR --score {text} ... --out NEW`."
        )
    choices = [kind for kind in kinds if kind not in _FROM_DATA] + [f"{_GRAPH}FILE.onnx"] * task.graph_scores
    if text in Classification.score_kinds:
        raise ConfigError(
            f"'{text}' is a score of classifiers, but the table [{task.kind}] declares another task; delete "
            f"[{task.kind}], or use one of {', '.join(choices)}."
        )
    raise ConfigError(f"'{text}' is not a score of the task {task.kind}{listed(text, choices)}")
