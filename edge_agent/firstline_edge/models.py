"""The models that this device holds, and what they say of rows. `models_load.py` opens them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from firstline_core.bundle.certificate import Certificate
from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.pipeline import LoadedModel, Probabilities
from firstline_core.bundle.scorer import RowScorer, Scorer
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InvalidTensorError
from firstline_core.protocol.tensors import shown
from firstline_core.routing.learned import Logistic
from firstline_core.runtime.select import PLATFORMS
from firstline_core.types import PROBABILITIES, InferRequest, ModelMetadata, Tensor
from firstline_edge.cache import ModelOutput
from firstline_edge.workers import Workers

# Shorter work runs on the event loop: handing it to a thread and back costs more than it frees.
_INLINE_MS = 1.0
_PACE_STEP, _PACE_LIMIT = 1.05, 1e6
_NONE: Mapping[str, HeldModel] = MappingProxyType({})


@dataclass(slots=True)
class Pace:
    """How many times longer than measured at load a model's runs take of late; follows their median."""

    factor: float = 1.0

    def ran(self, took_s: float, measured_s: float) -> None:
        """A run ended: later or sooner than this pace has it?

        Not than the pace had it when the run was asked for: of five hundred that wait, all asked for at the first
        one's pace, each would be late for the same reason, and the pace no longer one of anything.
        """
        if took_s > self.factor * measured_s:
            self.factor = min(_PACE_LIMIT, self.factor * _PACE_STEP)
        elif self.factor > 1.0:
            self.factor = max(1.0, self.factor / _PACE_STEP)


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """An edge variant, ready to run.

    Args:
        loaded: model and processing.
        score: the bundle's confidence function.
        digest: of all that computes a row's evidence: model, processing and score.
        row_ms: measured, for one row of `sample_bytes`, processing included.
        sample_bytes: size of the measured row.
        workers: for runs that would hold up the event loop.
        certificate: the variant's, where it is valid for this bundle.
        uncertified: why there is none, as part of a sentence; "" where there is one.
        value: the bundle's learned value of asking the full model; None where it has none.
        bounded_score: whether the score lies in [0, 1]; where it does not, it says nothing of a probability.
        row_score: as `score`, quicker for one row; None where nothing is.
        pace: of its runs since.

    Attributes:
        key: how its results' keys end, see `keys.result_key`.
    """

    loaded: LoadedModel
    score: Scorer
    digest: str
    row_ms: float
    sample_bytes: int
    workers: Workers
    certificate: Certificate | None = None
    uncertified: str = "its bundle carries no certificate for it"
    value: Logistic | None = None
    bounded_score: bool = True
    row_score: RowScorer | None = None
    pace: Pace = field(default_factory=Pace, compare=False)
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.digest.encode())

    def expected_ms(self, request: InferRequest, rows: int) -> float:
        """What so many of the request's rows will take at today's pace; infinite where nothing was measured."""
        return self.pace.factor * self.measured_ms(request, rows)

    def measured_ms(self, request: InferRequest, rows: int) -> float:
        """What they would take as at load. Decoding grows with the bytes."""
        return rows * self.row_measured_ms(request.size_bytes / request.rows)

    def row_measured_ms(self, size_bytes: float) -> float:
        """The same of one row of so many bytes."""
        share = size_bytes / (self.sample_bytes or 1)
        return self.row_ms * (share if share > 1 else 1.0)

    def quick(self, request: InferRequest) -> bool:
        """Whether the request takes less than handing it to a thread is worth."""
        return is_quick(self.expected_ms(request, request.rows))

    def run(self, tensor: Tensor, measured_s: float = math.inf) -> list[ModelOutput]:
        """What the model says of each row.

        Args:
            tensor: the rows.
            measured_s: see `measured_ms`; the pace follows how much longer it took.

        Raises:
            InvalidTensorError: a row that is not what the bundle takes; the message names it.
            InferenceError: the runtime failed.
        """
        if len(tensor.array) == 1:
            return [self.run_row(tensor, measured_s)]
        started_s = time.perf_counter()
        probabilities, logits = self.loaded.predict_with_logits(tensor)
        scores = self.score(probabilities, logits)
        self.pace.ran(time.perf_counter() - started_s, measured_s)
        return [
            ModelOutput(row, score, value)
            for row, score, value in zip(probabilities, scores.tolist(), self._values(probabilities), strict=True)
        ]

    def run_row(self, tensor: Tensor, measured_s: float = math.inf) -> ModelOutput:
        """As `run`, for a tensor of one row."""
        started_s = time.perf_counter()
        if self.row_score is not None:
            probabilities = self.loaded.predict(tensor)
            score = self.row_score(probabilities[0])
        else:
            probabilities, logits = self.loaded.predict_with_logits(tensor)
            score = float(self.score(probabilities, logits)[0])
        self.pace.ran(time.perf_counter() - started_s, measured_s)
        valueless = self.value is None and self.bounded_score
        return ModelOutput(probabilities[0], score, None if valueless else self._values(probabilities)[0])

    def _values(self, probabilities: Probabilities) -> Sequence[float | None]:
        """What asking the full model is worth, as learned; else None, for the score tells it, if that can."""
        if self.value is not None:
            learned: list[float] = self.value.losses(probabilities).tolist()
            return learned
        if self.bounded_score:
            return [None] * len(probabilities)
        supposed: list[float] = (1 - probabilities.max(axis=1)).tolist()
        return supposed

    async def run_in_thread(
        self, tensor: Tensor, deadline_s: float = math.inf, measured_s: float = 0.0
    ) -> list[ModelOutput]:
        """As `run`, off the event loop; not at all where the deadline comes before its turn. See `Workers.run`.

        Raises:
            QueueFullError: too many runs wait already.
            DeadlineExceededError: its turn came too late.
        """
        return await self.workers.run(partial(self.run, measured_s=measured_s), tensor, deadline_s, measured_s)


