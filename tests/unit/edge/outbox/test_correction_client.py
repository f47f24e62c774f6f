"""Corrections of promises whose bundle the device has replaced meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support import escalations

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import FirstlineError
from firstline_core.tasks.base import DeclaredOutputs
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.types import InferRequest, InferResponse, Status, Tensor
from firstline_edge.cloud.client import ModelRefusals
from firstline_edge.outbox.delivery import CorrectionClient
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.requests.full_answers import check_answer

PROMISED, OTHER = "f" * 64, "0" * 64


class Cloud:
    """Answers with probabilities, as the gateway's full model of the promised bundle does."""

    def __init__(self, value: float) -> None:
        self.value = value

    async def infer(
        self, request: InferRequest, deadline_s: float, attempts: list[Any], declared: DeclaredOutputs
    ) -> InferResponse:
        found = replace(escalations.response(request, value=self.value), id=request.request_id)
        check_answer(request, found, declared)
        return found


class Contracts:
    def alarm_of(self, model: object) -> None:
        return None

    def apply_notice(self, model: object, notice: object) -> None:
        pass


def client(models: dict[str, Any], value: float = 0.75) -> CorrectionClient:
    """A device that holds `models` by version."""
    held = {version: SimpleNamespace(manifest=manifest) for version, manifest in models.items()}
    found = SimpleNamespace(find=lambda name, version="": held.get(version or max(held, default="")))
    refusals = ModelRefusals(SYSTEM_CLOCK)
    return CorrectionClient(Cloud(value), found, Contracts(), refusals, SYSTEM_CLOCK)  # type: ignore[arg-type]


def manifest(task: Classification | Detection, full_digest: str) -> SimpleNamespace:
    return SimpleNamespace(
        task=task,
        full_digest=full_digest,
        full=None,
        outputs_of=lambda _model: task.declared(rounded=True, cut=True),
    )


def promise() -> OutboxItem:
    asked = replace(escalations.request(1), full_model_digest=PROMISED)
    first = escalations.response(asked, Status.PROVISIONAL, value=0.25)
    likeliest = np.full((1, 10), 0.25, np.float32)
    likeliest[0, 3] = 0.5
    return OutboxItem(asked, (0,), replace(first, outputs=(Tensor("probabilities", likeliest),)), 0.0)


DIGITS = Classification(tuple("0123456789"))


@pytest.mark.parametrize(
    "models",
    [
        {},
        {"2": manifest(Classification(("a", "b")), OTHER)},
        {"2": manifest(Detection(("person",)), OTHER)},
        {"1": manifest(replace(DIGITS, independent=True), PROMISED), "2": manifest(Detection(("person",)), OTHER)},
    ],
    ids=["nothing is held", "fewer labels", "another task", "both versions are held"],
)
async def test_a_correction_of_an_earlier_bundle_is_delivered(models: dict[str, Any]) -> None:
    corrected, refusal = await client(models).correct(promise())
    assert refusal == ""
    assert (corrected.answer.status, corrected.answer.changed) == (Status.FINAL, True)
    assert corrected.output("probabilities").tolist() == [[0.75] * 10]


async def test_a_correction_outside_of_the_range_is_refused_for_an_earlier_bundle_too() -> None:
    with pytest.raises(FirstlineError, match="outside of 0 to 1"):
        await client({}, value=-7.0).correct(promise())
