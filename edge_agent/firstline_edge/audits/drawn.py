"""An answer that was drawn for an audit: what is sent of it, and how it ended. Pure but for a fresh id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from firstline_core.ids import new_request_id
from firstline_core.types import AuditNote, InferRequest, Tensor
from firstline_edge.audits.watched import Watched
from firstline_edge.requests.context import ModelOutput, Row
from firstline_edge.requests.escalation import escalation_of


@dataclass(frozen=True, slots=True)
class Audit:
    """An answer that was drawn.

    Args:
        request_id: of the request that it answers.
        position: of the row in that request.
        sent: the request to the gateway, under its own id.
        content: sha256 of the row.
        score: the edge model's.
        predicted: the class that it gave.
        propensity: the probability with which it was drawn.
        threshold: in use at that time.
        promised: whether that speaks of it.
    """

    watched: Watched
    request_id: str
    position: int
    sent: InferRequest
    content: bytes
    score: float
    predicted: int
    propensity: float
    threshold: float
    promised: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """How an audit ended.

    Args:
        outcome: agreed, disagreed or lost.
        cause: why it was lost; "" where it was not.
    """

    audit: Audit
    outcome: str
    cause: str = ""

    @property
    def model(self) -> str:
        """The name of the audited model."""
        return self.audit.sent.model

    @property
    def version(self) -> str:
        """The version of the audited model."""
        return self.audit.sent.version

    def log_record(self) -> dict[str, object]:
        """Returns the fields of the decision log; JSON-able."""
        audit = self.audit
        record: dict[str, object] = {
            "request_id": audit.request_id,
            "audit_id": audit.sent.request_id,
            "model": audit.sent.model,
            "version": audit.sent.version,
            "row": audit.position,
            "score": audit.score,
            "propensity": audit.propensity,
            "outcome": self.outcome,
        }
        return record | {"cause": self.cause} if self.cause else record


def audit_of(
    watched: Watched, request: InferRequest, row: Row, edge: ModelOutput, share: float, *, promised: bool
) -> Audit:
    """Returns the audit of a drawn row.

    Args:
        watched: the certificate.
        request: of which it is a row.
        row: drawn.
        edge: the edge model's output.
        share: the probability with which it was drawn.
        promised: whether the threshold in use speaks of it.
    """
    certificate, predicted = watched.certificate, int(np.argmax(edge.probabilities))
    # Only the certificate's threshold was promised anything: a stricter part may be riskier than the whole, and would
    # raise a false alarm for the whole fleet. A tightened one is this device's own affair.
    note = AuditNote(
        predicted=predicted,
        propensity=share,
        floor=share,
        epsilon=watched.epsilon,
        threshold=certificate.threshold,
        edge_digest=certificate.edge_digest,
    )
    escalation = escalation_of(request.take([row.position]), watched.model.version, certificate.full_digest)
    noted = promised and watched.certificate_state.threshold is None
    return Audit(
        watched=watched,
        request_id=request.request_id,
        position=row.position,
        # Nobody waits for it: it is no part of what its request's caller follows.
        sent=replace(escalation, request_id=new_request_id(), audit=note if noted else None, trace=None),
        content=row.content,
        score=row.score,
        predicted=predicted,
        propensity=share,
        threshold=watched.threshold,
        promised=promised,
    )


def row_bytes(tensor: Tensor, position: int) -> int:
    """Size of one row's payload."""
    array = tensor.array
    if not array.dtype.hasobject:
        return array.nbytes // len(array)
    size_bytes: int = sum(map(len, array[position : position + 1].flat))
    return size_bytes
