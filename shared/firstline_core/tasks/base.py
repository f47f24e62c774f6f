"""The functions of tasks, and what holds for a task that does not define them. All are pure."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, InferenceError, ModelLoadError, listed
from firstline_core.processing.compile import GraphLoader, compile_postprocess
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.steps import PostStep
from firstline_core.runtime.base import pick_port
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.arrays import (
    beginning,
    labelled_rows,
    largest_difference,
    measures,
    nested,
    not_finite,
    numbers_of,
    shaped,
    some_labelled,
    taken,
    zeros,
)
from firstline_core.tasks.drawing import caption
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import DATATYPES, Arrays, TensorSpec, row_count

if TYPE_CHECKING:
    from PIL import Image

Scores = NDArray[np.float32]
"""One number a row, (n,)."""

MISSED, INVENTED = "missed", "invented"
"""The directions of events: what only the full model reports, and what only the edge model reports."""


Misses = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""Where each class counts, and where it is lost if it counts; (n, event_classes) each."""


class Event(NamedTuple):
    """A conditional loss.

    Attributes:
        counts: bool (n,), the rows in which the event can occur.
        loss: FP32 (n,), 1 where it occurred, else 0; 0 for rows that do not count.
    """

    counts: NDArray[np.bool_]
    loss: Scores


def event_names(classes: Sequence[str]) -> tuple[str, ...]:
    """Returns the events of classes, such as "missed person" and "invented person"."""
    return tuple(f"{direction} {each}" for each in classes for direction in (MISSED, INVENTED))


def event_of(name: str, classes: Sequence[str]) -> tuple[str, list[int]]:
    """Returns the direction of an event, and the numbers of its class: two may have one label, as ImageNet's cranes.

    Args:
        name: one of `event_names(classes)`.
        classes: see `Task.event_classes`.

    Raises:
        ConfigError: no such event.
    """
    direction, _, found = name.partition(" ")
    if direction not in (MISSED, INVENTED) or found not in classes:
        known = event_names(classes)[:8]
        raise ConfigError(f"There is no event '{name}'{listed(name, known)}" if known else "The task has no events.")
    return direction, [number for number, label in enumerate(classes) if label == found]


class Prediction(Struct, frozen=True, eq=False):
    """A model's answer for some rows.

    Attributes:
        outputs: the canonical outputs of the task.
        evidence: further tensors, for scoring only, such as the `logits` of a classifier.
    """

    outputs: Arrays
    evidence: Arrays


class Postprocess(NamedTuple):
    """A model's postprocessing.

    Attributes:
        reads: names of the model's outputs that it uses.
        run: from the model's outputs by name, and the prepared rows, to the answer. It raises an `InferenceError` if an
            output has another shape than the bundle declares.
        needs: names of the side arrays of the prepared rows that it uses, see `processing/compile.py`.
    """

    reads: tuple[str, ...]
    run: Callable[[Arrays, Arrays], Prediction]
    needs: tuple[str, ...] = ()


def _no_file(artefact: Artefact) -> bytes:
    raise ModelLoadError(f"{artefact.file} is absent.")


class ModelOutputs(NamedTuple):
    """A model's outputs and declared steps, from which a task compiles its postprocessing.

    Attributes:
        what: the model, for messages.
        steps: the declared postprocessing.
        ports: the outputs of the model.
        output: name of the output in the manifest; "" for the only one.
        image_size: returns the size of the images that the model takes.
        load_graph: returns the function of a graph step.
        read_file: returns the content of a step's file.
    """

    what: str
    steps: Sequence[PostStep]
    ports: Sequence[TensorSpec]
    output: str
    image_size: Callable[[], InputSize]
    load_graph: GraphLoader
    read_file: Callable[[Artefact], bytes] = _no_file

    def port(self, name: str) -> str:
        """Returns the name of one of the model's outputs.

        Args:
            name: "" for the only output.

        Raises:
            ModelLoadError: there is no such output, or there are several and no name.
        """
        return pick_port(self.ports, name, self.what, "output").name


