"""One variant of a bundle, ready to run on this device; and how long its runs take."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from firstline_core.bundle.loading import LoadedModel, Scorer
from firstline_core.profile.profile import Distribution, Point
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.confidence import Logistic, Probabilities
from firstline_core.runtime.base import runs_on_loop
from firstline_core.types import InferRequest, Tensor
from firstline_edge.models.workers import Workers
from firstline_edge.requests.model_output import ModelOutput

_PACE_STEP, _PACE_LIMIT = 1.05, 1e6
_SURE = 0.95
_LATE_STEP = _PACE_STEP ** ((1 - _SURE) / _SURE)


@dataclass(slots=True)
class Pace:
    """The recent run times of a model relative to its shortest run: follows their median and 95th percentile.

    Both begin as a profile has them, where there is one, and each run moves them: after some dozens they are the
    runs' own.

    Attributes:
        factor: the median.
        late: the 95th percentile.
    """

    factor: float = 1.0
    late: float = 1.0

    @staticmethod
    def of(profiled: Distribution) -> Pace:
        """As it was measured before: the shortest run that was seen is the measure."""
        quickest_ms = profiled.quantiles_ms[0]
        return Pace(profiled.p50_ms / quickest_ms, profiled.quantile_ms(_SURE) / quickest_ms)

    @property
    def sure(self) -> float:
        """Nineteen runs in twenty take no longer."""
        return max(self.factor, self.late)

    def ran(self, took_s: float, measured_s: float) -> None:
        """A run ended: later or sooner than this pace has it?

        Not than the pace had it when the run was asked for: of five hundred that wait, all asked for at the first
        one's pace, each would be late for the same reason, and the pace no longer one of anything.
        """
        if took_s > self.factor * measured_s:
            self.factor = min(_PACE_LIMIT, self.factor * _PACE_STEP)
        elif self.factor > 1.0:
            self.factor = max(1.0, self.factor / _PACE_STEP)
        # Steps up and down are in balance where one in twenty is later (Robbins and Monro, 1951).
        if took_s > self.late * measured_s:
            self.late = min(_PACE_LIMIT, self.late * _PACE_STEP)
        elif self.late > 1.0:
            self.late = max(1.0, self.late / _LATE_STEP)


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """An edge variant, ready to run.

    Args:
        loaded: model and processing.
        score: the bundle's confidence function.
        digest: of all that computes a row's evidence: model, processing and score.
        row_ms: the quickest that was measured, for one row of `sample_bytes`, processing included.
        sample_bytes: size of the measured row.
        workers: for runs that would hold up the event loop.
        certificate: the variant's, if it is valid for this bundle.
        uncertified: why there is none, as part of a sentence; "" if there is one.
        value: the bundle's learned value of an escalation; None if it has none.
        bounded_score: whether the score lies in [0, 1]; otherwise it is not a probability.
        memory_bytes: that loading and measuring added to the process; 0 if the system does not report it.
        pace: of its runs since.
        profiled: this device's earlier measurement, which provides its times; None if it was measured at load.

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
    memory_bytes: int = 0
    pace: Pace = field(default_factory=Pace, compare=False)
    profiled: Point | None = field(default=None, compare=False)
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.digest.encode())

    def expected_ms(self, request: InferRequest, rows: int) -> float:
        """Returns the expected time of this many rows of the request; infinite if nothing was measured."""
        return self.pace.factor * self.measured_ms(request, rows)

    def sure_ms(self, request: InferRequest, rows: int) -> float:
        """Returns the time that 95 % of such runs do not exceed, for deadlines."""
        return self.pace.sure * self.measured_ms(request, rows)

    def measured_ms(self, request: InferRequest, rows: int) -> float:
        """Returns the shortest time of this many rows. Decoding grows with the bytes."""
        return rows * self.row_measured_ms(request.size_bytes / request.rows)

    def row_measured_ms(self, size_bytes: float) -> float:
        """Returns the shortest time of one row of this many bytes."""
        share = size_bytes / (self.sample_bytes or 1)
        return self.row_ms * (share if share > 1 else 1.0)

    def quick(self, request: InferRequest) -> bool:
        """Returns whether the request runs on the event loop."""
        return runs_on_loop(self.expected_ms(request, request.rows) / 1000)

    def run(self, tensor: Tensor, measured_s: float = math.inf) -> list[ModelOutput]:
        """Returns the model's output for each row.

        Args:
            tensor: the rows.
            measured_s: see `measured_ms`; the pace follows how much longer it took.

        Raises:
            InvalidTensorError: a row that is not what the bundle takes; the message names it.
            InferenceError: the runtime failed.
        """
        started_s = time.perf_counter()
        probabilities, logits = self.loaded.predict_with_logits(tensor)
        scores = self.score(probabilities, logits)
        self.pace.ran(time.perf_counter() - started_s, measured_s)
        return [
            ModelOutput(row, score, value)
            for row, score, value in zip(probabilities, scores.tolist(), self._values(probabilities), strict=True)
        ]

    def _values(self, probabilities: Probabilities) -> Sequence[float | None]:
        """Returns the learned value of an escalation of each row; None if the score determines it."""
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
        """Runs off the event loop; not at all if the deadline passes first. See `Workers.run`.

        Raises:
            QueueFullError: too many runs wait already.
            DeadlineExceededError: its turn came too late.
        """
        return await self.workers.run(partial(self.run, measured_s=measured_s), tensor, deadline_s, measured_s)
