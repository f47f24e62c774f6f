"""The data plane: every protocol calls it to answer requests. Bursts of requests wait in its admission queue."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, FirstlineError, NotReadyError, QueueFullError
from firstline_core.protocol import file_inference
from firstline_core.protocol.data_plane import EXTENSIONS, ModelState
from firstline_core.protocol.extensions import config_json
from firstline_core.protocol.oip import Origin
from firstline_core.tasks.base import Task
from firstline_core.telemetry import tracing
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.telemetry.wording import counted
from firstline_core.types import InferRequest, InferResponse, ModelMetadata, TensorSpec, TraceContext
from firstline_edge.api.access import LOCAL_PRINCIPAL
from firstline_edge.cascade.cascade import Cascade
from firstline_edge.cloud.links import Links
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.models.reloading import Reloading
from firstline_edge.requests.context import RequestContext
from firstline_edge.requests.recorder import Recorder
from firstline_edge.settings.settings import EdgeSettings, request_limits
from firstline_edge.telemetry.version import VERSION

PASSED_ON_INPUT = "image"
"""The input's name in a file request to a model that this device does not hold."""

_SLICE_S = 0.02  # of requests, after which the event loop runs other work
_FIRST_GUESS_S, _STEP = 0.002, 1.05  # of the time of a request, and the factor by which each round changes the guess
_CERTAIN_SHARE = 0.5  # of the expected waiting time: a request whose deadline is before that is certainly late


