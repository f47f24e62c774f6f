"""The agent: one data plane, whichever way a request comes in. What it is made of is in `parts.py`.

In process it is used as it is:

    async with EdgeAgent(settings) as agent:
        response = await agent.infer_file("digits", png_bytes)
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from msgspec.structs import replace

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, NotReadyError, RequestError, UnknownModelError
from firstline_core.protocol import file_inference
from firstline_core.protocol.data_plane import EXTENSIONS, ModelState
from firstline_core.protocol.extensions import config_json
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferRequest, InferResponse, ModelMetadata, TensorSpec, TraceContext
from firstline_edge.cascade.turns import Turns
from firstline_edge.models.held import HeldModel
from firstline_edge.parts import Parts, open_parts
from firstline_edge.requests.context import RequestContext
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.telemetry import report

LOCAL_PRINCIPAL = "local"
PASSED_ON_INPUT = "image"
"""What the file address calls the input of a model that this device does not hold."""


class EdgeAgent:
    """Answers on the device what may be answered there. An async context manager, and a `data_plane.DataPlane`.

    Args:
        settings: see `settings/settings.py`.
        clock: for tests.
        trouble: what went wrong before the agent was made, by the file that it is with.

    Attributes:
        parts: from when it is entered.
    """

    parts: Parts

    server_name = "firstline-edge"
    server_version = report.VERSION
    extensions = EXTENSIONS

    def __init__(
        self,
        settings: EdgeSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        trouble: Mapping[Path, str] = MappingProxyType({}),
    ) -> None:
        self.settings = settings
        self.trouble = trouble
        self.limits = Limits(
            body_bytes=settings.api.body_limit_bytes,
            json_bytes=min(DEFAULT_LIMITS.json_bytes, settings.api.body_limit_bytes),
        )
        self.metrics = RequestMetrics("edge")
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._ready = False
        self._default_timeout_s = settings.policy.default_timeout_ms / 1000
        self._turns = Turns(settings.api.waiting_limit, clock)
        self._opened = contextlib.AsyncExitStack()

    async def __aenter__(self) -> EdgeAgent:
        opening = open_parts(self.settings, self.metrics, self.limits, self._clock)
        self.parts = await self._opened.enter_async_context(opening)
        self._ready = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ready = False
        await self._opened.aclose()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answers one request; see `Cascade.infer` for the errors, which carry the request's id."""
        if not self._ready:
            raise NotReadyError("The agent is starting or stopping; try again in a moment.", retry_after_s=1.0)
        started_s = self._clock.monotonic_s()
        deadline_s = started_s + self._default_timeout_s if request.deadline_s is None else request.deadline_s
        context = RequestContext(request, deadline_s)
        try:
            await self._turns.take(deadline_s)
            response = await self.parts.cascade.infer(context)
        except FirstlineError as error:
            # Callers whose equal rows were computed once may share the error: each reads the id before it awaits again.
            error.request_id = request.request_id
            held = self.parts.models.find(request.model, request.version)
            seconds = self._clock.monotonic_s() - started_s
            self.parts.recorder.refused(context, held.version if held is not None else None, error, seconds)
            raise
        seconds = self._clock.monotonic_s() - started_s
        self.parts.recorder.answered(request, response, seconds, context.log_record())
        return response

    async def infer_file(
        self, model: str, content: bytes, *, trace: TraceContext | None = None, **preferences: str
    ) -> InferResponse:
        """Answers for an encoded image, or JSON, as it lies in a file.

        Args:
            model: the bundle's name.
            content: the file's bytes.
            trace: that it belongs to (`telemetry.trace.received`).
            preferences: `route`, `privacy`, `wait`, and `timeout` in microseconds, as over HTTP.
        """
        request = file_inference.request_from_file(
            model,
            self.short_metadata(model),
            content,
            "",  # no type: it is no multipart form
            preferences,
            now_s=self._clock.monotonic_s(),
            principal=LOCAL_PRINCIPAL,
            limits=self.limits,
        )
        return await self.infer(request if trace is None else replace(request, trace=trace))

    async def answer(self, request_id: str, principal: str = LOCAL_PRINCIPAL) -> InferResponse:
        """The answer that was promised a correction: provisional until that came, final or expired after.

        Raises:
            UnknownAnswerError: nothing was promised to this principal under this id.
        """
        return await self.parts.outbox.answer(request_id, principal)

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        """Whether any request could be answered: with an edge model that runs, or through a link."""
        runs = any(held.edge is not None for held in self.parts.models.all) if self._ready else False
        return self._ready and (runs or self.parts.links.chain is not None)

    def model_ready(self, model: str, version: str) -> bool:
        held = self.parts.models.find(model, version)
        if held is None:
            raise self._unknown(model, version)
        return held.edge is not None or self.parts.links.available

    def metadata(self, model: str, version: str) -> ModelMetadata:
        held = self.parts.models.find(model, version)
        if held is None:
            raise self._unknown(model, version)
        return held.metadata

    def index(self) -> list[ModelState]:
        return [
            ModelState(
                held.manifest.name,
                held.version,
                ready=held.edge is not None or self.parts.links.available,
                reason=held.problem,
            )
            for held in self._held()
        ] + [
            ModelState(name, str(version), ready=False, reason=why)
            for (name, version), why in sorted(self.parts.models.away.items())
        ]

    async def load(self, model: str) -> None:
        await self.parts.reloading.load(model)

    async def unload(self, model: str) -> None:
        await self.parts.reloading.unload(model)

    async def roll_back(self, model: str) -> None:
        """What ran before the fleet's latest update of a model runs again.

        Raises:
            RequestError: this device is none of a fleet, or there is nothing to go back to.
        """
        fleet = self.parts.fleet
        if fleet is None or fleet.updater is None:
            raise RequestError("This device takes no models from a fleet, so there is nothing to go back to.")
        await fleet.updater.roll_back(model)

    async def roll_back_configuration(self) -> None:
        """The settings before the fleet's latest configuration hold again.

        Raises:
            RequestError: this device is none of a fleet, or there is nothing to go back to.
        """
        if self.parts.fleet is None:
            raise RequestError("This device takes no configuration from a fleet, so there is nothing to go back to.")
        await self.parts.fleet.configuration.roll_back()

    def statistics(self) -> list[ModelStatistics]:
        return [self.parts.recorder.statistics(held.manifest.name, held.version) for held in self._held()]

    def config(self, model: str, version: str) -> dict[str, Any]:
        return config_json(self.metadata(model, version), self.limits, batching=False)

    def _held(self) -> list[HeldModel]:
        return sorted(self.parts.models.all, key=lambda held: (held.manifest.name, held.manifest.version))

    def short_metadata(self, model: str) -> ModelMetadata:
        """What the file address takes a body for.

        Of a model that this device does not hold it knows nothing: the body is then passed on as one encoded image,
        which is what this address is mostly used with. The gateway refuses it where its model takes something else.

        Raises:
            UnknownModelError: not held, and no gateway to ask.
        """
        held = self.parts.models.find(model)
        if held is not None:
            return held.metadata
        if self.parts.links.chain is None:
            raise self._unknown(model, "")
        return ModelMetadata(model, (), "", (TensorSpec(PASSED_ON_INPUT, "BYTES", (-1,)),), ())

    def labels(self, model: str, version: str) -> tuple[str, ...]:
        """The labels of a model, empty where this device does not hold it."""
        held = self.parts.models.find(model, version)
        return held.manifest.labels if held is not None else ()

    def exposition(self) -> tuple[bytes, str]:
        """The metrics in Prometheus' form, and its content type."""
        self.parts.recorder.flush()
        return self.metrics.render()

    def status(self) -> dict[str, Any]:
        """How the agent is, see `telemetry/report.py`."""
        return report.status_of(self, self._clock.monotonic_s() - self._started_s)

    def _unknown(self, model: str, version: str) -> UnknownModelError:
        names = ", ".join(sorted({held.manifest.name for held in self.parts.models.all})) or "none"
        wanted = shown(model) + (f" in version {shown(version)}" if version else "")
        return UnknownModelError(f"This device holds no model {wanted}; it holds: {names}.")
