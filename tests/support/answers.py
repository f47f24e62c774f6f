"""Answers as an agent gives them."""

from typing import Any

import numpy as np

from firstline_core.types import Answer, Attempt, InferResponse, Reason, Status, Tensor, Tier


def answer(**changes: Any) -> Answer:
    """A confident answer of one row."""
    values: dict[str, Any] = {
        "request_id": "id",
        "status": Status.FINAL,
        "certified": True,
        "durable": False,
        "tier": Tier.EDGE,
        "reason": Reason.CONFIDENT,
        "confidence": 0.5,
        "model_digest": "d",
        "attempts": (Attempt(Tier.EDGE, "ok", 1.0),),
    }
    return Answer(**(values | changes))


def answered(request_id: str = "r-1", status: Status = Status.FINAL) -> InferResponse:
    outputs = (Tensor("probabilities", np.ones((1, 2), np.float32)),)
    return InferResponse("digits", "1", outputs, answer=answer(request_id=request_id, status=status, certified=False))