def is_quick(expected_ms: float) -> bool:
    """Whether a run takes less than handing it to a thread is worth."""
    return expected_ms < _INLINE_MS


@dataclass(frozen=True, slots=True, eq=False)
class HeldModel:
    """A bundle on this device.

    Args:
        bundle: opened and checked.
        edge: None where no variant runs here; `problem` says why.
        problem: one sentence, or "".

    Attributes:
        manifest, version: the bundle's, at hand for every request.
    """

    bundle: Bundle
    edge: EdgeModel | None
    problem: str = ""
    manifest: Manifest = field(init=False)
    version: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "manifest", self.bundle.manifest)
        object.__setattr__(self, "version", str(self.manifest.version))

    def group(self, output: ModelOutput | None) -> str | None:
        """The predicted class, where the certificate promises by class; None where all answers are held alike."""
        edge = self.edge
        if edge is None or output is None or (certificate := edge.certificate) is None or not certificate.by:
            return None
        return self.manifest.labels[int(output.probabilities.argmax())]

    def tensor(self, request: InferRequest) -> Tensor:
        """The bundle's one input.

        Raises:
            InvalidTensorError: another input, or an output that there is not.
        """
        wanted = self.manifest.input.name
        if len(request.inputs) != 1 or request.inputs[0].name != wanted:
            given = ", ".join(shown(tensor.name) for tensor in request.inputs[:5])
            raise InvalidTensorError(f"Model '{request.model}' takes one input, '{wanted}'; the request has: {given}.")
        for output in request.outputs:
            if output.name != PROBABILITIES:
                raise InvalidTensorError(
                    f"Model '{request.model}' has no output {shown(output.name)}; it has: {PROBABILITIES}."
                )
        return request.inputs[0]

    @property
    def metadata(self) -> ModelMetadata:
        return ModelMetadata(
            name=self.manifest.name,
            versions=(self.version,),
            platform=PLATFORMS[self.edge.loaded.model.runtime] if self.edge else "firstline",
            inputs=(self.manifest.input_spec,),
            outputs=(self.manifest.output_spec,),
            labels=self.manifest.labels,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """A folder that should have been a bundle."""

    path: Path
    message: str


class Models:
    """All bundles of this device, by name and version; the newest version is the current one.

    Attributes:
        problems: folders that should have been bundles.
        away: versions that are known and not held, each with the reason.
    """

    def __init__(self, held: Iterable[HeldModel], problems: Iterable[Problem] = ()) -> None:
        self._held: dict[str, dict[str, HeldModel]] = {}
        self._current: dict[str, HeldModel] = {}
        for model in sorted(held, key=lambda model: model.manifest.version):
            self._held.setdefault(model.manifest.name, {})[model.version] = model
            self._current[model.manifest.name] = model
        self.problems = tuple(problems)
        self.away: dict[tuple[str, int], str] = {}

    def put(self, model: HeldModel) -> HeldModel | None:
        """Holds a model from now on; what was held as this version."""
        name, versions = model.manifest.name, dict(self._held.get(model.manifest.name, {}))
        before = versions.get(model.version)
        versions[model.version] = model
        self._hold(name, dict(sorted(versions.items(), key=lambda each: int(each[0]))))
        self.away.pop((name, model.manifest.version), None)
        return before

    def take(self, model: HeldModel, why: str) -> None:
        """Holds a model no more; requests under way keep it until they are answered."""
        name = model.manifest.name
        self._hold(name, {version: held for version, held in self._held[name].items() if held is not model})
        self.away[name, model.manifest.version] = why

    def find(self, name: str, version: str = "") -> HeldModel | None:
        """The model, or None where this device does not hold it in that version ("" is the current one)."""
        return self._held.get(name, _NONE).get(version) if version else self._current.get(name)

    def _hold(self, name: str, versions: dict[str, HeldModel]) -> None:
        if versions:
            self._held[name], self._current[name] = versions, versions[next(reversed(versions))]
        else:
            del self._held[name], self._current[name]

    @property
    def all(self) -> tuple[HeldModel, ...]:
        return tuple(model for versions in self._held.values() for model in versions.values())

    def close(self) -> None:
        """Frees the runtimes; calling it twice is harmless."""
        for model in self.all:
            if model.edge is not None:
                model.edge.loaded.close()
