from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from firstline import Client
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evidence import gather_from_agent, running_variant
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError, ProtocolError
from firstline_core.types import PROBABILITIES, Answer, InferResponse, Reason, Status, Tensor, Tier

_DIGITS = Path(__file__).parents[4] / "models/digits"
_BUNDLE = open_bundle(_DIGITS / "bundle")
_EDGE = _BUNDLE.manifest.edge[1]


def _status(**changes: Any) -> dict[str, Any]:
    manifest = _BUNDLE.manifest
    model = {
        "name": "digits",
        "version": "1",
        "edge": _EDGE.id,
        "model_digest": _EDGE.digest,
        "full_model_digest": manifest.full_digest,
        "score_digest": manifest.policy.score.digest,
        "problem": None,
    }
    return {"models": [model | changes]}


class _Device(Client):
    """Returns the given answers to any request."""

    def __init__(self, change: Callable[[InferResponse], InferResponse] = lambda found: found) -> None:
        super().__init__("http://device")
        self.change = change
        self.requests: list[dict[str, Any]] = []

    def status(self) -> dict[str, Any]:
        return _status()

    def infer(self, model: str, inputs: Any, **options: Any) -> InferResponse:
        self.requests.append(options)
        answer = Answer("id", Status.FINAL, False, False, Tier.EDGE, Reason.REQUESTED, 0.7, _EDGE.digest)
        row = np.eye(10, dtype=np.float32)[[3]]
        return self.change(InferResponse(model, "1", (Tensor("probabilities", row),), answer=answer))


def test_scores_come_from_the_device() -> None:
    with _Device() as device:
        found = gather_from_agent(_BUNDLE, open_dataset(_DIGITS / "heldout", 3), device)
    assert found.variant is _EDGE
    assert found.edge.outputs[PROBABILITIES].argmax(axis=1).tolist() == [3] * 3
    assert found.scores.tolist() == [0.7] * 3
    assert {(options["route"], options["version"]) for options in device.requests} == {("edge", 1)}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda found: replace(found, version="2"), ConfigError, "answered with version 2"),
        (lambda found: replace(found, answer=replace(found.answer, model_digest="f" * 64)), ConfigError, "fffffffffff"),
        (lambda found: replace(found, answer=None), ConfigError, "model unknown"),
        (
            lambda found: replace(found, outputs=(Tensor("probabilities", np.ones((1, 2), np.float32)),)),
            ProtocolError,
            "10",
        ),
    ],
)
def test_answer_of_another_model_is_refused(change: Any, error: type[Exception], message: str) -> None:
    """A rollout may reach the device while it is asked."""
    with _Device(change) as device, pytest.raises(error, match=message):
        gather_from_agent(_BUNDLE, open_dataset(_DIGITS / "heldout", 1), device)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        ({"models": []}, ConfigError, "holds no model 'digits'"),
        (_status(version="4"), ConfigError, "in version 4, not 1"),
        (_status(edge=None, problem="It is broken."), ConfigError, "runs no variant of 'digits' 1: It is broken"),
        (_status(model_digest="0" * 64), ConfigError, "with another edge model or processing; "),
        (_status(full_model_digest=None), ConfigError, "with another full model; "),
        (_status(score_digest="0"), ConfigError, "with another score; "),
        ({}, ProtocolError, "not an edge agent"),
        ({"models": [{}]}, ProtocolError, "not an edge agent"),
        ({"models": [{"name": "digits", "version": "1", "edge": "x"}]}, ProtocolError, "another version"),
    ],
)
def test_running_variant_is_read_from_the_status(status: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        running_variant(status, _BUNDLE.manifest, "http://device")
