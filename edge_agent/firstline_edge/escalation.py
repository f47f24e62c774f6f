"""What crosses the link, what came back over it, and what its failure means for the caller. Pure."""

from __future__ import annotations

from dataclasses import replace

from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    LinkError,
    ModelMismatchError,
    RemoteTimeoutError,
)
from firstline_core.types import InferRequest, InferResponse, Reason, Route, Wait


def escalation_of(request: InferRequest, version: str, full_digest: str) -> InferRequest:
    """What the gateway is sent: this version, this full model, all outputs, and none of the caller's own wishes."""
    return replace(
        request,
        id="",
        version=version,
        full_model_digest=full_digest,
        outputs=(),
        binary_output=True,
        route=Route.AUTO,
        wait=Wait.FINAL,
        deadline_s=None,
    )


def verified_digest(response: InferResponse, digest: str) -> str:
    """The digest of the full model that answered; "" where the server does not say.

    Raises:
        ModelMismatchError: another model answered than the one that this bundle names.
    """
    if response.answer is None or not response.answer.model_digest:
        return ""
    if digest and response.answer.model_digest != digest:
        raise ModelMismatchError(
            f"The gateway answered with model {response.answer.model_digest[:12]}, this device's bundle names "
            f"{digest[:12]}; give both the same bundle."
        )
    return response.answer.model_digest


def reason_for(error: FirstlineError) -> Reason:
    """Why the edge answer stands in for the full model's."""
    if isinstance(error, DeadlineExceededError | RemoteTimeoutError):
        return Reason.DEADLINE
    return Reason.LINK_DOWN if isinstance(error, LinkError | CapacityError) else Reason.CLOUD_ERROR


def may_come(error: FirstlineError) -> bool:
    """Whether the same escalation may be answered later: a refusal will be the same tomorrow."""
    return isinstance(error, LinkError | CapacityError)