class DeclaredOutputs(NamedTuple):
    """The declaration of one model's outputs.

    Attributes:
        outputs: names, datatypes and shapes; -1 is the number of rows.
        fault: returns what is wrong with the values of outputs of these shapes, as a noun; "" if nothing is.
    """

    outputs: tuple[TensorSpec, ...]
    fault: Callable[[Arrays], str]


def check_outputs(declared: DeclaredOutputs, outputs: Arrays, rows: int) -> None:
    """Raises an error if outputs are not as declared.

    Args:
        declared: of the model.
        outputs: canonical outputs of one answer, and any others.
        rows: number of rows.

    Raises:
        InferenceError: an output is absent, or has another datatype, another shape or an impossible value.
    """
    for spec in declared.outputs:
        found, dtype, shape = outputs.get(spec.name), DATATYPES[spec.datatype], (rows, *spec.shape[1:])
        if found is None or found.dtype != dtype or found.shape != shape:
            got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise InferenceError(f"'{spec.name}' is {got}, expected {dtype} {list(shape)}.")
    if problem := declared.fault(outputs):
        raise InferenceError(f"The answer has {problem}.")


class _Kind:
    def __get__(self, task: object, owner: type) -> str:
        return str(owner.__struct_config__.tag)  # type: ignore[attr-defined]


