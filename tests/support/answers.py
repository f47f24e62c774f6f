"""Answers as an agent gives them."""

from typing import Any

import numpy as np
import orjson

from firstline_core.protocol import answer as answers
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


def event(number: int, status: Status, label: str = "one") -> bytes:
    """An event of the stream of a classifier's answers to the request that the client calls `mine`."""
    words = {"label": label, "probability": 0.5, "top": [], "model": "m", "version": "1", "id": "mine"}
    return b"id: %d\ndata: %b\n\n" % (number, orjson.dumps(answers.to_dict(answer(status=status)) | words))
