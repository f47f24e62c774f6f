"""The interface of the audits to the cascade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from firstline_core.types import InferRequest
from firstline_edge.models.models import DeviceModel
from firstline_edge.requests.context import Row


class Audits(Protocol):
    """Audits answers; `Auditor` implements it. No call takes time that a caller would notice."""

    def observe_decisions(self, request: InferRequest, model: DeviceModel, rows: Sequence[Row]) -> None:
        """Every row has a verdict; those that the full model must answer have no answer yet."""
        ...

    def observe_escalations(self, model: DeviceModel, rows: Sequence[Row]) -> None:
        """The full model has answered these rows."""
        ...
