"""What must not, or cannot, run here, found out before it costs a place in the queue. Pure."""

from __future__ import annotations

from firstline_core.errors import InvalidTensorError, ModelMismatchError, RequestError
from firstline_core.protocol.tensors import shown
from firstline_core.types import PROBABILITIES, InferRequest, Privacy, Route
from firstline_gateway.models.repository import ServedModel


def check(request: InferRequest, served: ServedModel) -> None:
    """Whether a request makes sense for a model of this gateway, whatever its numbers are.

    Raises:
        RequestError: not here; `ModelMismatchError` and `InvalidTensorError` say what kind.
    """
    if request.privacy is Privacy.LOCAL_ONLY:
        raise RequestError(
            "privacy=local_only means that the input must not leave the device, but it reached the cloud; "
            "send it to the device's agent, or drop privacy=local_only."
        )
    if request.route is Route.EDGE:
        raise RequestError("route=edge cannot be met by a gateway; send the request to the device's agent.")
    if request.full_model_digest and request.full_model_digest != served.digest:
        raise ModelMismatchError(
            f"The request was made for full model {shown(request.full_model_digest)}, but version "
            f"{served.key.version} of '{served.key.name}' on this gateway has {served.digest}; "
            "bring both tiers to the same bundle."
        )
    if request.audit is not None and request.audit.predicted >= len(served.manifest.labels):
        raise RequestError(
            f"Parameter 'audit_predicted' is {request.audit.predicted}, but '{served.key.name}' has "
            f"{len(served.manifest.labels)} classes, counted from 0."
        )
    name = served.manifest.input.name
    if len(request.inputs) != 1 or request.inputs[0].name != name:
        given = ", ".join(shown(tensor.name) for tensor in request.inputs[:5])
        raise InvalidTensorError(f"Model '{served.key.name}' takes one input, '{name}'; the request has {given}.")
    for output in request.outputs:
        if output.name != PROBABILITIES:
            raise InvalidTensorError(
                f"Model '{served.key.name}' has no output {shown(output.name)}; it has: {PROBABILITIES}."
            )
