"""Asks the full model for the correction of a promise, and decides which failures end the promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from msgspec.structs import replace

from firstline_core.bundle.manifest import Manifest
from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, RequestError, RuntimeFailure, UnauthorizedError
from firstline_core.tasks import like
from firstline_core.tasks.base import DeclaredOutputs, Task
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, InferResponse, Reason
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import Contracts, ModelRefusals
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.outbox.item import OutboxItem, expire
from firstline_edge.requests.full_answers import merge

log = logger(__name__)

Merge = Callable[[InferResponse, tuple[int, ...], InferResponse, Task | None], InferResponse]

_TIMEOUT_S = 30.0
_REFUSALS = 5


@dataclass(eq=False)
class CorrectionClient:
    """Has the full model correct promises.

    Args:
        cloud: sends requests to the gateway.
        models: the models of this device.
        contracts: the state of their certificates, exchanged with the gateway.
        model_refusals: records the gateway's refusals of models.
        clock: for timeouts.
        refusals: failures of the gateway's own (not of the link) after which a promise expires.
        merge: puts the corrected rows into the provisional answer; its result is final.
    """

    cloud: LinkChain
    models: Models
    contracts: Contracts
    model_refusals: ModelRefusals
    clock: Clock
    _: KW_ONLY
    refusals: int = _REFUSALS
    merge: Merge = merge
    _refused: dict[str, int] = field(default_factory=dict, init=False)

    async def correct(self, item: OutboxItem) -> tuple[InferResponse, str]:
        """Returns the answer that ends the promise, and why the gateway refused to correct it ("" if it did not).

        Raises:
            FirstlineError: no answer yet; the promise must be retried.
        """
        request_id, model, version = item.request.request_id, item.request.model, item.request.version
        answered = False
        try:
            correction = await self._ask(item)
            answered = True
            held = _held(item, self.models.find(model, version))
            merged = self.merge(item.provisional, item.rows, correction, held.task if held is not None else None)
            self.model_refusals.clear(model, version)
            return merged, ""
        except FirstlineError as error:
            # The operator can correct a refused token, so the item is retried.
            if not answered and (error.retryable or isinstance(error, UnauthorizedError)):
                raise
            refusal = error
        except Exception as error:  # the outermost loop of a promise: it must not block those behind it
            log.exception("outbox delivery failed unexpectedly", request_id=request_id)
            refusal = RuntimeFailure(f"The correction cannot be had: {error!r}.")
        if not isinstance(refusal, RequestError):
            self._refused[request_id] = self._refused.get(request_id, 0) + 1
            if self._refused[request_id] < self.refusals:
                raise refusal
        self.model_refusals.record(model, version, refusal)
        if self.model_refusals.may_end(model, version, refusal):
            raise refusal
        return expire(item.provisional, Reason.CLOUD_ERROR, refusal.message), refusal.message

    def ended(self, request_id: str) -> None:
        """Forgets a promise that has ended."""
        self._refused.pop(request_id, None)

    async def _ask(self, item: OutboxItem) -> InferResponse:
        """Returns the gateway's answer with the tries of this call, and applies its notice about the contract."""
        device_model = self.models.find(item.request.model, item.request.version)
        alarm = self.contracts.alarm_of(device_model) if device_model is not None else None
        attempts: list[Attempt] = []
        request = replace(item.request, alarm=alarm, promised=True)
        ends_s = self.clock.monotonic_s() + _TIMEOUT_S
        correction = await self.cloud.infer(request, ends_s, attempts, _declared_outputs(item, device_model))
        if correction.answer is None:
            return correction
        if device_model is not None:
            self.contracts.apply_notice(device_model, correction.answer.contract)
        return replace(correction, answer=replace(correction.answer, attempts=tuple(attempts)))


def _declared_outputs(item: OutboxItem, model: DeviceModel | None) -> DeclaredOutputs:
    """Returns what the full model's outputs satisfy; the device may have replaced the bundle since the promise."""
    held = _held(item, model)
    return held.outputs_of(held.full) if held is not None else like(item.provisional.arrays)


def _held(item: OutboxItem, model: DeviceModel | None) -> Manifest | None:
    """Returns the manifest of the promise's bundle; None if the device has replaced it since the promise."""
    if model is None or model.manifest.full_digest != item.request.full_model_digest:
        return None
    return model.manifest
