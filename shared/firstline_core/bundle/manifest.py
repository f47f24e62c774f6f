"""The declaration of a bundle, `manifest.json`, format 1: structure and digests. For files see `bundle/store.py`.

A bundle is a directory with `manifest.json` and artefacts. Model, processing, score and threshold travel together,
because a change of any of them invalidates the certificate.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from firstline_core.errors import ConfigError, FirstlineError, InferenceError, IntegrityError, TaskError, listed
from firstline_core.processing import steps as ops
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.policy import Logistic
from firstline_core.runtime.base import RuntimeName
from firstline_core.storage.artefact import Artefact
from firstline_core.storage.structs import fault_of
from firstline_core.tasks.base import DeclaredOutputs, Task
from firstline_core.tasks.installed import read_task
from firstline_core.types import Name, Sha256, TensorSpec

Text = Annotated[str, Meta(max_length=4096)]


class Provenance(Struct, frozen=True, forbid_unknown_fields=True):
    """The origin of a variant.

    Attributes:
        technique: such as "static-int8".
        source: id of the source model in its bundle.
        source_digest: `Model.digest` of the source model.
        parameters: of the technique, as text.
        libraries: versions of the packages that were used.
    """

    technique: Name
    source: Name
    source_digest: Sha256
    parameters: dict[Name, Text] = {}
    libraries: dict[Name, Text] = {}


FORMAT = 1
MANIFEST_NAME = "manifest.json"
MANIFEST_LIMIT_BYTES = 4 * 1024 * 1024
_FORMAT_JSON = str(FORMAT).encode()
_FLOATS = ("fp32", "fp16", "bf16", "fp64")

TEMPERATURES = (0.01, 100.0)
"""Minimum and maximum temperature of a score."""


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """One model and the processing that belongs to it.

    Attributes:
        id: unique in the bundle, e.g. "edge-int8" or "full".
        runtime: that loads it.
        precision: as measured on the artefact, for people ("fp32", "int8").
        inputs: of the model, each with its preprocessing.
        postprocess: from the model's output to the bundle's, in order.
        output: name of the model's output; "" if it has only one.
        measured: figures measured on this artefact, e.g. {"accuracy": 0.97}.
        certificate: of an edge variant. It may be void: see `certificate_problem`.
        provenance: how it was derived from another model; None if unknown.
        batch: 1 if its answers are right only for one row at a time, see `row_check.py`; None if rows of several
            requests may run together.
        without_rows: names of the model's inputs and outputs that have no axis of rows. Such a model runs with one row
            at a time; where its outputs have different sizes, the shorter ones are filled up with 0.
    """

    id: Name
    artefact: Artefact
    runtime: RuntimeName
    precision: str
    inputs: Annotated[tuple[ops.ModelInput, ...], Meta(min_length=1)]
    postprocess: tuple[ops.PostStep, ...] = ()
    output: str = ""
    measured: dict[str, float] = {}
    certificate: Certificate | None = None
    provenance: Provenance | None = None
    batch: Literal[1] | None = None
    without_rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.without_rows and self.batch is None:
            raise ValueError(f"model '{self.id}' has ports without rows, so its `batch` is 1")
        tensors = [each.tensor for each in self.inputs]
        if len(tensors) > 1 and ("" in tensors or len(set(tensors)) != len(tensors)):
            raise ValueError(f"model '{self.id}' has several inputs, so each names another `tensor`, got {tensors}")

    @property
    def input_names(self) -> tuple[str, ...]:
        """Returns the names of the bundle's inputs that this model reads, each once."""
        return tuple(dict.fromkeys([each.name for each in self.inputs]))

    @property
    def presteps(self) -> tuple[ops.PreStep, ...]:
        """Returns the preprocessing steps of all inputs."""
        return tuple([step for each in self.inputs for step in each.preprocess])

    @property
    def artefacts(self) -> tuple[Artefact, ...]:
        """Returns every file that this model needs."""
        steps = (*self.presteps, *self.postprocess)
        return (self.artefact, *(step.artefact for step in steps if isinstance(step, ops.WithFile)))

    @property
    def is_rounded(self) -> bool:
        """Returns whether its numbers may be rounded to eight bits."""
        return self.precision not in _FLOATS

    @property
    def shows_logits(self) -> bool:
        """See `steps.shows_logits`."""
        return ops.shows_logits(self.postprocess)

    @property
    def digest(self) -> str:
        """Returns the sha256 of the model: its bytes, its processing, and how its rows run.

        Answers and certificates name a full model by `Manifest.full_digest`, which covers the task too.
        """
        fields: list[object] = [self.artefact.sha256, self.runtime, self.inputs, self.postprocess, self.output]
        if self.batch is not None:
            fields.append(self.batch)
        if self.without_rows:
            fields.append(self.without_rows)
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


