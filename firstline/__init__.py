"""Firstline: a small model answers on the device, a full model answers for the rest.

This package is the face: the client, the command line, the workbench and the demo.
"""

from __future__ import annotations

from firstline import errors
from firstline.async_client import AsyncClient
from firstline.client import Client
from firstline.many import Outcome
from firstline.prediction import Prediction
from firstline_core.errors import FirstlineError
from firstline_core.types import (
    Answer,
    Attempt,
    ContractNotice,
    InferResponse,
    ModelMetadata,
    Privacy,
    Reason,
    Route,
    RowAnswer,
    Status,
    Tensor,
    TensorSpec,
    Tier,
    Wait,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "Attempt",
    "Client",
    "ContractNotice",
    "FirstlineError",
    "InferResponse",
    "ModelMetadata",
    "Outcome",
    "Prediction",
    "Privacy",
    "Reason",
    "Route",
    "RowAnswer",
    "Status",
    "Tensor",
    "TensorSpec",
    "Tier",
    "Wait",
    "errors",
]
