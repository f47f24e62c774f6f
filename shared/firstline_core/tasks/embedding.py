"""Embeddings: vectors whose direction says what a row is like, and their nearest neighbour in a gallery. Pure.

The output is `embedding` FP32 [n, size]. With a gallery, `neighbour` INT64 [n] follows, the number of the most similar
row of the gallery, and `similarity` FP32 [n], its cosine. Each model has a gallery of its own, because models need not
share a space; then only the neighbours are compared.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.compile import compile_postprocess
from firstline_core.processing.steps import Columns, Gallery, Graph, Positive, PostStep
from firstline_core.tasks.arrays import LABEL, UNLABELLED, labelled_rows, nested, not_finite, numbered
from firstline_core.tasks.base import ConfiguredTask, ModelOutputs, Postprocess, Prediction, Scores
from firstline_core.tasks.view import WHOLE, View
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, Arrays, TensorSpec, row_count

EMBEDDING, NEIGHBOUR, SIMILARITY = "embedding", "neighbour", "similarity"
"""Outputs FP32 (n, size), INT64 (n,), -1 for none, and FP32 (n,), from -1 to 1."""

OTHER, MARGIN = "other_similarity", "margin"
"""Evidence FP32 (n,): the cosine of the most similar row with another label, and how much the similarities may change
before another label, or none, is the answer."""

_SLACK = 1e-5  # rounding of 32-bit arithmetic
_TINY = 1e-12
_GROUPS_AT_MOST = 256  # with more labels, contracts and rollouts cannot tell them apart


class Embedding(ConfiguredTask, frozen=True, tag="embedding"):
    """A model of embeddings.

    Attributes:
        size: number of the embedding's columns; a shorter one is filled up with zeros, which change no angle.
        tolerance: cosine distance (1 - cosine) of the models' embeddings above which they differ; 0 if they are not
            compared.
        labels: of the gallery's rows, in their order; several rows may have the same. () without a gallery.
        event_labels: those with events, which contracts and rollouts tell apart. () for all, or for none if there are
            more than 256.
    """

    score_kinds: ClassVar[tuple[str, ...]] = ("margin", "similarity", "norm")
    quality: ClassVar[str] = "recall_at_1"
    higher_is_better: ClassVar[bool] = True

    size: Positive
    tolerance: Annotated[float, Meta(ge=0, le=2)] = 0.0
    labels: tuple[str, ...] = ()
    event_labels: Annotated[tuple[str, ...], Meta(max_length=_GROUPS_AT_MOST)] = ()

    def __post_init__(self) -> None:
        if not self.tolerance and not self.labels:
            raise ValueError("embeddings are compared by a tolerance, or by the labels of a gallery")
        if len(set(self.event_labels)) < len(self.event_labels):
            raise ValueError("event_labels names a label twice")
        for label in self.event_labels:
            if label not in self.labels:
                raise ValueError(f"event_labels names the label '{label}', which no row of the gallery has")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        embedding = TensorSpec(EMBEDDING, "FP32", (-1, self.size))
        if not self.labels:
            return (embedding,)
        return embedding, TensorSpec(NEIGHBOUR, "INT64", (-1,)), TensorSpec(SIMILARITY, "FP32", (-1,))

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, "FP32", (-1,)) for name in (OTHER, MARGIN)) if self.labels else ()

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        """Returns the number of the label, or of a class of the data without a gallery; -1 if it is not known."""
        return (TensorSpec(LABEL, "INT64", (-1,)),)

    @property
    def event_classes(self) -> tuple[str, ...]:
        """Returns `event_labels`, or all different labels; () if there are too many to tell apart."""
        names = self.event_labels or tuple(dict.fromkeys(self.labels))
        return names if len(names) <= _GROUPS_AT_MOST else ()

    @property
    def judges_rows(self) -> bool:
        """Returns whether there is a gallery: without one, labels tell only which rows belong together."""
        return bool(self.labels)

    def fault(self, outputs: Arrays) -> str:
        if (problem := not_finite({EMBEDDING: outputs[EMBEDDING]})) or not self.labels:
            return problem
        neighbour, similarity = outputs[NEIGHBOUR], outputs[SIMILARITY]
        if ((neighbour < -1) | (neighbour >= len(self.labels))).any():
            return f"a neighbour outside of -1 to {len(self.labels) - 1}"
        if not (np.abs(similarity) <= 1 + _SLACK).all():
            return "a similarity outside of -1 to 1, or NaN"
        return ""

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the steps to the embedding, and the search in the gallery after them."""
        rows_of_gallery, least = None, -1.0
        match model.steps:
            case [*steps, Gallery() as gallery]:
                rows_of_gallery = self._gallery(model.read_file(gallery.artefact), gallery.artefact.file)
                least = gallery.least
            case _:
                steps = list(model.steps)
        if not all(isinstance(step, Columns | Graph) for step in steps):
            raise ModelLoadError("Postprocessing of embeddings: columns and graph, and last gallery.")
        if (rows_of_gallery is not None) != bool(self.labels):
            raise ModelLoadError("Postprocessing of embeddings: gallery goes with the labels of its rows.")
        name, to_embedding = model.port(model.output), compile_postprocess(steps, model.load_graph)

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            found, count = to_embedding(raw[name]), row_count(rows)
            if len(found) != count or found.shape[1] > self.size:
                raise InferenceError(
                    f"{model.what} gave {list(found.shape)} for {counted(count, 'row')}, but "
                    f"embeddings have {self.size} columns."
                )
            outputs: dict[str, Array] = {EMBEDDING: np.pad(found, ((0, 0), (0, self.size - found.shape[1])))}
            if rows_of_gallery is None:
                return Prediction(outputs, {})
            if found.shape[1] != rows_of_gallery.shape[1]:
                raise InferenceError(
                    f"{model.what} gave {found.shape[1]} columns; its gallery has {rows_of_gallery.shape[1]}."
                )
            nearest, evidence = self._search(_unit(found) @ rows_of_gallery.T, least)
            return Prediction(outputs | nearest, evidence)

        return Postprocess((name,), run)

    def _gallery(self, content: bytes, file: str) -> NDArray[np.float32]:
        """Returns the rows of a gallery with length 1."""
        try:
            rows = np.load(io.BytesIO(content), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ModelLoadError(f"The gallery {file} is not a .npy file: {error}.") from error
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind != "f" or not np.isfinite(rows).all():
            got = list(rows.shape) if isinstance(rows, np.ndarray) else "an archive"
            raise ModelLoadError(f"The gallery {file} needs finite numbers [rows, columns], got {got}.")
        if len(rows) != len(self.labels):
            raise ModelLoadError(f"The gallery {file} has {len(rows)} rows, but there are {len(self.labels)} labels.")
        return _unit(rows.astype(np.float32))

    def _search(self, cosines: NDArray[np.float32], least: float) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns the outputs and the evidence of a search.

        Args:
            cosines: (n, rows of the gallery).
            least: cosine from which a row of the gallery is a neighbour.
        """
        numbers = self._label_numbers()
        best = cosines.argmax(axis=1)
        similarity = np.clip(cosines.max(axis=1), -1, 1).astype(np.float32)
        others = np.where(numbers[None] == numbers[best][:, None], -1, cosines).max(axis=1, initial=-1)
        known = similarity >= least
        margin = np.where(known, np.minimum(similarity - others, similarity - least), least - similarity)
        outputs = {NEIGHBOUR: np.where(known, best, -1).astype(np.int64), SIMILARITY: similarity}
        return outputs, {OTHER: others.astype(np.float32), MARGIN: margin.astype(np.float32)}

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the confidence of each row, in [0, 1].

        - `margin`: half of the similarity that the answer may lose before another label, or none, is nearer.
        - `similarity`: half of 1 + the cosine of the neighbour; of 1 - the cosine if none is near enough.
        - `norm`: length of the embedding by 1 + the length. Many models of faces give short embeddings to bad images;
          it says nothing about models that normalise. It needs no gallery.

        Args:
            kind: one of `score_kinds`.
            outputs: canonical outputs.
            evidence: of the search; `norm` needs none.
            temperature: without effect, because there are no logits.

        Raises:
            InvalidTensorError: there is no gallery.
        """
        if kind == "norm":
            norm = np.linalg.norm(outputs[EMBEDDING].astype(np.float64), axis=1)
            return np.asarray(norm / (1 + norm), np.float32)
        if MARGIN not in evidence:
            raise InvalidTensorError(f"The score '{kind}' needs a gallery; this model has none.")
        if kind == "margin":
            return np.asarray(np.clip(evidence[MARGIN] / 2, 0, 1), np.float32)
        signed = np.where(outputs[NEIGHBOUR] >= 0, outputs[SIMILARITY], -outputs[SIMILARITY])
        return np.asarray(np.clip((1 + signed) / 2, 0, 1), np.float32)

    def needs_event(self, steps: Sequence[PostStep]) -> bool:
        """Returns whether a row of the gallery needs a least similarity: a model that knows no row gives -1."""
        return any(isinstance(step, Gallery) and step.least > -1 for step in steps)

    def unscored(self, kind: str, steps: Sequence[PostStep]) -> str:
        if kind in ("margin", "similarity") and not any(isinstance(step, Gallery) for step in steps):
            return "needs the step gallery in its postprocessing; without it there are norm and learned"
        return ""

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the inputs of learned scores, (n, feature_count).

        Logarithm of the length, and with a gallery the similarity, that of the best other label, and the margin.
        """
        norm = np.linalg.norm(outputs[EMBEDDING].astype(np.float64), axis=1)
        columns = [np.log(np.maximum(norm, _TINY))]
        if MARGIN in evidence:
            columns += [outputs[SIMILARITY], evidence[OTHER], evidence[MARGIN]]
        else:
            columns += [np.zeros_like(norm)] * 3
        return np.column_stack(columns).astype(np.float32)

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns half of 1 - the score `margin`, or a half without a gallery."""
        if MARGIN not in evidence:
            return super().supposed_losses(outputs, evidence)
        return np.asarray((1 - self.score("margin", outputs, evidence)) / 2, np.float32)

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        """Returns whether the label of the neighbour has events, (n, event_classes)."""
        columns = {name: column for column, name in enumerate(self.event_classes)}
        if not columns:
            return super().occurrences(outputs)
        found = [columns.get(self.labels[row], -1) if row >= 0 else -1 for row in outputs[NEIGHBOUR].tolist()]
        return np.asarray(np.array(found)[:, None] == np.arange(len(columns)), np.int64)

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns 1 where the neighbours have different labels or the embeddings are too far apart, else 0."""
        lost = np.zeros(len(edge[EMBEDDING]), np.bool_)
        if self.labels:
            lost |= self._labels_of(edge) != self._labels_of(full)
        if self.tolerance:
            cosine = (_unit(edge[EMBEDDING]).astype(np.float64) * _unit(full[EMBEDDING])).sum(axis=1)
            lost |= 1 - cosine > self.tolerance
        return lost.astype(np.float32)

    def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
        """Returns 1 where the neighbour has another label than the truth.

        Raises:
            ConfigError: there is no gallery.
        """
        if not self.judges_rows:
            raise ConfigError("Embeddings without a gallery have no right or wrong answer to one row; see recall_at_1.")
        known = truth[LABEL] != UNLABELLED
        true = self._label_numbers()[np.where(known, truth[LABEL], 0)]
        return np.asarray(~known | (self._labels_of(outputs) != true), np.float32)

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns `recall_at_1`: the share of labelled rows whose nearest neighbour has their label.

        The neighbour is of the gallery. Without one, it is the most similar other row of the data, and rows whose label
        is unique do not count.
        """
        known = labelled_rows(truth)
        if self.labels and known.any():
            return {"recall_at_1": float(1 - self.truth_loss(outputs, truth)[known].mean())}
        labels, rows = truth[LABEL][known], _unit(outputs[EMBEDDING][known])
        right = []
        for number, row in enumerate(rows):
            cosines = rows @ row
            cosines[number] = -np.inf
            if (labels == labels[number]).sum() > 1:
                right.append(labels[cosines.argmax()] == labels[number])
        if not right:
            raise ConfigError("The recall needs labelled rows, and two of a label without a gallery; there are none.")
        return {"recall_at_1": float(np.mean(right))}

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the label of the neighbour, null if none is near enough, and its similarity; or the embedding."""
        if not self.labels:
            return {EMBEDDING: nested(outputs[EMBEDDING][row])}
        neighbour = int(outputs[NEIGHBOUR][row])
        return {
            NEIGHBOUR: self.labels[neighbour] if neighbour >= 0 else None,
            SIMILARITY: round(float(outputs[SIMILARITY][row]), 4),
        }

    def title(self, outputs: Arrays, row: int) -> str:
        found = self.describe(outputs, row)
        return f"{found[NEIGHBOUR] or 'unknown'} {found[SIMILARITY]:.2f}" if self.labels else ""

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference of a number, relative to the length of the embedding."""
        wanted, found = expected[EMBEDDING].astype(np.float64), actual[EMBEDDING]
        length = np.maximum(np.linalg.norm(wanted, axis=1), _TINY)
        return float((np.abs(wanted - found).max(axis=1, initial=0) / length).max(initial=0))

    def _label_numbers(self) -> NDArray[np.int64]:
        """Returns the number of the different label of each row of the gallery."""
        return numbered(self.labels)

    def _labels_of(self, outputs: Arrays) -> NDArray[np.int64]:
        """Returns the number of the different label of each row's neighbour; -1 without one."""
        neighbour = outputs[NEIGHBOUR]
        return np.where(neighbour >= 0, self._label_numbers()[np.maximum(neighbour, 0)], -1)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the rows with length 1; a row of zeros stays one."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, _TINY), np.float32)