class Score(Struct, frozen=True, forbid_unknown_fields=True):
    """The declared score: higher means that the edge answer is more likely to be accepted.

    Attributes:
        kind: one of the task's `score_kinds`, or "learned" or "graph"; "energy" uses the input of the postprocessing's
            softmax step.
        temperature: divides the logits, or the logarithms of the probabilities, before scoring; 1 has no effect. Its
            bounds keep the quotients well inside FP32. A learned score does not use it.
        graph: for kind "graph", of tasks that have `graph_scores`: input `probabilities` FP32 [n, classes], output
            `score` FP32 [n].
        learned: for kind "learned": P(loss), of which the score is the complement.
    """

    kind: Name = "max_probability"
    temperature: Annotated[float, Meta(ge=TEMPERATURES[0], le=TEMPERATURES[1])] = 1.0
    graph: Artefact | None = None
    learned: Logistic | None = None

    def __post_init__(self) -> None:
        if (self.kind == "graph") != (self.graph is not None):
            raise ValueError("policy.score.graph goes with kind 'graph', and only with it")
        if (self.kind == "learned") != (self.learned is not None):
            raise ValueError("policy.score.learned goes with kind 'learned', and only with it")

    @property
    def digest(self) -> str:
        """Returns the sha256 over everything that can change a score, given the model's output."""
        fields = [self.kind, float(self.temperature), self.graph.sha256 if self.graph is not None else None]
        if self.learned is not None:
            fields += [*self.learned.weights, self.learned.bias]
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of the bundle: an edge answer is accepted if and only if its score is at least `threshold`.

    For a variant with a valid certificate, the threshold of the certificate applies instead.

    Attributes:
        value: P(edge wrong and full right), the value of an escalation. If the budgets do not allow all escalations,
            the most valuable rows are escalated first. No certificate depends on it.
    """

    score: Score = Score()
    threshold: float = 1.0
    value: Logistic | None = None


class Golden(Struct, frozen=True, forbid_unknown_fields=True):
    """Answers that a device must reproduce before a bundle serves requests, see `golden.py`.

    Attributes:
        tolerance: maximum difference of an output, see `Task.difference`, because runtimes and processors differ.
    """

    artefact: Artefact
    tolerance: Annotated[float, Meta(ge=0, le=1)] = 0.01


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A bundle's declaration. `version` is monotonic and is the V2 model version.

    Attributes:
        task: kind of the answers, with its configuration, such as the labels of a classifier.
        inputs: all that clients may send. A model reads some of them, see `Model.inputs`.
        edge: variants in order of preference; a device takes the first that it can load.
        full: the full model, if the bundle has one.
        golden: the data of the device's self-test; None if the bundle has none.
        task_package: the distribution that provides the task, such as "parking-task"; "" for tasks of Firstline.
    """

    name: Name
    version: Annotated[int, Meta(ge=1)]
    task: Task
    inputs: Annotated[tuple[ops.InputSpec, ...], Meta(min_length=1)]
    edge: tuple[Model, ...]
    full: Model | None = None
    policy: Policy = Policy()
    golden: Golden | None = None
    format: int = FORMAT
    task_package: Annotated[str, Meta(max_length=128)] = ""

    def __post_init__(self) -> None:
        ids = [model.id for model in self.models]
        if not ids:
            raise ValueError("a bundle needs an edge variant or a full model")
        if len(set(ids)) != len(ids):
            raise ValueError(f"model ids must differ, got {', '.join(ids)}")
        self._check_inputs()
        kinds = (*self.task.score_kinds, "learned", *(("graph",) if self.task.graph_scores else ()))
        if self.policy.score.kind not in kinds:
            raise ValueError(f"policy.score.kind of this task is one of {', '.join(kinds)}")
        for model in self.edge:
            if problem := self.task.unscored(self.policy.score.kind, model.postprocess):
                raise ValueError(f"score '{self.policy.score.kind}' of '{model.id}' {problem}")
        for name, learned in (("score.learned", self.policy.score.learned), ("value", self.policy.value)):
            if learned is not None and len(learned.weights) != (wanted := self._feature_count()):
                raise ValueError(
                    f"policy.{name} has {len(learned.weights)} weights, but its task gives {wanted} features"
                )
        if self.full is not None and self.full.certificate is not None:
            raise ValueError("a certificate belongs to an edge variant; the full model needs none")

    def _feature_count(self) -> int:
        """Returns the number of features of the task; raises TaskError if the code of its package fails."""
        try:
            return self.task.feature_count
        except FirstlineError:
            raise
        except Exception as error:
            package = f" of the package '{self.task_package}'" if self.task_package else ""
            raise TaskError(
                f"the features of the task '{self.task.kind}'{package} cannot be counted: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _check_inputs(self) -> None:
        names = [spec.name for spec in self.inputs]
        if len(set(names)) != len(names):
            raise ValueError(f"names of inputs must differ, got {', '.join(names)}")
        for model in self.models:
            for name in model.input_names:
                if name not in names:
                    raise ValueError(f"model '{model.id}' reads input '{name}'; the bundle has: {', '.join(names)}")
        read = {name for model in self.models for name in model.input_names}
        if unread := [name for name in names if name not in read]:
            raise ValueError(f"no model reads input '{unread[0]}'; remove it")

    @property
    def models(self) -> tuple[Model, ...]:
        return (*self.edge, self.full) if self.full is not None else self.edge

    def model(self, id_: str) -> Model:
        """Returns one of the models.

        Raises:
            ConfigError: there is none of that id.
        """
        models = {model.id: model for model in self.models}
        if id_ not in models:
            raise ConfigError(f"Bundle '{self.name}' has no model '{id_}'{listed(id_, models, 'it has:')}")
        return models[id_]

    @property
    def needs_event(self) -> bool:
        """Returns whether contracts must name an event, see `Task.needs_event`."""
        return any(self.task.needs_event(model.postprocess) for model in self.models)

    @property
    def artefacts(self) -> tuple[Artefact, ...]:
        """Returns every file that the manifest names."""
        files = [artefact for model in self.models for artefact in model.artefacts]
        return tuple(dict.fromkeys([*files, *self.common_artefacts]))

    @property
    def common_artefacts(self) -> tuple[Artefact, ...]:
        """Returns the files that belong to no single model: the score's graph and the golden answers."""
        golden = self.golden.artefact if self.golden is not None else None
        return tuple([artefact for artefact in (self.policy.score.graph, golden) if artefact is not None])

    @property
    def input_tensors(self) -> tuple[TensorSpec, ...]:
        """Returns the declarations of the inputs, as V2 lists them."""
        return tuple([spec.tensor for spec in self.inputs])

    @property
    def file_inputs(self) -> tuple[str, ...]:
        """Returns the names of the inputs that take files: images and recordings."""
        return tuple([spec.name for spec in self.inputs if spec.kind in ("image", "audio")])

    @property
    def full_inputs(self) -> tuple[str, ...]:
        """Returns the names of the inputs that the full model reads; of all inputs if the bundle has none."""
        return self.full.input_names if self.full is not None else tuple([spec.name for spec in self.inputs])

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Returns the names of the task's outputs."""
        return tuple([spec.name for spec in self.task.outputs])

    def input(self, name: str) -> ops.InputSpec:
        """Returns one of the inputs."""
        return next(spec for spec in self.inputs if spec.name == name)

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the labels of the classes, in their order; () if the task has none."""
        return self.task.labels

    @property
    def labels_digest(self) -> str:
        """Returns the sha256 of the labels in their order, which events and classes of certificates refer to."""
        return hashlib.sha256(msgspec.json.encode(self.labels)).hexdigest()

    def outputs_of(self, model: Model | None) -> DeclaredOutputs:
        """Returns what the outputs of one of the bundle's models satisfy; None is a full model without declaration."""
        if model is None:
            return self.task.declared(rounded=True, cut=True)
        cut = any(isinstance(step, ops.LabelOffset | ops.Columns) for step in model.postprocess)
        return self.task.declared(rounded=model.is_rounded, cut=cut)

    @property
    def full_digest(self) -> str:
        """Returns the digest of the full model and of the task that reads it, or "" if the bundle has none."""
        return self._with_task(self.full.digest) if self.full is not None else ""

    def score_digest(self, score: Score) -> str:
        """Returns the digest of a score, and of the task that computes it and the loss."""
        return self._with_task(score.digest)

    def _with_task(self, digest: str) -> str:
        task = self.task.digest
        return hashlib.sha256(f"{digest} {task}".encode()).hexdigest() if task else digest


def parse_manifest(text: bytes, where: str = MANIFEST_NAME) -> Manifest:
    """Parses a manifest strictly: unknown fields and other formats are refused.

    Args:
        text: the file's bytes.
        where: named in errors.

    Raises:
        IntegrityError: not JSON, not a manifest, a format that this version does not read, or a
            certificate whose contract does not fit the task.
    """
    if len(text) > MANIFEST_LIMIT_BYTES:
        raise IntegrityError(f"{where} has {len(text)} bytes; a manifest has at most {MANIFEST_LIMIT_BYTES}.")
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "format" in raw and bytes(raw["format"]) != _FORMAT_JSON:
            raise IntegrityError(
                f"{where} has format {bytes(raw['format']).decode()}; this version of Firstline reads format {FORMAT}."
            )
        package = msgspec.json.decode(raw["task_package"], type=str) if "task_package" in raw else ""
        manifest = msgspec.json.decode(text, type=Manifest, dec_hook=partial(_decoded, package))
    except (TaskError, InferenceError) as error:  # what a task of another package gives for a made-up answer, too
        raise IntegrityError(f"{where}: {error}.") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{where} is not a manifest: {fault_of(error)}; copy the bundle again, or create it again."
        ) from error
    for model in manifest.edge:
        certificate = valid_certificate(manifest, model)
        if manifest.needs_event and certificate is not None and not certificate.events:
            raise IntegrityError(
                f"{where}: the certificate of '{model.id}' names no event, as certificates of the task "
                f"{manifest.task.kind} must; remove it."
            )
    return manifest


