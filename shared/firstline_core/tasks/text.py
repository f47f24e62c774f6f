"""Text that a model reads from an image or hears in a recording: recognition, transcription. Pure.

The output is `text`, UTF-8 BYTES [n]. The probabilities of its symbols or tokens are evidence: their mean and the
lowest one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError, missing_package
from firstline_core.processing.ctc import LOWEST, MEAN, Decode, compile_ctc
from firstline_core.processing.steps import Confidence, Ctc, PostStep, Softmax
from firstline_core.tasks.base import ConfiguredTask, ModelOutputs, Postprocess, Prediction, Scores
from firstline_core.tasks.view import WHOLE, View
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, Arrays, TensorSpec, object_array, row_count

TEXT = "text"
"""The output, BYTES (n,)."""

_LONGEST_BYTES = 1 << 20
_LEAST = 1e-7
_Keyword = Annotated[str, Meta(min_length=1, max_length=256)]


class Text(ConfiguredTask, frozen=True, tag="text"):
    """A model that answers with text.

    The edge model's text agrees with the full model's if their edit distance, as a share of the longer text, is at most
    `tolerance`.

    Attributes:
        tolerance: largest distance that is not a loss; 0 for equal texts.
        loss_kind: "outside" counts rows with a distance above the tolerance. "distance" is the distance itself, 0 if it
            is within the tolerance.
        ignore_case: whether capital and small letters are the same.
        ignore_space: whether white space is the same whatever its length, and none at both ends.
        keywords: words or phrases, each of which has the events "missed KEYWORD" and "invented KEYWORD".
    """

    score_kinds: ClassVar[tuple[str, ...]] = (MEAN, LOWEST)
    quality: ClassVar[str] = "cer"

    tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    loss_kind: Literal["outside", "distance"] = "outside"
    ignore_case: bool = False
    ignore_space: bool = True
    keywords: Annotated[tuple[_Keyword, ...], Meta(max_length=256)] = ()

    def __post_init__(self) -> None:
        if len({keyword.casefold() for keyword in self.keywords}) < len(self.keywords):
            raise ValueError("the keywords differ, also without regard to capital letters")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(TEXT, "BYTES", (-1,)),)

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(MEAN, "FP32", (-1,)), TensorSpec(LOWEST, "FP32", (-1,)))

    @property
    def event_classes(self) -> tuple[str, ...]:
        return self.keywords

    def fault(self, outputs: Arrays) -> str:
        for row, text in enumerate(outputs[TEXT]):
            if not isinstance(text, bytes):
                return f"row {row} of type {type(text).__name__} in place of bytes"
            if len(text) > _LONGEST_BYTES:
                return f"row {row} with {len(text)} bytes of text; at most {_LONGEST_BYTES} are accepted"
            try:
                text.decode()
            except UnicodeDecodeError:
                return f"row {row} that is not UTF-8"
        return ""

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the steps: `ctc`, before it any `softmax`; or none for a model that gives strings.

        Raises:
            ModelLoadError: see `Task.postprocess`; or the package for edit distances is not installed.
        """
        _distances()
        name = model.port(model.output)
        steps = [step for step in model.steps if not isinstance(step, Confidence)]
        sources = [model.port(step.output) for step in model.steps if isinstance(step, Confidence)]
        decode: Decode = _strings
        match steps:
            case []:
                pass
            case [Ctc() as ctc] | [Softmax(), Ctc() as ctc]:
                decode = compile_ctc(ctc, model.read_file(ctc.artefact), logits=len(steps) == 2)
            case _:
                raise ModelLoadError(
                    "Postprocessing of text: ctc, with any softmax before it, or none; and confidence."
                )
        if len(sources) > 1 or (sources and steps):
            raise ModelLoadError("Postprocessing of text: confidence once, of a model whose output is text.")

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            texts, evidence = decode(raw[name], row_count(rows), model.what)
            if sources:
                evidence = _token_probabilities(raw[sources[0]], row_count(rows), model.what)
            return Prediction({TEXT: texts}, evidence)

        return Postprocess((name, *sources), run)

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the mean or the lowest probability of each row's tokens.

        Args:
            kind: one of `score_kinds`.
            outputs: canonical outputs.
            evidence: has both.
            temperature: the power of a probability is 1 / temperature.

        Raises:
            InvalidTensorError: the model gives no probabilities.
        """
        found = evidence.get(kind)
        if found is None:
            raise InvalidTensorError(f"The score '{kind}' needs the probabilities of tokens; this model gives none.")
        return np.asarray(np.maximum(found, 0) ** (1 / temperature), np.float32)

    def needs_event(self, steps: Sequence[PostStep]) -> bool:
        return bool(self.keywords)

    def unscored(self, kind: str, steps: Sequence[PostStep]) -> str:
        shown = any(isinstance(step, Ctc | Confidence) for step in steps)
        return "" if shown or kind == "learned" else "needs the step ctc, or confidence, in its postprocessing"

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the logarithms of mean and lowest probability (0 without them) and of the length, and emptiness."""
        texts = outputs[TEXT]
        lengths = np.array([len(text) for text in texts], np.float64)
        ones = np.ones(len(texts), np.float32)
        columns = [np.log(np.maximum(evidence.get(name, ones), _LEAST)) for name in (MEAN, LOWEST)]
        return np.column_stack([*columns, np.log1p(lengths), lengths == 0]).astype(np.float32)

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns 1 - the lowest probability; a half for models without probabilities."""
        if LOWEST not in evidence:
            return super().supposed_losses(outputs, evidence)
        return np.asarray(1 - np.clip(evidence[LOWEST], 0, 1), np.float32)

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        texts = [self._normal(text) for text in outputs[TEXT]]
        patterns = [_pattern(self._normal(keyword.encode())) for keyword in self.keywords]
        counts = [[len(pattern.findall(text)) for pattern in patterns] for text in texts]
        return np.array(counts, np.int64).reshape(len(texts), len(patterns))

    def distances(self, some: Array, others: Array) -> NDArray[np.float64]:
        """Returns the edit distance of each pair of texts (Levenshtein) as a share of the longer one, (n,)."""
        distance = _distances()
        pairs = zip(map(self._normal, some), map(self._normal, others), strict=True)
        return np.array([distance(one, other) / max(len(one), len(other), 1) for one, other in pairs], np.float64)

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        distances = self.distances(edge[TEXT], full[TEXT])
        outside = distances > self.tolerance
        return np.asarray(np.where(outside, 1 if self.loss_kind == "outside" else distances, 0), np.float32)

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns the character and the word error rate, and the share of rows with another text.

        A rate is the sum of the edit distances by the sum of the lengths of the right texts.
        """
        distance = _distances()
        said, right = ([self._normal(text) for text in arrays[TEXT]] for arrays in (outputs, truth))
        characters = sum(distance(*pair) for pair in zip(said, right, strict=True))
        words = sum(distance(one.split(), other.split()) for one, other in zip(said, right, strict=True))
        return {
            "cer": characters / max(sum(map(len, right)), 1),
            "wer": words / max(sum(len(text.split()) for text in right), 1),
            "different": sum(one != other for one, other in zip(said, right, strict=True)) / len(said),
        }

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the text, and the keywords in it if the task names keywords."""
        found: dict[str, Any] = {"text": outputs[TEXT][row].decode("utf-8", "replace")}
        if self.keywords:
            counts = self.occurrences({TEXT: outputs[TEXT][row : row + 1]})[0]
            found["keywords"] = [word for word, count in zip(self.keywords, counts, strict=True) if count]
        return found

    def title(self, outputs: Arrays, row: int) -> str:
        return str(outputs[TEXT][row].decode("utf-8", "replace"))

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest distance of two texts, as a share of the longer one."""
        return float(self.distances(expected[TEXT], actual[TEXT]).max(initial=0))

    def _normal(self, text: bytes) -> str:
        decoded = text.decode("utf-8", "replace")
        if self.ignore_space:
            decoded = " ".join(decoded.split())
        return decoded.casefold() if self.ignore_case else decoded


