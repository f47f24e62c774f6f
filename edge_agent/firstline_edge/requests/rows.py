"""The rows of one request: each is decided separately; in order, they make the answer. Pure.

`merge` puts the rows of a correction into a provisional answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from firstline_core.errors import ProtocolError
from firstline_core.routing.policy import value_of
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    Attempt,
    InferRequest,
    InferResponse,
    Reason,
    RowAnswer,
    Status,
    Tensor,
    Tier,
)
from firstline_edge.requests.escalation import checked
from firstline_edge.requests.model_output import ModelOutput

# From the caller outwards: a batch names the farthest that answered one of its rows.
_DISTANCE = {Tier.CACHE: 0, Tier.EDGE: 1, Tier.CLOUD: 2}


class Row(Struct, eq=False):
    """The state of one row while its request is in progress.

    Args:
        position: in the request.
        content: sha256 of what it says, from `keys.content_digests`.
        edge: the edge model's output, once it ran or was found in the cache.
        edge_tier: CACHE if it was found there, EDGE if the model ran.
        reason: the policy's, for the tier that it chose.
        output: the output for the caller.
        answer: which tier gave it, and why.
    """

    position: int
    content: bytes
    edge: ModelOutput | None = None
    edge_tier: Tier = Tier.EDGE
    reason: Reason = Reason.UNCERTAIN
    output: ModelOutput | None = None
    answer: RowAnswer | None = None

    @property
    def confidence(self) -> float | None:
        return self.edge.score if self.edge is not None else None

    @property
    def score(self) -> float:
        """The confidence for the policy; NaN if there is none."""
        return math.nan if self.confidence is None else self.confidence

    @property
    def value(self) -> float:
        """P(edge wrong and full right): the value of an escalation. 1 if the edge model has not run."""
        edge = self.edge
        if edge is None:
            return 1.0
        return value_of(edge.value, math.nan if edge.score is None else edge.score)

    def accept_edge(
        self, reason: Reason, digest: str, status: Status = Status.FINAL, *, certified: bool = False
    ) -> None:
        """Answers the row with the edge model's output."""
        self.output = self.edge
        self.answer = RowAnswer(self.edge_tier, reason, status, certified, self.confidence, digest)

    def accept_full(self, output: ModelOutput, tier: Tier, reason: Reason, digest: str) -> None:
        """Answers the row with the full model's output, which is certified if its digest is known."""
        self.output = output
        self.answer = RowAnswer(tier, reason, Status.FINAL, bool(digest), self.confidence, digest)


def respond(
    request: InferRequest, version: str, rows: Sequence[Row], attempts: Sequence[Attempt], *, durable: bool
) -> InferResponse:
    """Returns the answer that the rows make together; each row has been answered."""
    said = [row.answer for row in rows if row.answer is not None]
    outputs = [row.output.probabilities for row in rows if row.output is not None]
    # Copied in any case: the cache holds them too, and the caller may do with them as they like.
    together = outputs[0][None].copy() if len(outputs) == 1 else np.stack(outputs)
    return InferResponse(
        model=request.model,
        version=version,
        outputs=(Tensor(PROBABILITIES, together),),
        id=request.id,
        answer=summarise(request.request_id, said, attempts, durable=durable),
    )


def summarise(request_id: str, said: Sequence[RowAnswer], attempts: Sequence[Attempt], *, durable: bool) -> Answer:
    """Returns the description of an answer of several rows.

    The reason of several rows is that of a provisional one where there is one, for it is what the caller must know;
    otherwise that of the farthest tier that answered.
    """
    if len(said) == 1:
        (only,) = said
        return Answer(
            request_id,
            only.status,
            only.certified,
            durable,
            only.tier,
            only.reason,
            only.confidence,
            only.model_digest,
            tuple(attempts),
        )
    farthest = max(said, key=lambda row: _DISTANCE[row.tier])
    telling = next((row for row in said if row.status is not Status.FINAL), farthest)
    scores = [row.confidence for row in said if row.confidence is not None]
    return Answer(
        request_id=request_id,
        status=telling.status,
        certified=all(row.certified for row in said),
        durable=durable,
        tier=farthest.tier,
        reason=telling.reason,
        confidence=min(scores) if scores else None,
        model_digest=farthest.model_digest,
        attempts=tuple(attempts),
        rows=tuple(said),
    )


def merge(
    provisional: InferResponse, rows: tuple[int, ...], correction: InferResponse, digest: str = ""
) -> InferResponse:
    """Puts the full model's rows into a provisional answer, which makes it final.

    The answer is `changed` where a corrected row's likeliest class is another than before. A corrected row's reason is
    `uncertain`: why the full model answered. The decision log has the provisional answer with its original reason.

    Args:
        provisional: all rows, as they were first answered.
        rows: positions, in the order of the correction's rows.
        correction: the gateway's answer.
        digest: of the full model that was asked for, "" where none was named.

    Raises:
        FirstlineError: the correction is refused, see `escalation.checked`.
        ProtocolError: the provisional answer does not say how it came about.
    """
    first = provisional.answer
    if first is None:
        raise ProtocolError("The provisional answer does not say how it came about; it cannot be corrected.")
    probabilities = np.array(provisional.output(PROBABILITIES))
    full = checked(correction, len(rows), probabilities.shape[1], digest)
    before = probabilities[list(rows)].argmax(axis=1)
    changed = bool((before != full.probabilities.argmax(axis=1)).any())
    probabilities[list(rows)] = full.probabilities
    said = list(first.rows) or [
        RowAnswer(first.tier, first.reason, first.status, first.certified, first.confidence, first.model_digest)
    ]
    for position in rows:
        said[position] = replace(
            said[position],
            tier=Tier.CLOUD,
            reason=Reason.UNCERTAIN,
            status=Status.FINAL,
            certified=bool(full.digest),
            model_digest=full.digest,
        )
    attempts = (*first.attempts, *(correction.answer.attempts if correction.answer is not None else ()))
    return replace(
        provisional,
        outputs=(Tensor(PROBABILITIES, probabilities),),
        answer=replace(summarise(first.request_id, said, attempts, durable=first.durable), changed=changed),
    )
