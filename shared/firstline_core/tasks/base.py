"""The interface of tasks. Its implementations are pure, and hold the configuration of one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InferenceError
from firstline_core.types import DATATYPES, Arrays, Tensor, TensorSpec, all_finite

Scores = NDArray[np.float32]
"""One number a row, (n,)."""


class DeclaredOutputs(Protocol):
    """The declaration of one model's outputs."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Returns names, datatypes and shapes; -1 is the number of rows."""
        ...

    def fault(self, outputs: Arrays) -> str:
        """Returns what is wrong with the values of outputs of the declared shapes, as a noun; "" if nothing is."""
        ...


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


class LikeOutputs:
    """The declaration of a model whose bundle is gone: its outputs are like an earlier answer of the same task.

    Args:
        before: canonical outputs.
    """

    def __init__(self, before: Arrays) -> None:
        tensors = [Tensor(name, array) for name, array in before.items()]
        self.outputs = tuple(TensorSpec(tensor.name, tensor.datatype, (-1, *tensor.shape[1:])) for tensor in tensors)

    def fault(self, outputs: Arrays) -> str:
        bad = [name for name, array in outputs.items() if array.dtype.kind == "f" and not all_finite(array)]
        return f"NaN or infinity in '{bad[0]}'" if bad else ""


class Task(Protocol):
    """A task, with the configuration of one bundle.

    Attributes:
        kind: its name in manifests.
        score_kinds: names of the confidence scores that `score` computes.
        compares_evidence: whether `difference` uses the evidence too.
        graph_scores: whether a bundle's own score graph, which reads probabilities, can score the outputs.
        outputs: the canonical outputs that both tiers return.
        labels: of the classes, in their order; () if the task has none.
        feature_count: number of columns of `features`.
    """

    kind: ClassVar[str]
    score_kinds: ClassVar[tuple[str, ...]]
    compares_evidence: ClassVar[bool]
    graph_scores: ClassVar[bool]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def digest(self) -> str:
        """Returns the sha256 over the configuration that changes outputs, scores or losses; "" if none does."""
        ...

    @property
    def feature_count(self) -> int: ...

    def declared(self, *, rounded: bool, cut: bool) -> DeclaredOutputs:
        """Returns the declaration of one model's outputs.

        Args:
            rounded: whether the model's numbers may be rounded to eight bits.
            cut: whether some of the model's classes are left out, such as a background class.
        """

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the confidence of each row: higher means that the edge answer is more likely to be accepted.

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

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the inputs of learned scores, (n, feature_count) float32; for arguments and errors see `score`."""

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns an estimate of P(loss) of each row, (n,) in [0, 1], for scores that are not probabilities."""

    def groups(self, outputs: Arrays) -> Sequence[str]:
        """Returns, for each row, the class that a certificate by class refers to."""

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns the disagreement of each row, (n,) float32 in [0, 1]; an answer changed if it is above 0."""

    def describe(self, outputs: Arrays, row: int) -> dict[str, Any]:
        """Returns the answer to one row for people, as JSON values."""

    def difference(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference of two outputs of the same rows; infinite if their shapes differ.

        It is absolute for probabilities and scores, and otherwise relative to the size of the output.

        Args:
            expected: canonical outputs, and the evidence if it is known.
            actual: the same.
        """