def _decoded(package: str, kind: type, fields: object) -> Task:
    """Returns the only value of a manifest that msgspec does not know, its task."""
    if kind is not Task:
        raise TypeError(f"{kind.__name__} is not a type of manifests")
    return read_task(fields, package)


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the manifest's file form: indented JSON, so that people can read and compare it.

    `batch`, `without_rows`, `task_package`, and a certificate's `events`, `labels_digest` and `graded` are omitted at
    their defaults: most bundles do not need them.
    """
    fields = msgspec.to_builtins(manifest)
    _omit_empty(fields, "task_package")
    for model in filter(None, (*fields["edge"], fields["full"])):
        _omit_empty(model, "batch", "without_rows")
        _omit_empty(model["certificate"] or {}, "events", "labels_digest", "graded")
    return msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n"


def _omit_empty(fields: dict[str, Any], *names: str) -> None:
    for name in names:
        if not fields.get(name, True):
            del fields[name]


def valid_certificate(manifest: Manifest, model: Model) -> Certificate | None:
    """Returns the variant's certificate, or None if it has none or the certificate is void."""
    return None if certificate_problem(manifest, model) else model.certificate


def certificate_problem(manifest: Manifest, model: Model) -> str:
    """Returns why the variant has no valid certificate, as part of a sentence; "" if it has one."""
    certificate = model.certificate
    if certificate is None:
        return "its bundle carries no certificate for it"
    made_for = (
        ("edge model or its processing", certificate.edge_digest, model.digest),
        ("full model", certificate.full_digest, manifest.full_digest),
        ("score", certificate.score_digest, manifest.score_digest(manifest.policy.score)),
    )
    other = [what for what, named, found in made_for if named != found]
    if other:
        return f"its certificate is void: it was made for another {' and another '.join(other)}"
    if certificate.labels_digest not in ("", manifest.labels_digest):
        return "its certificate is void: it was made for other labels"
    unknown = sorted(certificate.events.keys() - manifest.task.events)
    return f"its certificate is void: its task has no event '{unknown[0]}'" if unknown else ""
