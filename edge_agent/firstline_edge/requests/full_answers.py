"""Full answers: the request for one, its checks, the reason if there is none, and corrections. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from firstline_core.errors import (
    BudgetExceededError,
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    InferenceError,
    LinkError,
    ModelMismatchError,
    ProtocolError,
    RemoteTimeoutError,
)
from firstline_core.types import (
    PROBABILITIES,
    InferRequest,
    InferResponse,
    Reason,
    Route,
    RowAnswer,
    Status,
    Tensor,
    Tier,
    Wait,
)
from firstline_edge.requests.context import summarise


@dataclass(frozen=True, slots=True, eq=False)
class FullAnswer:
    """The full model's answer after its checks.

    Args:
        probabilities: (rows, classes) float32, finite.
        digest: of the full model that answered; "" if the server does not say.
    """

    probabilities: NDArray[np.float32]
    digest: str


def escalation_of(request: InferRequest, version: str, full_digest: str, alarm: str = "") -> InferRequest:
    """Returns the request to the gateway: this version, this full model, all outputs, without the caller's preferences.

    Args:
        request: of the caller.
        version: of the bundle.
        full_digest: of the full model that the bundle names.
        alarm: the edge variant whose promise this device's own audits broke; "" for none.
    """
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
        alarm=alarm,
    )


def checked(response: InferResponse, rows: int, classes: int, digest: str) -> FullAnswer:
    """Returns the gateway's answer if it is the full model's final answer for these rows.

    The errors are not the link's fault, and a retry would fail too.

    Args:
        response: from the gateway.
        rows: number of rows sent.
        classes: of the bundle.
        digest: of the full model that the bundle names; "" if it names none.

    Raises:
        ModelMismatchError: another model answered, or one with other outputs.
        InferenceError: the answer is provisional, or has a probability that is not a number.
    """
    ran = checked_digest(response, digest)
    found = next((tensor.array for tensor in response.outputs if tensor.name == PROBABILITIES), None)
    if found is None or found.dtype != np.float32 or found.shape != (rows, classes):
        got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
        raise ModelMismatchError(
            f"The gateway answered '{PROBABILITIES}' with {got}, expected float32 {[rows, classes]}; "
            "it does not run the same bundle."
        )
    if not np.isfinite(found).all():
        raise InferenceError("The gateway answered with a probability that is not a number; its model is broken.")
    return FullAnswer(found, ran)


def checked_digest(response: InferResponse, digest: str = "") -> str:
    """Returns the digest of the model that gave the final answer; "" if the server does not say.

    Raises:
        ModelMismatchError: another model answered than the one that is named.
        InferenceError: the answer is not final.
    """
    answer = response.answer
    if answer is None:
        return ""
    if answer.status is not Status.FINAL:
        raise InferenceError(
            f"The gateway's answer is {answer.status}, not final; let the link lead to a gateway, not to an agent."
        )
    if digest and answer.model_digest and answer.model_digest != digest:
        raise ModelMismatchError(
            f"The gateway answered with model {answer.model_digest[:12]}, this device's bundle names "
            f"{digest[:12]}; give both the same bundle."
        )
    return answer.model_digest


def reason_for(error: FirstlineError) -> Reason:
    """Returns why the edge answer replaces the full model's.

    A failure is handled in this order: `LinkChain` tries the next link if the failed one is at fault (`is_link_fault`),
    `can_be_promised` decides whether a correction is promised, and this function gives the reason:

    | error | reason |
    |---|---|
    | `BudgetExceededError` | budget |
    | `DeadlineExceededError`, `RemoteTimeoutError` | deadline |
    | other `LinkError`, other `CapacityError` | link_down |
    | any other | cloud_error |

    A refusal of this device's credentials (401) arrives here as a `LinkError`: `CloudClient._call` converts it, because
    the operator can renew the credentials, so the promise is kept.
    """
    if isinstance(error, BudgetExceededError):
        return Reason.BUDGET
    if isinstance(error, DeadlineExceededError | RemoteTimeoutError):
        return Reason.DEADLINE
    return Reason.LINK_DOWN if isinstance(error, LinkError | CapacityError) else Reason.CLOUD_ERROR


def can_be_promised(error: FirstlineError) -> bool:
    """Returns whether a correction can be promised: not for refusals (a retry fails too) or a spent budget."""
    return isinstance(error, LinkError | CapacityError) and not isinstance(error, BudgetExceededError)


def merge(
    provisional: InferResponse, rows: tuple[int, ...], correction: InferResponse, digest: str = ""
) -> InferResponse:
    """Puts the full model's rows into a provisional answer, which makes it final.

    The answer is `changed` where a corrected row's likeliest class is another than before. A corrected row's reason is
    `uncertain`: why the full model answered. The decision log has the provisional answer with its original reason.

    Args:
        provisional: all rows, as they were first answered.
        rows: positions, in the order of the correction's rows.
        correction: the gateway's answer.
        digest: of the full model that the request named, "" if it named none.

    Raises:
        FirstlineError: the correction is refused, see `checked`.
        ProtocolError: the provisional answer does not say how it came about.
    """
    first = provisional.answer
    if first is None:
        raise ProtocolError("The provisional answer does not say how it came about; it cannot be corrected.")
    probabilities = np.array(provisional.output(PROBABILITIES))
    full = checked(correction, len(rows), probabilities.shape[1], digest)
    before = probabilities[list(rows)].argmax(axis=1)
    changed = bool((before != full.probabilities.argmax(axis=1)).any())
    probabilities[list(rows)] = full.probabilities
    row_answers = list(first.rows) or [
        RowAnswer(first.tier, first.reason, first.status, first.certified, first.confidence, first.model_digest)
    ]
    for position in rows:
        row_answers[position] = replace(
            row_answers[position],
            tier=Tier.CLOUD,
            reason=Reason.UNCERTAIN,
            status=Status.FINAL,
            certified=bool(full.digest),
            model_digest=full.digest,
        )
    attempts = (*first.attempts, *(correction.answer.attempts if correction.answer is not None else ()))
    return replace(
        provisional,
        outputs=(Tensor(PROBABILITIES, probabilities),),
        answer=replace(summarise(first.request_id, row_answers, attempts, durable=first.durable), changed=changed),
    )
