"""A cascade without files and networks: a model that repeats its input, a gateway and an outbox in memory."""

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from support.budgets import unpriced_spending
from support.event_certificates import about_events

from bench.support.bundles import with_certificate
from firstline_core.bundle.loading import Prediction
from firstline_core.bundle.manifest import Manifest, Model, Policy
from firstline_core.bundle.store import Bundle
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, InferenceError, InvalidTensorError, ProtocolError
from firstline_core.ids import new_request_id
from firstline_core.processing.decoding import FileDecoding
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.routing import policy
from firstline_core.routing.certificate import GroupCertificate, Histogram
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.base import DeclaredOutputs
from firstline_core.tasks.classification import Classification
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    Arrays,
    Attempt,
    ContractNotice,
    InferRequest,
    InferResponse,
    Privacy,
    Reason,
    Status,
    Tensor,
    Tier,
)
from firstline_edge.adaptation.variants import VariantChooser
from firstline_edge.audits.audit_sender import AuditSender
from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.certificate_states import CertificateStates, MonitoredCertificate
from firstline_edge.audits.samples import SampleLog
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.cascade import Cascade, EdgeRuns, RowDecisions, TierRouter
from firstline_edge.cascade.escalation import Escalation
from firstline_edge.cascade.hedging import Hedging
from firstline_edge.cloud.client import CloudClient, LiveTraffic, ModelRefusals
from firstline_edge.models.models import DeviceModel, EdgeModel, Models
from firstline_edge.models.workers import Workers
from firstline_edge.outbox.outbox import OutboxItem
from firstline_edge.requests.context import RequestContext, Row
from firstline_edge.requests.full_answers import check_answer
from firstline_edge.requests.recorder import EndedAudit
from firstline_edge.settings.settings import AuditSection, HedgeSection

THRESHOLD = 0.8
SURE, UNSURE = 0.95, 0.6
RESERVE_S = 0.02


def manifest(*, full: bool = True, threshold: float = THRESHOLD, full_reads: tuple[str, ...] = ("x",)) -> Manifest:
    """A bundle whose edge model reads the input x."""
    return Manifest(
        name="m",
        version=3,
        task=Classification(("yes", "no")),
        inputs=tuple([InputSpec(name, "FP32", (-1, 1)) for name in dict.fromkeys(("x", *full_reads))]),
        edge=(_model("edge", "a"),),
        full=_model("full", "b", full_reads) if full else None,
        policy=Policy(threshold=threshold),
    )


def _model(name: str, digit: str, reads: tuple[str, ...] = ("x",)) -> Model:
    inputs = tuple([ModelInput(each, each) for each in reads])
    return Model(name, Artefact(f"{name}.onnx", digit * 64, 1), "onnx", "fp32", inputs)


class Echo:
    """An edge model whose input is the probability of "yes"; negative inputs are invalid, inputs above 1 fail."""

    has_costs = False
    row_s = 0.0

    def __init__(self, manifest: Manifest) -> None:
        self.model = manifest.edge[0]
        self.task = manifest.task
        self.digest = manifest.edge[0].digest
        self.input_names = manifest.edge[0].input_names
        self.runtime = SimpleNamespace(provider="echo")
        self.runs: list[list[float]] = []
        self.gate = threading.Event()
        self.gate.set()

    def predict(self, inputs: Arrays) -> Prediction:
        values = inputs["x"][:, 0]
        self.runs.append([round(float(value), 3) for value in values])
        self.gate.wait()
        if (values < 0).any():
            raise InvalidTensorError("Row 0 is negative.")
        if (values > 1).any():
            raise InferenceError("The runtime failed.")
        return Prediction({PROBABILITIES: np.stack([values, 1 - values], axis=1).astype(np.float32)}, {})

    def close(self) -> None:
        pass


