"""Answers as an agent gives them."""

from __future__ import annotations

import numpy as np

from firstline_core.types import Answer, Attempt, InferResponse, Reason, Status, Tensor, Tier


def answered(request_id: str = "r-1", status: Status = Status.FINAL) -> InferResponse:
    answer = Answer(
        request_id=request_id,
        status=status,
        certified=False,
        durable=False,
        tier=Tier.EDGE,
        reason=Reason.CONFIDENT,
        confidence=0.9,
        model_digest="d" * 64,
        attempts=(Attempt(Tier.EDGE, "ok", 0.2),),
    )
    return InferResponse("digits", "1", (Tensor("probabilities", np.ones((1, 2), np.float32)),), answer=answer)
