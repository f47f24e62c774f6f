"""Asks the gateway for corrections of promises."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, RequestError, RuntimeFailure, UnauthorizedError
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, ContractNotice, InferRequest, InferResponse, Reason
from firstline_edge.cloud.complaints import Complaints
from firstline_edge.cloud.link import Uplink
from firstline_edge.outbox.item import OutboxItem, expire

log = logger(__name__)

Merge = Callable[[InferResponse, tuple[int, ...], InferResponse, str], InferResponse]
Alarm = Callable[[InferRequest], str]
Heed = Callable[[InferRequest, ContractNotice | None], None]


class Corrector:
    """Asks the gateway for corrections.

    Args:
        cloud: sends requests to the gateway.
        merge: puts the corrected rows into the provisional answer, if the full model of that digest gave them; its
            result is final.
        clock: for deadlines.
        complaints: gains what the gateway says against a model.
        alarm: returns the state of a model's contract, which the gateway receives with the request.
        heed: receives the gateway's notice about the contract.
        timeout_s: for one request.
        refusals: failures of the gateway's own (not of the link) after which a promise expires.
    """

    def __init__(
        self,
        cloud: Uplink,
        merge: Merge,
        clock: Clock,
        *,
        complaints: Complaints,
        alarm: Alarm,
        heed: Heed,
        timeout_s: float,
        refusals: int,
    ) -> None:
        self._cloud = cloud
        self._merge = merge
        self._clock = clock
        self._complaints = complaints
        self._alarm = alarm
        self._heed = heed
        self._timeout_s = timeout_s
        self._refusals = refusals
        self._refused: dict[str, int] = {}  # how often, by request id; of items that still wait

    async def correct(self, item: OutboxItem) -> tuple[InferResponse, str]:
        """Returns the answer that ends the promise, and why the gateway refused to correct it ("" if it did not).

        Raises:
            FirstlineError: no answer yet; the promise must be retried.
        """
        request_id = item.request.request_id
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        attempts: list[Attempt] = []
        answered = False
        try:
            sent = replace(item.request, alarm=self._alarm(item.request), promised=True)
            correction = await self._cloud.infer(sent, deadline_s, attempts)
            answered = True
            if correction.answer is not None:
                self._heed(item.request, correction.answer.contract)
                correction = replace(correction, answer=replace(correction.answer, attempts=tuple(attempts)))
            merged = self._merge(item.provisional, item.rows, correction, item.request.full_model_digest)
            self._complaints.settle(item.request.model, item.request.version)
            return merged, ""
        except FirstlineError as error:
            # The operator can correct a refused token, so the item is retried. A wrong answer is the gateway's fault,
            # not the link's.
            if not answered and (error.retryable or isinstance(error, UnauthorizedError)):
                raise
            refusal = error
        except Exception as error:  # the outermost loop of a promise: it must not block those behind it
            log.exception("outbox delivery broke", request_id=request_id)
            refusal = RuntimeFailure(f"The correction cannot be had: {error!r}.")
        self._refused[request_id] = self._refused.get(request_id, 0) + 1
        if not isinstance(refusal, RequestError) and self._refused[request_id] < self._refusals:
            raise refusal
        self._complaints.note(item.request.model, item.request.version, refusal)
        return expire(item.provisional, Reason.CLOUD_ERROR), refusal.message

    def forget(self, request_id: str) -> None:
        """Forgets a promise that has ended."""
        self._refused.pop(request_id, None)