class FakeCloud:
    """A gateway that is certain of "no", but where it `agrees`, after `gate` opens; or fails with `error`."""

    def __init__(self, digest: str, *, linked: bool = True) -> None:
        self.digest = digest
        self.linked = linked
        self.error: FirstlineError | None = None
        self.gate: asyncio.Event | None = None
        self.spoil: Callable[[InferResponse], InferResponse] | None = None
        self.agrees: Callable[[float], bool] = lambda _: False
        self.notice: ContractNotice | None = None
        self.requests: list[InferRequest] = []
        self.deadlines_s: list[float | None] = []
        self.p95_s: float | None = None
        self.cancelled = 0
        self.available = linked

    def predicted_s(self, size_bytes: int) -> float | None:
        return self.p95_s

    async def infer(
        self,
        request: InferRequest,
        deadline_s: float | None,
        attempts: list[Attempt],
        outputs: DeclaredOutputs | None = None,
    ) -> InferResponse:
        self.requests.append(request)
        self.deadlines_s.append(deadline_s)
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.error is not None:
            raise self.error
        answer = full_answer(request, self.digest, self.agrees)
        if self.notice is not None and answer.answer is not None:
            answer = replace(answer, answer=replace(answer.answer, contract=self.notice))
        if self.spoil is not None:
            answer = self.spoil(answer)
        try:
            check_answer(request, answer, outputs)
        except ProtocolError as error:
            attempts.append(Attempt(Tier.CLOUD, error.code, 1.0))
            raise
        attempts.append(Attempt(Tier.CLOUD, "ok", 1.0))
        return answer


def full_answer(request: InferRequest, digest: str, agrees: Callable[[float], bool] = lambda _: False) -> InferResponse:
    probabilities = np.tile(np.array([[0.01, 0.99]], np.float32), (request.rows, 1))
    yes = [agrees(round(float(value), 3)) for value in request.inputs[0].array[:, 0]]
    probabilities[yes] = probabilities[yes][:, ::-1]
    answer = Answer(request.request_id, Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, digest)
    outputs = (Tensor(PROBABILITIES, probabilities),)
    return InferResponse(request.model, "3", outputs, id=request.request_id, answer=answer)


class FakePromises:
    """An outbox in memory, which refuses with `error`."""

    def __init__(self) -> None:
        self.items: list[OutboxItem] = []
        self.error: FirstlineError | None = None

    async def put(self, item: OutboxItem) -> None:
        if self.error is not None:
            raise self.error
        self.items.append(item)


class NoAudits:
    """Audits that never sample."""

    def observe_decisions(self, request: InferRequest, model: DeviceModel, rows: Sequence[Row]) -> None:
        pass

    def observe_escalations(self, model: DeviceModel, rows: Sequence[Row]) -> None:
        pass


class NoContracts:
    """Contracts that never alarm."""

    def alarm_of(self, model: DeviceModel) -> None:
        return None

    def apply_notice(self, model: DeviceModel, notice: ContractNotice | None) -> None:
        pass