class Task:
    """A task, with the configuration of one bundle. Its types derive from `ConfiguredTask`.

    `outputs` and `loss` are what a task must define. Everything else has a default, which holds for outputs about which
    only names, datatypes and shapes are known. A task with `event_classes` also defines `occurrences`.

    Attributes:
        kind: its name in manifests, the tag of its struct.
        score_kinds: names of the confidence scores that `score` computes.
        compares_evidence: whether `difference` uses the evidence too.
        graph_scores: whether a bundle's own score graph, which reads probabilities, can score the outputs.
        quality: name of the figure in `summary` by which models are compared.
        higher_is_better: whether a better model has a higher `quality`.
        view_options: fields of `View` that `describe` and `draw` obey.
        in_pixels: whether answers name places in the upright image, so that they also state its size.
        outputs: the canonical outputs that both tiers return.
        evidence: tensors that a model of the task may give for scoring only.
        truth: the labels of a data set. Its first axis is the rows; -1 elsewhere is any size.
        labels: of the classes, in their order; () if the task has none.
        event_classes: the classes, or groups of classes, with events, which contracts and rollouts tell apart; () if
            there are none.
        events: names of the conditional losses, see `events_of`.
        feature_count: number of columns of `features`.
    """

    __slots__ = ()

    kind = _Kind()
    score_kinds: ClassVar[tuple[str, ...]] = ("none",)
    compares_evidence: ClassVar[bool] = False
    graph_scores: ClassVar[bool] = False
    quality: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    view_options: ClassVar[tuple[str, ...]] = ()
    in_pixels: ClassVar[bool] = False

    @property
    @abstractmethod
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return ()

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        """Returns the form of the outputs: the label of a row is the answer that it should have."""
        return self.outputs

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def event_classes(self) -> tuple[str, ...]:
        return ()

    @property
    def events(self) -> tuple[str, ...]:
        return event_names(self.event_classes)

    @property
    def digest(self) -> str:
        """Returns the sha256 over the configuration that changes outputs, scores or losses; "" if none does.

        The default covers all fields.
        """
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def feature_count(self) -> int:
        """Returns the number of columns of `features`, which are computed for a made-up row."""
        outputs, evidence = ({spec.name: zeros(spec, 1) for spec in specs} for specs in (self.outputs, self.evidence))
        return int(self.features(outputs, evidence).shape[1])

    def labelled(self, truth: Arrays) -> NDArray[np.bool_]:
        """Returns which rows have a label, (n,); by default, see `labelled_rows`."""
        return labelled_rows(truth)

    @property
    def judges_rows(self) -> bool:
        """Returns whether the label of a row says how right the answer to it is, see `truth_loss`."""
        return True

    def declared(self, *, rounded: bool, cut: bool) -> DeclaredOutputs:
        """Returns the declaration of one model's outputs; by default, those of all models satisfy the same.

        Args:
            rounded: whether the model's numbers may be rounded to eight bits.
            cut: whether some of the model's classes are left out, such as a background class.
        """
        return DeclaredOutputs(self.outputs, self.fault)

    def fault(self, outputs: Arrays) -> str:
        """Returns what is wrong with the values of outputs of the declared shapes, as a noun; "" if nothing is."""
        return not_finite({spec.name: outputs[spec.name] for spec in self.outputs})

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the postprocessing of one model.

        The default reads the outputs by their names, or a single output with steps.

        Raises:
            ModelLoadError: the steps do not fit the task or each other, or an output does not exist.
        """
        alone = len(self.outputs) == 1
        if not alone and (model.steps or model.output):
            raise ModelLoadError(
                f"Postprocessing: {model.what} has several outputs, which have the names in the task and no steps."
            )
        names = {spec.name: model.port(model.output if alone else spec.name) for spec in self.outputs}
        steps = compile_postprocess(model.steps, model.load_graph) if model.steps else None

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            outputs = {}
            for spec in self.outputs:
                found = raw[names[spec.name]] if steps is None else steps(raw[names[spec.name]])
                outputs[spec.name] = shaped(found, spec, row_count(rows), model.what)
            return Prediction(outputs, {})

        return Postprocess(tuple(names.values()), run)

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the confidence of each row: higher means that the edge answer is more likely to be accepted.

        The default is 0 for every row: without confidence no edge answer is accepted.

        Args:
            kind: one of `score_kinds`.
            outputs: canonical outputs.
            evidence: further tensors of the model, for scoring only.
            temperature: divides logits before scoring, where the task has them; 1 has no effect.

        Returns:
            (n,) float32.

        Raises:
            InvalidTensorError: the score needs evidence that the model does not give.
        """
        return np.zeros(row_count(outputs), np.float32)

    def needs_event(self, steps: Sequence[PostStep]) -> bool:
        """Returns whether contracts must name an event: most rows may have nothing to report, and hide the misses.

        Args:
            steps: the postprocessing of a model.
        """
        return False

    def unscored(self, kind: str, steps: Sequence[PostStep]) -> str:
        """Returns why a model cannot have a score, as part of a sentence; "" if it can.

        A model without confidence must not be scored by noise: only the scores that remain are offered.

        Args:
            kind: one of `score_kinds`, "learned" or "graph".
            steps: the postprocessing of the model.
        """
        return ""

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the inputs of learned scores, (n, feature_count) float32; for arguments and errors see `score`.

        The default is mean, deviation and logarithm of the largest size of each output of numbers.
        """
        numbers = numbers_of(self.outputs)
        return measures([outputs[name] for name in numbers], row_count(outputs))

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns an estimate of P(loss) of each row, (n,) in [0, 1], for scores that are not probabilities.

        The default is a half for each row: nothing is known.
        """
        return np.full(row_count(outputs), 0.5, np.float32)

    def groups(self, outputs: Arrays) -> Sequence[str]:
        """Returns, for each row, the class that a certificate by class refers to; "" without one.

        The default is the first of `event_classes` that the row reports.
        """
        counts = self.occurrences(outputs)
        return [
            next((name for name, count in zip(self.event_classes, row, strict=True) if count), "") for row in counts
        ]

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        """Returns how often each row reports each class, (n, len(event_classes))."""
        return np.zeros((row_count(outputs), 0), np.int64)

    @abstractmethod
    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns the disagreement of each row, (n,) float32 in [0, 1]; an answer changed if it is above 0."""

    def events_of(self, names: Iterable[str], edge: Arrays, full: Arrays) -> dict[str, Event]:
        """Returns the rows in which each event can occur, and where it occurred, by name; see `misses`.

        Args:
            names: some of `events`.
            edge: canonical outputs.
            full: canonical outputs, or labels of the same form.

        Raises:
            ConfigError: no such event.
        """
        wanted = {name: event_of(name, self.event_classes) for name in names}
        misses, found = dict(zip((MISSED, INVENTED), self.misses(edge, full), strict=True)), {}
        for name, (direction, columns) in wanted.items():
            counts, lost = (each[:, columns] for each in misses[direction])
            occurred = np.asarray((counts & lost).any(axis=1), np.float32)
            found[name] = Event(np.asarray(counts.any(axis=1)), occurred)
        return found

    def misses(self, edge: Arrays, full: Arrays) -> tuple[Misses, Misses]:
        """Returns the rows that count for "missed" and for "invented", and which of them are lost.

        "missed C" counts the rows in which the full model reports the class C, and loses those in which the edge model
        does not. "invented C" is the reverse.
        """
        ours, theirs = (self.occurrences(outputs) > 0 for outputs in (edge, full))
        return (theirs, ~ours), (ours, ~theirs)

    def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
        """Returns the loss of each row against its label, (n,) float32 in [0, 1]; 1 for a row without a label.

        By default, a label has the form of the outputs, and is absent if it has NaN.
        """
        known = labelled_rows(truth)
        losses = np.ones(len(known), np.float32)
        if known.any():
            losses[known] = self.loss(taken(outputs, known), taken(truth, known))
        return losses

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns the figures of a data set, with `quality` among them; by default the mean loss against the labels.

        Raises:
            ConfigError: no row has a label, or a package that computes a figure is not installed.
        """
        known = some_labelled(truth, "The loss")
        return {"loss": float(self.truth_loss(outputs, truth)[known].mean())}

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the answer to one row for people, as JSON values.

        The default is `outputs`: nested lists by name, with one row, in seven digits.

        Args:
            outputs: canonical outputs.
            row: its index.
            view: leaves parts of the answer out.
        """
        return {"outputs": {spec.name: nested(outputs[spec.name][row : row + 1]) for spec in self.outputs}}

    def title(self, outputs: Arrays, row: int) -> str:
        """Returns the answer to one row as text for a picture; by default the first elements of each output."""
        return "\n".join(f"{spec.name} {beginning(outputs[spec.name][row])}" for spec in self.outputs)

    def draw(self, image: Image.Image, outputs: Arrays, row: int, view: View = WHOLE) -> Image.Image:
        """Returns a copy of the upright image that shows the answer to one row; by default as `title` in a corner.

        Args:
            image: upright; it may be smaller than the original, if `view` has the original's size.
            outputs: canonical outputs.
            row: its index.
            view: leaves parts of the answer out.
        """
        return caption(image, self.title(outputs, row))

    def difference(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference of two outputs of the same rows.

        It is infinite if their shapes differ, and for NaN or infinity.

        Args:
            expected: canonical outputs, and the evidence if it is known.
            actual: the same.
        """
        wanted, found = ({spec.name: each[spec.name] for spec in self.outputs} for each in (expected, actual))
        if any(wanted[name].shape != found[name].shape for name in wanted) or not_finite(wanted) or not_finite(found):
            return float("inf")
        return self.distance(expected, actual)

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference of finite outputs of equal shapes; for arguments see `difference`.

        It is absolute for probabilities and scores, and otherwise relative to the size of the output. The default is
        relative to the largest number of each output or to 1, and infinite for other BYTES or booleans.
        """
        return largest_difference(expected, actual, self.outputs)


class ConfiguredTask(Task, Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """The base of tasks: a struct whose fields are the configuration, and whose tag is the kind."""