@lru_cache(maxsize=1024)
def _pattern(keyword: str) -> re.Pattern[str]:
    """Returns what finds whole words."""
    return re.compile(rf"(?<!\w){re.escape(keyword)}(?!\w)")


def _distances() -> Callable[[Sequence[Any], Sequence[Any]], int]:
    """Returns the edit distance of two sequences.

    Raises:
        ModelLoadError: the package is not installed.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise missing_package(error, "A model that answers with text", "text", ModelLoadError) from error
    return Levenshtein.distance


def _strings(output: Array, rows: int, what: str) -> tuple[Array, Arrays]:
    """Returns the strings of a model that gives one for each row."""
    if not output.dtype.hasobject or output.size != rows:
        raise InferenceError(
            f"{what} gave {output.dtype} {list(output.shape)} for {counted(rows, 'row')} in place of a string each; "
            "add ctc to its postprocessing, or name the output of the text."
        )
    return object_array([text.encode() if isinstance(text, str) else text for text in output.reshape(-1)]), {}


def _token_probabilities(output: Array, rows: int, what: str) -> Arrays:
    if output.dtype.kind != "f" or output.shape[:1] != (rows,):
        raise InferenceError(
            f"{what} gave {output.dtype} {list(output.shape)} as probabilities of {counted(rows, 'row')}."
        )
    values = output.reshape(rows, -1).astype(np.float64)
    if not ((values >= 0) & (values <= 1 + _LEAST)).all():
        raise InferenceError(
            f"{what} gave NaN, or probabilities outside of 0 to 1; take the exponential of logarithms."
        )
    valid = values > 0
    counts = np.maximum(valid.sum(axis=1), 1)
    logarithms = np.where(valid, np.log(np.maximum(values, _LEAST)), 0)
    mean = np.exp(logarithms.sum(axis=1) / counts)
    return {MEAN: mean.astype(np.float32), LOWEST: np.exp(logarithms.min(axis=1, initial=0)).astype(np.float32)}