class Scene:
    """A cascade and its collaborators, which a test can inspect and break."""

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        row_ms: float = 0.01,
        queue_limit: int = 64,
        linked: bool = True,
        loads: bool = True,
        full: bool = True,
        threshold: float = THRESHOLD,
        min_threshold: float = 0.0,
        cache: ResultCache | None = None,
        certified: float | None = None,
        events: Mapping[str, float] | None = None,
        groups: Mapping[str, GroupCertificate] | None = None,
        hedge: HedgeSection | None = None,
        histogram: Histogram | None = None,
        audit: AuditSection | None = None,
        folder: Path = Path("never"),
        seed: int = 0,
        chosen: policy.Policy = policy.CERTIFIED,
        spending: Spending | None = None,
        full_reads: tuple[str, ...] = ("x",),
    ) -> None:
        self.clock = clock
        spending = spending or unpriced_spending(clock)
        described = manifest(full=full, threshold=threshold, full_reads=full_reads)
        certificate = None
        if certified is not None:
            promise = about_events(events) if events is not None else {}
            if groups is not None:
                promise = {"by": "class", "groups": groups}
            variant = with_certificate(described.edge[0], described, certified, histogram=histogram, **promise)
            certificate = variant.certificate
        self.workers = Workers(1, queue_limit, clock)
        self.echo = Echo(described)
        edge = EdgeModel(
            self.echo,
            lambda outputs, _evidence: outputs[PROBABILITIES].max(axis=1),
            "evidence",
            row_ms,
            4,
            self.workers,
            certificate,
        )
        self.held = DeviceModel(Bundle(Path(), described), edge if loads else None)
        self.cloud = FakeCloud(described.full_digest, linked=linked)
        self.promises = FakePromises()
        self.cache = cache or ResultCache(limit_bytes=1 << 20, ttl_s=60, disk=None, clock=clock)
        self.models = Models([self.held])
        self.certificates: CertificateStates | None = None
        self.auditor: Auditor | None = None
        self.ended_audits: list[EndedAudit] = []
        self.budgets = SimpleNamespace(ample=True)
        traffic = LiveTraffic()
        if audit is not None:
            self.samples_path = folder / "samples.jsonl"
            self.samples = SampleLog(self.samples_path, audit.samples_limit_bytes)
            self.certificates = CertificateStates(folder / "certificates.json", [self.held], self.samples, audit, clock)
            self.sender = AuditSender(
                self.cloud, self.cache, self.certificates, traffic, clock, on_ended=self.ended_audits.append
            )
            self.auditor = Auditor(
                self.sender,
                self.certificates,
                audit,
                clock,
                random.Random(seed),
                certifies=chosen.certifies,
                spending=self.budgets,
            )
        self.router = TierRouter(
            min_threshold=min_threshold, policy=chosen, clock=clock, certificates=self.certificates
        )
        self.gateway = CloudClient(
            self.cloud,
            self.cache,
            clock,
            ModelRefusals(clock),
            contracts=self.certificates if self.certificates is not None else NoContracts(),
            traffic=traffic,
        )
        self.hedging = Hedging(self.gateway, clock, hedge or HedgeSection(enabled=False), 0.02, spending)
        self.edge_runs = EdgeRuns(self.cache, spending, FileDecoding(1, 1 << 28, clock), clock)
        audits = self.auditor or NoAudits()
        self.cascade = Cascade(
            models=self.models,
            chooser=VariantChooser(self.gateway, clock, RESERVE_S, lambda _: 0.0),
            edge_runs=self.edge_runs,
            decisions=RowDecisions(self.router, self.cache, spending, clock),
            hedging=self.hedging,
            escalation=Escalation(
                self.gateway, self.promises, audits, self.edge_runs.compute, clock, reserve_s=RESERVE_S
            ),
            audits=audits,
            limit_bytes=64,
        )

    def hold_also(self, name: str) -> None:
        """Another bundle, with the same edge model."""
        other = DeviceModel(Bundle(Path(), msgspec.structs.replace(self.held.manifest, name=name)), self.held.edge)
        self.models.put(other)

    async def infer(self, *values: float, **fields: Any) -> InferResponse:
        return await self.answer(request(*values, **fields))

    async def answer(self, request: InferRequest) -> InferResponse:
        return await self.cascade.infer(self.context(request))

    def context(self, request: InferRequest) -> RequestContext:
        """A request that has just arrived; without a deadline it has two seconds."""
        deadline_s = self.clock.monotonic_s() + 2 if request.deadline_s is None else request.deadline_s
        return RequestContext(request, deadline_s)

    @property
    def monitored(self) -> MonitoredCertificate:
        """The certificate in the field, of a scene with audits."""
        assert self.certificates is not None
        (found,) = self.certificates
        return found

    @property
    def sent_rows(self) -> list[list[float]]:
        """The rows that were sent, by request."""
        return [[round(float(value), 3) for value in sent.inputs[0].array[:, 0]] for sent in self.cloud.requests]

    async def close(self) -> None:
        self.echo.gate.set()
        await self.hedging.close()
        await self.edge_runs.close()
        await self.gateway.close()
        self.workers.close()


MakeScene = Callable[..., Scene]
"""The fixture `make_scene`: a `Scene` with these arguments, which is closed after the test."""


def request(*values: float, **fields: Any) -> InferRequest:
    """One row for each value, the probability that the edge model will give "yes"."""
    tensor = Tensor("x", np.array(values, np.float32).reshape(-1, 1))
    defaults = {"model": "m", "request_id": new_request_id(), "principal": "local", "privacy": Privacy.ANY}
    return InferRequest(inputs=(tensor,), **(defaults | fields))


def yes(response: InferResponse) -> list[float]:
    """The probability of "yes", row by row: the input's own from the edge, 0.01 from the full model."""
    return [round(float(row[0]), 3) for row in response.output("probabilities")]


def answer_of(response: InferResponse) -> Answer:
    return response.answer


def outcomes(response: InferResponse) -> list[tuple[str, str]]:
    return [(attempt.tier.value, attempt.outcome) for attempt in answer_of(response).attempts]


def tiers(rows: Sequence[Any]) -> list[Tier]:
    return [row.tier for row in rows]
