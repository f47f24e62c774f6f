"""The agent, put together: settings to parts, parts to one data plane.

In process it is used as it is:

    async with EdgeAgent(settings) as agent:
        response = await agent.infer_file("digits", png_bytes)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from functools import partial
from importlib.metadata import version as installed_version
from pathlib import Path
from types import TracebackType
from typing import Any

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, NotReadyError, UnknownModelError
from firstline_core.protocol import short
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import ContractNotice, InferRequest, InferResponse, ModelMetadata, TensorSpec, Wait
from firstline_edge import report, rows
from firstline_edge.audits.room import AuditRoom
from firstline_edge.cache import ResultCache
from firstline_edge.cascade import Cascade, CascadeOptions
from firstline_edge.case import Trail
from firstline_edge.complaints import Complaints
from firstline_edge.disk_cache import DiskCache
from firstline_edge.links.chain import LinkChain, Toll, free
from firstline_edge.models import HeldModel, Models, open_models
from firstline_edge.outbox.announcer import Announcer
from firstline_edge.outbox.delivery import Delivery
from firstline_edge.outbox.endings import Endings
from firstline_edge.outbox.patient import PatientOutbox
from firstline_edge.outbox.store import Outbox
from firstline_edge.purse import open_spending
from firstline_edge.recorder import Recorder
from firstline_edge.router import Router
from firstline_edge.settings import EdgeSettings
from firstline_edge.spending import denied
from firstline_edge.state import StateDirectory
from firstline_edge.wiring import Links, hedge_options, link_names, make_policy, open_links
from firstline_edge.workers import Workers

LOCAL_PRINCIPAL = "local"
PASSED_ON_INPUT = "image"
"""What the short way calls the input of a model that this device does not hold."""


class EdgeAgent:
    """Answers on the device what may be answered there. An async context manager, and a `http.DataPlane`.

    Args:
        settings: see `settings.py`.
        clock: for tests.
    """

    server_name = "firstline-edge"

    def __init__(self, settings: EdgeSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.server_version = installed_version("firstline")
        self.limits = Limits(
            body_bytes=settings.api.body_limit_bytes,
            json_bytes=min(DEFAULT_LIMITS.json_bytes, settings.api.body_limit_bytes),
        )
        self.metrics = RequestMetrics("edge")
        self.complaints = Complaints()
        self.endings = Endings()
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._ready = False
        self._resources = contextlib.AsyncExitStack()

    async def __aenter__(self) -> EdgeAgent:
        try:
            await self._start()
        except BaseException:
            await self._resources.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ready = False
        await self._resources.aclose()

    async def _start(self) -> None:
        settings, clock, resources = self.settings, self._clock, self._resources
        options = RuntimeOptions(providers=settings.models.providers, threads=settings.models.threads)
        check_options(options, "models.providers")
        self.state = StateDirectory(settings.state_dir)
        resources.callback(self.state.close)

        workers = Workers(settings.models.workers, settings.models.queue_limit, clock)
        self.models: Models = open_models(
            [Path(directory) for directory in settings.models.directories],
            options,
            workers,
        )
        resources.callback(self.models.close)
        resources.callback(workers.close)  # before the models, which its last runs use

        disk = None
        if settings.cache.disk_limit_bytes:
            disk = DiskCache(
                self.state.cache_path,
                limit_bytes=settings.cache.disk_limit_bytes,
                ttl_s=settings.cache.ttl_s,
                clock=clock,
            )
        self.cache = ResultCache(
            limit_bytes=settings.cache.memory_limit_bytes, ttl_s=settings.cache.ttl_s, disk=disk, clock=clock
        )
        resources.callback(self.cache.close)

        self._recorder = Recorder(
            metrics=self.metrics,
            decisions_path=self.state.decisions_path,
            decisions_limit_bytes=settings.log.decisions_limit_bytes,
            log_requests=settings.log.requests,
            clock=clock,
        )
        resources.callback(self._recorder.close)

        self.outbox = PatientOutbox(self._open_outbox, clock)
        resources.callback(self.outbox.close)

        self.audits = AuditRoom(settings.audit, self.state, self.models, clock)
        resources.push_async_callback(self.audits.close)

        self.spending = open_spending(
            settings,
            self.state.spending_path,
            clock,
            link_names=link_names(settings.links),
            link=lambda: self.links.in_use,
        )
        toll: Toll = free
        if self.spending is not None:
            toll = self.spending.paid
            resources.callback(self.spending.save)

        self.links: Links = await open_links(settings, partial(report.birth_of, self), self.limits, clock, toll)
        resources.push_async_callback(self.links.close)

        auditor = self.audits.auditor(
            self.cache,
            self.links,
            ample=lambda: self.spending is None or self.spending.ample,
            on_drawn=self._recorder.drawn,
            on_finding=self._recorder.audited,
        )
        standings = self.audits.standings
        self._router = Router(
            min_threshold=settings.policy.min_threshold,
            chosen=make_policy(settings.policy),
            standings=standings,
            clock=clock,
        )
        self._cascade = Cascade(
            models=self.models,
            cache=self.cache,
            cloud=self.links.chain,
            promises=self.outbox,
            router=self._router,
            options=CascadeOptions(
                limit_bytes=settings.policy.limit_bytes,
                default_timeout_s=settings.policy.default_timeout_ms / 1000,
                reserve_s=settings.policy.deadline_reserve_ms / 1000,
            ),
            clock=clock,
            complaints=self.complaints,
            spending=self.spending,
            hedge=hedge_options(settings),
            audits=auditor,
            heed=standings.heed,
            traffic=self.audits.traffic,
        )
        resources.push_async_callback(self._cascade.close)
        works = [self._deliver(), self.audits.run(auditor, self.links)]
        works += [self.spending.keep()] if self.spending is not None else []
        for work in works:
            resources.push_async_callback(_cancelled, asyncio.create_task(work))
        report.add_gauges(self)
        self._ready = True

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answers one request; see `Cascade.infer` for what it raises. The error names the request's id."""
        if not self._ready:
            raise NotReadyError("The agent is starting or stopping; try again in a moment.", retry_after_s=1.0)
        started_s = time.perf_counter()
        trail = Trail()
        try:
            response = await self._cascade.infer(request, trail)
        except FirstlineError as error:
            # Those who asked the same together may share the error: whoever turns it into a reply does so at once.
            error.request_id = request.request_id
            self._recorder.refused(request, error, trail, time.perf_counter() - started_s)
            raise
        self._recorder.answered(
            request,
            response,
            time.perf_counter() - started_s,
            cause=trail.cause,
            wait=request.wait.value if request.wait is Wait.FIRST else "",
            **denied(trail.denials),
            **self._routing(request),
        )
        return response

    async def infer_file(
        self, model: str, content: bytes, *, content_type: str = "", **preferences: str
    ) -> InferResponse:
        """Answers for an encoded image, or JSON, as it lies in a file.

        Args:
            model: the bundle's name.
            content: the file's bytes.
            content_type: as over HTTP; only a multipart form is told apart.
            preferences: `route`, `privacy`, `wait`, and `timeout` in microseconds, as over HTTP.
        """
        request = short.request_from_file(
            model,
            self.short_metadata(model),
            content,
            content_type,
            preferences,
            now_s=self._clock.monotonic_s(),
            principal=LOCAL_PRINCIPAL,
            limits=self.limits,
        )
        return await self.infer(request)

    async def answer(self, request_id: str, principal: str = LOCAL_PRINCIPAL) -> InferResponse:
        """The answer that was promised a correction: provisional until that came, final or expired after.

        Raises:
            UnknownAnswerError: nothing was promised to this principal under this id.
        """
        return await self.outbox.answer(request_id, principal)

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        """Whether any request could be answered: with an edge model that runs, or through a link."""
        runs = any(held.edge is not None for held in self.models.all) if self._ready else False
        return self._ready and (runs or self.links.chain is not None)

    def model_ready(self, model: str, version: str) -> bool:
        held = self.models.find(model, version)
        if held is None:
            raise self._unknown(model, version)
        return held.edge is not None or self.links.available

    def metadata(self, model: str, version: str) -> ModelMetadata:
        held = self.models.find(model, version)
        if held is None:
            raise self._unknown(model, version)
        return held.metadata

    def short_metadata(self, model: str) -> ModelMetadata:
        """What the short way in takes a body for.

        Of a model that this device does not hold it knows nothing: the body is then passed on as one encoded image,
        which is what the short way is mostly used with. The gateway refuses it where its model takes something else.

        Raises:
            UnknownModelError: not held, and no gateway to ask.
        """
        held = self.models.find(model)
        if held is not None:
            return held.metadata
        if self.links.chain is None:
            raise self._unknown(model, "")
        return ModelMetadata(model, (), "", (TensorSpec(PASSED_ON_INPUT, "BYTES", (-1,)),), ())

    def labels(self, model: str, version: str) -> tuple[str, ...]:
        """The labels of a model, empty where this device does not hold it."""
        held = self.models.find(model, version)
        return held.manifest.labels if held is not None else ()

    def status(self) -> dict[str, Any]:
        """How the agent is, see `report.py`."""
        return report.status_of(self, self._clock.monotonic_s() - self._started_s)

    @property
    def cascade(self) -> Cascade:
        """What answers, and counts what it did about deadlines."""
        return self._cascade

    def threshold(self, held: HeldModel) -> float:
        """The score from which an edge answer of this model is kept."""
        return self._router.threshold(held)

    def uncertified(self, held: HeldModel) -> str:
        """Why answers of this model are not certified, as part of a sentence; "" where they are."""
        if not self._router.policy.certifies:
            return f"policy.kind is {self._router.policy.kind}, which no certificate covers"
        watched = self.audits.standings.find(held)
        if watched is not None and watched.record.alarmed:
            return f"an alarm voids its certificate: {watched.record.cause}"
        return held.edge.uncertified if held.edge is not None else ""

    def _open_outbox(self) -> Outbox:
        announcing = any(link.kind == "mqtt" for link in self.settings.links)
        return Outbox(
            self.state.outbox_path,
            self.settings.outbox,
            announcing=announcing,
            endings=self.endings,
            clock=self._clock,
        )

    async def _deliver(self) -> None:
        """Keeps the outbox's promises, once the disk gives it; without any link they still end by their age."""
        outbox, rng = await self.outbox.opened(), random.Random()  # noqa: S311 (jitter)
        chain = self.links.chain or LinkChain([], [], self._clock)
        delivery = Delivery(
            outbox,
            chain,
            rows.merge,
            self._clock,
            rng,
            max_age_s=self.settings.outbox.max_age_s,
            on_correction=self._recorder.corrected,
            complaints=self.complaints,
            heed=self._heed,
            retries=chain.retries,
        )
        self.outbox.on_put = delivery.hurry
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(delivery.run(), name="delivery")
            if self.links.mqtt:
                announcer = Announcer(outbox, self.links, self._clock, rng)
                tasks.create_task(announcer.run(), name="announcer")

    def _heed(self, request: InferRequest, notice: ContractNotice | None) -> None:
        held = self.models.find(request.model, request.version)
        if held is not None:
            self.audits.standings.heed(held, notice)

    def _routing(self, request: InferRequest) -> dict[str, Any]:
        """What the request's scores were held against."""
        held = self.models.find(request.model, request.version)
        if held is None:
            return {"threshold": None}
        certificate = held.edge.certificate if held.edge is not None else None
        threshold = self.threshold(held)
        return {
            "threshold": threshold if math.isfinite(threshold) else None,
            "by": certificate.by if certificate is not None else "",
            "certificate": certificate and certificate.promise,
            "uncertified": self.uncertified(held),
        }

    def _unknown(self, model: str, version: str) -> UnknownModelError:
        names = ", ".join(sorted({held.manifest.name for held in self.models.all})) or "none"
        wanted = shown(model) + (f" in version {shown(version)}" if version else "")
        return UnknownModelError(f"This device holds no model {wanted}; it holds: {names}.")


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Ends a background task; if it had failed before, that shows here and not nowhere."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
