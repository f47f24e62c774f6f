"""The public names of the package `firstline`: both clients, their answers and errors."""

from __future__ import annotations

from firstline.client.async_client import AsyncClient
from firstline.client.results import (
    Anomaly,
    Box,
    Classification,
    Detected,
    Detections,
    Embedding,
    Fields,
    Prediction,
    Rows,
    Segmentation,
    Tensors,
    Text,
    Values,
    predictions,
)
from firstline.client.retries import Outcome
from firstline.client.sync_client import Client
from firstline_core import errors
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
    "Anomaly",
    "Answer",
    "AsyncClient",
    "Attempt",
    "Box",
    "Classification",
    "Client",
    "ContractNotice",
    "Detected",
    "Detections",
    "Embedding",
    "Fields",
    "FirstlineError",
    "InferResponse",
    "ModelMetadata",
    "Outcome",
    "Prediction",
    "Privacy",
    "Reason",
    "Route",
    "RowAnswer",
    "Rows",
    "Segmentation",
    "Status",
    "Tensor",
    "TensorSpec",
    "Tensors",
    "Text",
    "Tier",
    "Values",
    "Wait",
    "errors",
    "predictions",
]
