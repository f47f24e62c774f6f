"""Full answers: the request for one, its checks, the reason if there is none, and corrections. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from msgspec.structs import replace

from firstline_core.errors import (
    BudgetExceededError,
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    InferenceError,
    LinkError,
    ProtocolError,
    RemoteTimeoutError,
)
from firstline_core.protocol.tensors import shown
from firstline_core.tasks.base import DeclaredOutputs, Task, check_outputs
from firstline_core.tasks.field import field_losses
from firstline_core.telemetry.wording import counted
from firstline_core.types import (
    Arrays,
    ContractAlarm,
    InferRequest,
    InferResponse,
    Reason,
    Route,
    RowAnswer,
    Status,
    Tensor,
    Tier,
    Wait,
    all_finite,
)
from firstline_edge.requests.context import summarise


def escalation_of(
    request: InferRequest,
    version: str,
    full_digest: str,
    inputs: Collection[str] | None = None,
    alarm: ContractAlarm | None = None,
) -> InferRequest:
    """Returns the request to the gateway: this version, this full model, all outputs, without the caller's preferences.

    Args:
        request: of the caller.
        version: of the bundle.
        full_digest: of the full model that the bundle names.
        inputs: names of those that the full model reads; None for all of the request.
        alarm: of this device's own audits; None without one.
    """
    return replace(
        request,
        inputs=request.inputs if inputs is None else tuple([each for each in request.inputs if each.name in inputs]),
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


def check_answer(request: InferRequest, response: InferResponse, declared: DeclaredOutputs | None) -> None:
    """Accepts an answer of the gateway, or raises an error of the link that carried it.

    An intermediary may swap, repeat or alter answers, and bytes that an earlier answer left on a connection may look
    like one. The gateway refuses a model's output that is not as declared, so such an answer was altered as well.

    Args:
        request: as it was sent; the gateway echoes its request id as V2's `id`.
        response: from the gateway.
        declared: declaration of the full model's outputs; None if this device does not hold the bundle.

    Raises:
        ProtocolError: the answer is another request's or another model's, is not final, or has impossible outputs.
    """
    if response.id != request.request_id:
        raise ProtocolError(f"It answers request {shown(response.id)}, not {request.request_id}.")
    answer, digest = response.answer, request.full_model_digest
    if answer is not None and answer.status is not Status.FINAL:
        raise ProtocolError(f"It is {answer.status}, not final; let the link lead to a gateway, not to an agent.")
    ran = digest_of(response)
    if digest and ran != digest:
        by = f"by model {shown(ran[:12])}" if ran else "without the digest of a model"
        raise ProtocolError(
            f"It was given {by}, and this device's bundle names {digest[:12]}; let the link lead to a gateway with the "
            "same bundle."
        )
    if declared is None:
        _check_any(response.outputs, request.rows)
        return
    try:
        check_outputs(declared, response.arrays, request.rows)
    except InferenceError as error:
        raise ProtocolError(error.message) from error


def _check_any(outputs: Sequence[Tensor], rows: int) -> None:
    """Checks what holds for the outputs of every model."""
    for tensor in outputs:
        if tensor.shape[:1] != (rows,):
            raise ProtocolError(
                f"Output {shown(tensor.name)} has shape {list(tensor.shape)} for {counted(rows, 'row')}."
            )
        if tensor.array.dtype.kind == "f" and not all_finite(tensor.array):
            raise ProtocolError(f"Output {shown(tensor.name)} has NaN or infinity.")


def digest_of(response: InferResponse) -> str:
    """Returns the digest of the model that answered; "" if the server does not say."""
    return response.answer.model_digest if response.answer is not None else ""


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
    """Returns whether a correction can be promised: not for refusals (a retry fails too) or a spent budget.

    A gateway that lacks the bundle may get it soon: see `ModelRefusals`.
    """
    return isinstance(error, LinkError | CapacityError) and not isinstance(error, BudgetExceededError)


def merge(
    provisional: InferResponse, rows: tuple[int, ...], correction: InferResponse, task: Task | None
) -> InferResponse:
    """Puts the full model's rows into a provisional answer, which makes it final.

    The answer is `changed` if the task finds a loss in a corrected row, such as another likeliest class; without the
    task, if any output of a corrected row differs. A corrected row's reason is `uncertain`: why the full model
    answered. The decision log has the provisional answer with its original reason.

    Args:
        provisional: all rows, as they were first answered.
        rows: positions, in the order of the correction's rows.
        correction: the gateway's answer, accepted by `check_answer`.
        task: of the bundle; None if this device holds no version of it any more.

    Raises:
        ProtocolError: the provisional answer does not say how it came about.
    """
    first = provisional.answer
    if first is None:
        raise ProtocolError("The provisional answer does not say how it came about; it cannot be corrected.")
    positions, digest = list(rows), digest_of(correction)
    before = {name: array[positions] for name, array in provisional.arrays.items()}
    changed = _differ(task, before, correction.arrays)
    outputs = []
    for tensor in provisional.outputs:
        array = np.array(tensor.array)
        array[positions] = correction.output(tensor.name)
        outputs.append(Tensor(tensor.name, array))
    row_answers = list(first.rows) or [
        RowAnswer(first.tier, first.reason, first.status, first.certified, first.confidence, first.model_digest)
    ]
    for position in rows:
        row_answers[position] = replace(
            row_answers[position],
            tier=Tier.CLOUD,
            reason=Reason.UNCERTAIN,
            status=Status.FINAL,
            certified=bool(digest),
            model_digest=digest,
        )
    attempts = (*first.attempts, *(correction.answer.attempts if correction.answer is not None else ()))
    return replace(
        provisional,
        outputs=tuple(outputs),
        answer=replace(summarise(first.request_id, row_answers, attempts, durable=first.durable), changed=changed),
    )


def _differ(task: Task | None, before: Arrays, after: Arrays) -> bool:
    if task is not None:
        return bool((field_losses(task, before, after) > 0).any())
    return any(not np.array_equal(array, after[name]) for name, array in before.items())