class AdmissionQueue:
    """The requests that wait for their turn on the event loop, in order of arrival.

    Work of less than a millisecond runs on the event loop itself. A burst of requests would block the loop: timers,
    arrivals and the gateway's answers would wait, and the last requests would miss their deadlines. So requests queue,
    and the loop runs other work after each slice of time. A request that cannot be in time is refused as soon as that
    is certain, while a retry, or another server, may still help. It is not refused earlier: a refusal costs a third of
    an answer, so an agent that refuses on suspicion has less time for the requests that wait.

    Args:
        limit: of waiting requests.
        clock: of the deadlines.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()  # with their deadlines
        self._begun = 0  # since the loop last came round
        self._began_s = 0.0  # when the first of those did
        self._turn_s = _FIRST_GUESS_S

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def wait_s(self) -> float:
        """Expected seconds until all waiting requests have begun."""
        return len(self._waiting) * self._turn_s

    async def take(self, deadline_s: float) -> None:
        """Returns when the request may begin: at once if no other waits and the slice has room.

        Raises:
            DeadlineExceededError: its deadline passed while it was read.
            QueueFullError: it cannot be in time, or too many wait.
        """
        now_s = self._clock.monotonic_s()
        if not self._waiting and deadline_s <= now_s:
            raise DeadlineExceededError(
                "The request's deadline passed while it was read; allow more time, or try again.", retry_after_s=1.0
            )
        slice_has_room = not self._begun or now_s < self._began_s + _SLICE_S
        if slice_has_room and not self._waiting:
            self._begin(now_s)
            return
        if deadline_s <= now_s + _CERTAIN_SHARE * self.wait_s:
            raise self._full("its deadline passes before its turn")
        if len(self._waiting) >= self._limit:
            raise self._full("no more may wait (api.waiting_limit)")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, deadline_s))
        await turn

    def _begin(self, now_s: float) -> None:
        if not self._begun:
            self._began_s = now_s
            asyncio.get_running_loop().call_soon(self._next)
        self._begun += 1

    def _next(self) -> None:
        """The loop has come round: notes how long that took, and lets the next ones begin."""
        now_s = self._clock.monotonic_s()
        # Towards the median: an average would take the round in which five hundred others came for a slow one.
        self._turn_s *= _STEP if now_s - self._began_s > self._begun * self._turn_s else 1 / _STEP
        self._begun = 0
        while self._waiting and self._begun * self._turn_s < _SLICE_S:
            turn, deadline_s = self._waiting.popleft()
            if turn.done():  # its caller has left
                continue
            if deadline_s <= now_s:
                turn.set_exception(self._full("its deadline passed before its turn"))
                continue
            turn.set_result(None)
            self._begin(now_s)

    def _full(self, why: str) -> QueueFullError:
        return QueueFullError(
            f"This agent is busy with {counted(len(self._waiting) + 1, 'request')} that came before this one, "
            f"and {why}; try again.",
            retry_after_s=max(1.0, math.ceil(self.wait_s)),
        )


@dataclass(eq=False)
class EdgeDataPlane:
    """Answers requests; implements `firstline_core.protocol.data_plane.DataPlane`.

    Args:
        settings: the agent's.
        models: the models of this device.
        reloading: loads and unloads models.
        cascade: answers requests.
        links: to the gateway.
        recorder: counts and logs.
        clock: for deadlines.
    """

    server_name = "firstline-edge"
    server_version = VERSION
    extensions = EXTENSIONS

    settings: EdgeSettings
    _: KW_ONLY
    models: Models
    reloading: Reloading
    cascade: Cascade
    links: Links
    recorder: Recorder
    clock: Clock
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.limits = request_limits(self.settings.api)
        self._default_timeout_s = self.settings.policy.default_timeout_ms / 1000
        self._admission = AdmissionQueue(self.settings.api.waiting_limit, self.clock)

    def stop(self) -> None:
        """Refuses all further requests."""
        self._stopping = True

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answers one request; see `Cascade.infer` for the errors, which carry the request's id."""
        if self._stopping:
            raise NotReadyError("The agent is starting or stopping; try again in a moment.", retry_after_s=1.0)
        if tracing.active and request.trace is None and (trace := tracing.begin()) is not None:
            request = replace(request, trace=trace)
        started_s = self.clock.monotonic_s()
        deadline_s = started_s + self._default_timeout_s if request.deadline_s is None else request.deadline_s
        context = RequestContext(request, deadline_s)
        try:
            await self._admission.take(deadline_s)
            response = await self.cascade.infer(context)
        except FirstlineError as error:
            # Callers whose equal rows were computed once may share the error: each reads the id before it awaits again.
            error.request_id = request.request_id
            device_model = self.models.find(request.model, request.version)
            seconds = self.clock.monotonic_s() - started_s
            self.recorder.refused(context, device_model.version if device_model is not None else None, error, seconds)
            raise
        seconds = self.clock.monotonic_s() - started_s
        self.recorder.answered(request, response, seconds, context.log_record(), context.rows)
        return response

    async def infer_file(
        self, model: str, content: bytes, *, trace: TraceContext | None = None, **preferences: str
    ) -> InferResponse:
        """Answers for the content of a file: an encoded image, or JSON.

        Args:
            model: the bundle's name.
            content: the file's bytes.
            trace: that it belongs to (`telemetry.trace.received`).
            preferences: `route`, `privacy`, `wait`, and `timeout` in microseconds, as over HTTP.
        """
        origin = Origin(self.clock.monotonic_s(), LOCAL_PRINCIPAL, limits=self.limits, trace=trace)
        content_type = ""  # because the body is not a multipart form
        return await self.infer(
            file_inference.request_from_file(
                model, self.short_metadata(model), content, content_type, preferences, origin=origin
            )
        )

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        """Returns whether any request could be answered: by an edge model, or over a link."""
        runs = any(device_model.edge is not None for device_model in self.models.all)
        return not self._stopping and (runs or self.links.chain.linked)

    def model_ready(self, model: str, version: str) -> bool:
        device_model = self.models.find(model, version)
        if device_model is None:
            raise self.models.unknown(model, version)
        return device_model.edge is not None or self.links.chain.available

    def metadata(self, model: str, version: str) -> ModelMetadata:
        device_model = self.models.find(model, version)
        if device_model is None:
            raise self.models.unknown(model, version)
        return device_model.metadata

    def index(self) -> list[ModelState]:
        return [
            ModelState(
                device_model.manifest.name,
                device_model.version,
                ready=device_model.edge is not None or self.links.chain.available,
                reason=device_model.problem,
            )
            for device_model in self._sorted_models()
        ] + [
            ModelState(name, str(version), ready=False, reason=why)
            for (name, version), why in sorted(self.models.away.items())
        ]

    async def load(self, model: str) -> None:
        await self.reloading.load(model)

    async def unload(self, model: str) -> None:
        await self.reloading.unload(model)

    def statistics(self) -> list[ModelStatistics]:
        return [self.recorder.statistics(model.manifest.name, model.version) for model in self._sorted_models()]

    def config(self, model: str, version: str) -> dict[str, Any]:
        return config_json(self.metadata(model, version), self.limits, batching=False)

    def _sorted_models(self) -> list[DeviceModel]:
        return sorted(self.models.all, key=lambda each: (each.manifest.name, each.manifest.version))

    def short_metadata(self, model: str) -> ModelMetadata:
        """Returns how a body at the file address is read.

        For a model that this device does not have, the body is passed on as one encoded image, the most common content
        at this address. The gateway refuses it if its model takes another input.

        Raises:
            UnknownModelError: unknown here, and no gateway to ask.
        """
        device_model = self.models.find(model)
        if device_model is not None:
            return device_model.metadata
        if not self.links.chain.linked:
            raise self.models.unknown(model, "")
        image = TensorSpec(PASSED_ON_INPUT, "BYTES", (-1,))
        return ModelMetadata(model, (), "", (image,), (), files=(PASSED_ON_INPUT,))

    def task(self, model: str, version: str = "") -> Task | None:
        """Returns the task of a model; None if this device does not hold it."""
        device_model = self.models.find(model, version)
        return device_model.manifest.task if device_model is not None else None
