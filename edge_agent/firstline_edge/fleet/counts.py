"""Counts each model's answers in sums of fixed size; a `recorder.Listener`, so it never sees a local_only request."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from msgspec import Struct

from firstline_core.errors import FirstlineError, ModelMismatchError, RequestError, UnknownModelError
from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts, latency_bin
from firstline_core.types import Answer, InferRequest, InferResponse, RowAnswer, Status, Tier
from firstline_edge.models.held import HeldModel, Models
from firstline_edge.telemetry.recorder import AuditFinding

_LIMIT = 64
_Key = tuple[str, str]


class _Sums(Struct, eq=False):
    rows: int = 0
    kept: int = 0
    escalated: int = 0
    errors: int = 0
    latency: list[int] = []
    latency_sum_ms: float = 0.0
    scores: list[int] = []
    audited: int = 0
    disagreed: int = 0


class FleetCounts:
    """Of one process, from its start on.

    Args:
        models: those held.
        alarmed: returns whether a model's contract has an alarm.
    """

    def __init__(self, models: Models, alarmed: Callable[[HeldModel], bool]) -> None:
        self._models = models
        self._alarmed = alarmed
        self._sums: dict[_Key, _Sums] = {}

    def answered(self, request: InferRequest, response: InferResponse, seconds: float) -> None:
        """See `recorder.Listener`."""
        held = self._models.find(response.model, response.version)
        answer = response.answer
        if held is None or answer is None:
            return
        sums = self._of(held.manifest.name, held.version)
        self._took(sums, seconds)
        edges = _edges(held)
        for row in answer.rows or (answer,):
            sums.rows += 1
            if _is_kept(row, held.manifest.full_digest):
                sums.kept += 1
            else:
                sums.escalated += 1
            if edges is not None and row.confidence is not None and len(sums.scores) == len(edges) + 1:
                sums.scores[bisect_right(edges, row.confidence)] += 1

    def refused(self, request: InferRequest, version: str, error: FirstlineError, seconds: float) -> None:
        """See `recorder.Listener`; an error that the caller made says nothing about a model and is not counted."""
        if _is_callers(error):
            return
        sums = self._of(request.model, version)
        self._took(sums, seconds)
        rows = next((tensor.array.shape[0] for tensor in request.inputs if tensor.array.shape), 1)
        sums.rows += rows
        sums.errors += rows

    def audited(self, finding: AuditFinding) -> None:
        """See `recorder.Listener`."""
        if finding.outcome != "lost":
            sums = self._of(finding.model, finding.version)
            sums.audited += 1
            sums.disagreed += finding.outcome == "disagreed"

    def answered_of(self, held: HeldModel) -> tuple[int, int]:
        """Rows that a version was asked about so far, and those of them that got no answer."""
        sums = self._of(held.manifest.name, held.version)
        return sums.rows, sums.errors

    def counts(self) -> tuple[ModelCounts, ...]:
        """Of every version that was asked anything; those that are held first, where there are too many."""
        held = {(model.manifest.name, model.version): model for model in self._models.all}
        keys = sorted(self._sums, key=lambda key: key not in held)
        return tuple(self._told(key, self._sums[key], held.get(key)) for key in keys[:_LIMIT])

    def _told(self, key: _Key, sums: _Sums, held: HeldModel | None) -> ModelCounts:
        return ModelCounts(
            key[0],
            int(key[1]),
            rows=sums.rows,
            kept=sums.kept,
            escalated=sums.escalated,
            errors=sums.errors,
            latency=tuple(sums.latency),
            latency_sum_ms=sums.latency_sum_ms,
            scores=tuple(sums.scores),
            audited=sums.audited,
            disagreed=sums.disagreed,
            alarm=held is not None and self._alarmed(held),
        )

    def _of(self, name: str, version: str) -> _Sums:
        key = name, version
        found = self._sums.get(key)
        if found is None:
            held = self._models.find(name, version)
            edges = _edges(held) if held is not None else None
            found = self._sums[key] = _Sums(
                latency=[0] * (len(LATENCY_BOUNDS_MS) + 1),
                scores=[0] * (len(edges) + 1) if edges is not None and len(edges) < _LIMIT else [],
            )
        return found

    @staticmethod
    def _took(sums: _Sums, seconds: float) -> None:
        ms = max(0.0, seconds * 1000)
        sums.latency[latency_bin(ms)] += 1
        sums.latency_sum_ms += ms


def _is_callers(error: FirstlineError) -> bool:
    """Returns whether the caller made the error; the tiers may also disagree about the model."""
    return isinstance(error, RequestError) and not isinstance(error, ModelMismatchError | UnknownModelError)


def _edges(held: HeldModel) -> tuple[float, ...] | None:
    """Where the scores' bins end; None without, and where several variants answer, for each has its own."""
    if held.variants is not None:
        return None
    certificate = held.edge.certificate if held.edge is not None else None
    histogram = certificate.histogram if certificate is not None else None
    return tuple(histogram.edges) if histogram is not None else None


def _is_kept(row: RowAnswer | Answer, full_digest: str) -> bool:
    """Whether what this device's own model said is the last word: its cache knows the full model's answers too."""
    if row.status is not Status.FINAL or row.tier is Tier.CLOUD:
        return False
    return row.tier is Tier.EDGE or row.model_digest != full_digest
