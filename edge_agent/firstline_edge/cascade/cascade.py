"""The way of one request: the edge answer if it can be trusted, the full model's answer otherwise.

    policy.before -> cache -> edge model -> confidence -> router
       EDGE   -> answer
       CLOUD  -> cache -> gateway (until the deadline) -> answer
                 no link, late, or expected to be late -> the edge answer now, the request in the outbox, the correction
                                                          later

`policy.before` looks at the request alone, so it comes before the cache. Each row of a batch is decided separately, and
only escalated rows are sent to the gateway (`escalation.py`). A hedge sends every row that the edge model must compute
(`hedging.py`). The cache stores model outputs, never decisions: the policy decides each hit.
The cascade knows no transport, no file format and no metric.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from firstline_core.bundle.loaded_model import declared_inputs
from firstline_core.bundle.manifest import Manifest
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    DeadlineExceededError,
    FirstlineError,
    InferenceError,
    InvalidTensorError,
    QueueFullError,
    SheddingError,
    UnknownModelError,
)
from firstline_core.processing.cost import NO_COST, MeasuredInputs, is_light
from firstline_core.processing.decoding import FileDecoding
from firstline_core.routing import policy
from firstline_core.routing.policy import CERTIFIED, Policy, PolicyState, RowEvidence, TierDecision
from firstline_core.types import InferResponse, Privacy, Reason, Tier, take_rows
from firstline_edge.adaptation.variants import VariantChooser
from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.certificate_states import CertificateStates, raised_threshold
from firstline_edge.audits.records import VALID, CertificateState
from firstline_edge.budgets.from_settings import replace_budgets
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.escalation import Escalation, shedding_error
from firstline_edge.cascade.hedging import Hedge, Hedging
from firstline_edge.models.models import DeviceModel, EdgeModel, Models
from firstline_edge.requests.context import ModelOutput, RequestContext, Row, attempt, result_key, rows_of
from firstline_edge.requests.deadline import within
from firstline_edge.requests.single_flight import SingleFlight
from firstline_edge.settings.settings import EdgeSettings, PolicySection

# Looking a member up in its enumeration takes as long as reading a clock.
_EDGE, _CACHE, _CLOUD = Tier.EDGE, Tier.CACHE, Tier.CLOUD
_LOCAL_ONLY = Privacy.LOCAL_ONLY
_NO_ROWS = ((), (0,))  # what the shape of a scalar, or of no rows, begins with
_CONFIDENT, _DENIED = TierDecision(_EDGE, Reason.CONFIDENT), TierDecision(_EDGE, Reason.BUDGET)
_TOO_HEAVY = TierDecision(_CLOUD, Reason.HEAVY)
_LATE = "This device's model was not done before the request's deadline; give it more time."


@dataclass(eq=False, kw_only=True)
class Cascade:
    """Decides which tier answers a request, and returns the answer.

    Args:
        models: the models on this device.
        chooser: chooses the variant of a model.
        edge_runs: runs the edge model.
        decisions: decides each row by the edge model's output.
        hedging: asks the full model before the edge model has answered, if that is the only way to be in time.
        escalation: asks the full model.
        audits: draws answers for audits.
        limit_bytes: the largest payload that this device computes itself.
    """

    models: Models
    chooser: VariantChooser
    edge_runs: EdgeRuns
    decisions: RowDecisions
    hedging: Hedging
    escalation: Escalation
    audits: Auditor
    limit_bytes: int

    async def infer(self, context: RequestContext) -> InferResponse:
        """Answers one request.

        Args:
            context: of a request that has just begun; filled in on the way.

        Raises:
            RequestError: no tier may answer the request, or none can answer it in this form.
            LinkError: only the gateway can answer, and no link works.
            CapacityError: the tiers that can answer cannot do so in time, or not now.
            RuntimeFailure: the model that had to answer failed.
        """
        request = context.request
        if not request.inputs or [tensor for tensor in request.inputs if tensor.array.shape[:1] in _NO_ROWS]:
            raise InvalidTensorError(f"The request to model '{request.model}' has no rows; send one at least.")
        model = self.models.find(request.model, request.version)
        if model is None:
            return await self._pass_on(context)
        model = self._variant_of(context, model)
        edge = model.edge
        names = edge.loaded.input_names if edge is not None else tuple(model.full_inputs)
        checked_later = names if edge is not None else ()
        context.inputs = declared_inputs(request, model.manifest, names, checked_later=checked_later)
        edge_digest, size_bytes = "", 0
        if edge is not None:
            edge_digest, size_bytes = edge.digest, edge.size_bytes(request)
            context.row_ms = edge.measured_ms(size_bytes / request.rows)

        # 1. What the request alone decides. A request that is bound to this device is refused if it cannot run here.
        decision = policy.before(
            request.route,
            request.privacy,
            holds_model=edge is not None,
            partial=not context.inputs.keys() >= model.full_inputs,
            size_bytes=size_bytes,
            limit_bytes=self.limit_bytes,
        )
        asks_edge = edge is not None and (decision is None or decision.tier is _EDGE)
        if asks_edge:
            context.turn_to(_EDGE, None if decision is None else decision.reason)
        context.rows = rows_of(context.inputs, names, model.full_inputs, edge_digest)

        hedge: Hedge | None = None
        missing: Sequence[Row] = ()
        try:
            # 2. The edge model's output, from the cache or by running the model.
            if edge is not None and asks_edge:
                missing = self.edge_runs.fill_from_cache(context, context.rows)
                if missing:
                    if decision is None and not context.shedding and not edge.quick(len(context.rows) * context.row_ms):
                        hedge = self.hedging.start(request, model, edge, missing, context.deadline_s)
                    await self._run_edge(context, edge, missing, hedge, bound_to_device=decision is not None)

            # 3. Row by row, the edge answer or an escalation. An output of the full model may be in the cache.
            escalated = self.decisions.decide(context, model, decision, hedge)
            self.audits.observe_decisions(request, model, context.rows)
            if edge is not None and missing and decision is None:
                edge.escalation_rate.add(hit=bool(escalated) or (hedge is not None and hedge.joined))
            if hedge is not None:
                self.hedging.conclude(hedge, escalated, context.attempts)

            # 4. The full model for the escalated rows.
            return await self.escalation.ask(context, model, escalated) if escalated else context.answer(model.version)
        finally:
            if hedge is not None:
                self.hedging.cancel(hedge)

    async def _pass_on(self, context: RequestContext) -> InferResponse:
        """Returns the gateway's answer for a model that this device does not hold."""
        request, client = context.request, self.escalation.client
        policy.before(request.route, request.privacy, holds_model=False, size_bytes=0, limit_bytes=self.limit_bytes)
        if not client.linked:
            unknown = self.models.unknown(request.model, request.version)
            raise UnknownModelError(f"{unknown.message} To ask a gateway for it, add a [[links]] section.")
        context.turn_to(_CLOUD, Reason.HEAVY)
        return await client.pass_on(request, context.deadline_s, context.attempts)

    def _variant_of(self, context: RequestContext, model: DeviceModel) -> DeviceModel:
        """Returns the model with the variant that answers this request."""
        context.decision_record = {}
        if model.variants is None:
            return model
        choice = self.chooser.choose(context.request, context.deadline_s, model.variants)
        context.decision_record, context.shedding = choice.facts, choice.sheds
        return choice.model

    async def _run_edge(
        self,
        context: RequestContext,
        edge: EdgeModel,
        missing: Sequence[Row],
        hedge: Hedge | None,
        *,
        bound_to_device: bool,
    ) -> None:
        """Runs the edge model; its failure is an error only if no other tier may answer.

        Args:
            context: the request.
            edge: the variant to run.
            missing: rows that the cache does not know.
            hedge: the early call to the full model, if there is one.
            bound_to_device: whether the request is bound to this device.

        Raises:
            InferenceError, QueueFullError, SheddingError: the model did not run, and the request is bound to this
                device.
            DeadlineExceededError: the model was not done in time, and no hedge has answered.
        """
        try:
            await self.edge_runs.run(context, edge, missing, hedge)
        except (InferenceError, QueueFullError, SheddingError):
            if bound_to_device:
                raise
        except DeadlineExceededError:
            if hedge is None or not hedge.answered:
                raise


@dataclass(eq=False)
class EdgeRuns:
    """Runs the edge model; outputs come from the cache, and are stored there.

    Args:
        cache: model outputs.
        spending: pays for runs.
        decoding: decodes large images.
        clock: for deadlines.
    """

    cache: ResultCache
    spending: Spending
    decoding: FileDecoding
    clock: Clock
    _runs: SingleFlight[ModelOutput] = field(default_factory=SingleFlight, init=False)

    async def close(self) -> None:
        """Cancels runs whose callers have left."""
        await self._runs.close()

    def fill_from_cache(self, context: RequestContext, rows: Sequence[Row]) -> Sequence[Row]:
        """Fills in the edge outputs that the cache knows, and returns the other rows."""
        started_s = self.clock.monotonic_s()
        missing: list[Row] = []
        for row in rows:
            row.edge, row.edge_tier = self.cache.get(row.edge_key), _CACHE
            if row.edge is None:
                missing.append(row)
        if len(missing) < len(rows):
            context.attempts.append(attempt(self.clock, _CACHE, "ok", started_s))
        return missing

    async def compute(self, context: RequestContext, edge: EdgeModel, rows: Sequence[Row]) -> None:
        """Fills in the edge outputs of rows, from the cache or by running the model."""
        missing = self.fill_from_cache(context, rows)
        if missing:
            await self.run(context, edge, missing, None)

    async def run(self, context: RequestContext, edge: EdgeModel, rows: Sequence[Row], hedge: Hedge | None) -> None:
        """Runs the edge model on rows that the cache does not know, and stores its outputs in the cache.

        Raises:
            SheddingError: this device computes nothing at the moment.
            FirstlineError: the model failed or was not done in time; see `infer`.
        """
        private = context.request.privacy is _LOCAL_ONLY
        started_s = self.clock.monotonic_s()
        try:
            if context.shedding:
                raise shedding_error(context.shedding)
            outputs = await self._outputs(context, edge, rows, hedge)
        except FirstlineError as error:
            context.attempts.append(attempt(self.clock, _EDGE, error.code, started_s))
            raise
        context.attempts.append(attempt(self.clock, _EDGE, "ok", started_s))
        if not private:
            self.spending.charge_runs(len(rows))
        for row, output in zip(rows, outputs, strict=True):
            row.edge, row.edge_tier = output, _EDGE
            self.cache.put(row.edge_key, output, private=private)

    async def _outputs(
        self, context: RequestContext, edge: EdgeModel, rows: Sequence[Row], hedge: Hedge | None
    ) -> Sequence[ModelOutput]:
        """Runs the edge model, on the event loop or in a thread; equal rows in threads are computed once."""
        request, inputs = context.request, context.inputs
        cost, light = NO_COST, True
        if edge.loaded.has_costs:
            cost = await self.decoding.cost(edge.loaded, inputs, request.size_bytes, request.principal)
            light = is_light(cost)
        if light and edge.quick(len(context.rows) * context.row_ms):
            # It runs at once, so that no other request can ask for the same row meanwhile.
            if len(rows) < len(context.rows):
                taken = [row.position for row in rows]
                inputs, cost = take_rows(inputs, taken), cost.take(taken)
            measured = MeasuredInputs(inputs, cost) if edge.loaded.has_costs else inputs
            return edge.run(measured, len(rows) * context.row_ms / 1000)

        async def compute(positions: Sequence[int]) -> list[ModelOutput]:
            taken = [rows[position].position for position in positions]
            measured_s = len(positions) * context.row_ms / 1000
            async with self.decoding.prepared(
                edge.loaded, take_rows(inputs, taken), cost.take(taken), request.principal, context.deadline_s
            ) as prepared:
                return await edge.run_in_thread(prepared, context.deadline_s, measured_s)

        async def run_until(until_s: float) -> list[ModelOutput]:
            run = self._runs.run([row.edge_key for row in rows], compute)
            return await within(self.clock, until_s, run, _LATE)

        if hedge is not None:
            try:
                return await run_until(hedge.until_s)
            except DeadlineExceededError:
                if hedge.answered:  # the full model's answer is still in time
                    raise
        return await run_until(context.deadline_s)


@dataclass(eq=False)
class RowDecisions:
    """Decides each row by the edge model's output, and answers the rows that need no escalation.

    Args:
        router: compares scores with thresholds.
        cache: outputs of the full model.
        spending: decides which escalations are worth their price.
        clock: for durations.
    """

    router: TierRouter
    cache: ResultCache
    spending: Spending
    clock: Clock

    def decide(
        self, context: RequestContext, model: DeviceModel, by_request: TierDecision | None, hedge: Hedge | None
    ) -> list[Row]:
        """Answers the rows that need no escalation, and notes the thresholds; returns the other rows.

        Args:
            context: the request, with one row at least.
            model: with the variant that ran.
            by_request: the policy's decision by the request alone; None to decide by the edge output.
            hedge: the early call to the full model, if there is one.
        """
        escalated: list[Row] = []
        for row in context.rows:
            row.group = model.group(row.edge)
            terms = self.router.terms(model, row.group)
            if not self._decide_row(context, model, row, by_request, hedge, terms=terms):
                escalated.append(row)
        context.decision_record = {**terms.record, **context.decision_record}  # which is the same for all rows
        return escalated

    def _decide_row(
        self,
        context: RequestContext,
        model: DeviceModel,
        row: Row,
        by_request: TierDecision | None,
        hedge: Hedge | None,
        *,
        terms: AcceptanceTerms,
    ) -> bool:
        """Decides one row, and writes its answer; returns False if the full model must answer it.

        The order: the policy accepts the edge answer, or escalates the row. A hedge or the cache may have the full
        model's answer already. A budget may deny the escalation. An alarm may have no quota left for it.

        Args:
            context: the request.
            model: with the variant that ran.
            row: gains its reason, and its answer.
            by_request: the policy's decision by the request alone; None to decide by the edge output.
            hedge: the early call to the full model, if there is one.
            terms: for answers such as this one.
        """
        edge, router = model.edge, self.router
        decision = by_request or router.decide(model, row, terms)
        row.policy_reason = decision.reason
        if decision.tier is _EDGE and edge is not None:
            row.accept_edge(decision.reason, edge.loaded.digest, certified=terms.certify(decision))
            return True
        if self._recall_full(context, model, row, hedge):
            return True
        if by_request is not None or edge is None:
            return False
        if self._denied(context, row, decision):
            # The budget denied it. If the policy wanted it only for its value, the score accepts the edge answer.
            confident = row.score >= terms.threshold and not decision.demanded
            accepted = _CONFIDENT if confident else _DENIED
            unreachable = accepted is _DENIED and not self.spending.reachable
            reason = Reason.LINK_DOWN if unreachable else accepted.reason
            row.accept_edge(reason, edge.loaded.digest, certified=terms.certify(accepted))
            return True
        if not router.may_escalate(model, row, decision):
            row.accept_edge(Reason.BUDGET, edge.loaded.digest)
            return True
        return False

    def _recall_full(self, context: RequestContext, model: DeviceModel, row: Row, hedge: Hedge | None) -> bool:
        """Answers the row with an output of the same full model, if one is known."""
        digest, attempts = model.manifest.full_digest, context.attempts
        if hedge is not None and hedge.take(row, attempts):
            return True
        started_s = self.clock.monotonic_s()
        output = self.cache.get(result_key(row.content, digest)) if digest else None
        if output is None:
            return False
        row.accept_full(output, _CACHE, row.policy_reason, digest)
        if hedge is not None:
            hedge.note_cached(row)
        if not any(tried.tier is _CACHE for tried in attempts):
            attempts.append(attempt(self.clock, _CACHE, "ok", started_s))
        return True

    def _denied(self, context: RequestContext, row: Row, decision: TierDecision) -> bool:
        """Returns whether an escalation of the row is not worth its price, and notes why."""
        if row.edge is None:
            return False
        size_bytes = context.request.size_bytes / context.request.rows
        value = policy.value_of(row.edge.value, row.score)
        denial = self.spending.denial(size_bytes, value, demanded=decision.demanded)
        if denial is not None:
            context.denials[row.position] = denial
        return denial is not None


class AcceptanceTerms(NamedTuple):
    """The thresholds for answers of a model, or of one predicted class.

    Attributes:
        manifest, certificate_state: for which these terms hold.
        threshold: the bundle's, raised by the device or an alarm.
        covered: whether a certificate covers edge answers that their score accepts.
        record: of the thresholds of this model's answers, for the decision log; JSON-able.
    """

    manifest: Manifest
    certificate_state: CertificateState
    threshold: float
    covered: bool
    record: Mapping[str, Any]

    def certify(self, decision: TierDecision) -> bool:
        """Returns whether a valid certificate covers an edge answer that this decision accepts."""
        return self.covered and decision.reason is _CONFIDENT.reason


@dataclass(eq=False, kw_only=True)
class TierRouter:
    """Decides which tier answers a row by the edge model's output: policy, certificate, device settings.

    Args:
        min_threshold: raises a bundle's threshold, never lowers it.
        policy: decides.
        clock: for policies that look at the time.
        certificates: their states in the field; None if there are no audits.
    """

    min_threshold: float
    policy: Policy = CERTIFIED
    clock: Clock = SYSTEM_CLOCK
    certificates: CertificateStates | None = None
    # By the digest of the evidence; the terms by group too.
    _terms: dict[tuple[str, str | None], AcceptanceTerms] = field(default_factory=dict, init=False)
    _states: defaultdict[str, PolicyState] = field(default_factory=lambda: defaultdict(PolicyState), init=False)

    def adopt(self, chosen: Policy, min_threshold: float) -> None:
        """Replaces the policy and the least threshold from the next row on."""
        if chosen.kind != self.policy.kind:
            self._states.clear()
        self.policy, self.min_threshold = chosen, min_threshold
        self._terms.clear()

    def threshold(self, model: DeviceModel, group: str | None = None) -> float:
        """Returns the score from which edge answers are accepted; the device can only raise it.

        Args:
            model: that answered.
            group: of the answer, see `DeviceModel.group`; None for the lowest threshold of any.
        """
        return self.terms(model, group).threshold

    def decide(self, model: DeviceModel, row: Row, terms: AcceptanceTerms) -> TierDecision:
        """Returns the policy's decision by the row's edge output; a row without one goes to the full model.

        A policy with a state, such as a rate of escalations, counts the decision.
        """
        edge, output = model.edge, row.edge
        if output is None or edge is None:
            return _TOO_HEAVY
        evidence = RowEvidence(
            row.score,
            output.value,
            terms.threshold,
            edge.certificate is not None,
            output.outputs,
            self.clock.monotonic_s(),
        )
        return self.policy.decide(evidence, self._states[edge.digest])

    def uncertified(self, model: DeviceModel) -> str:
        """Returns why answers of this model are not certified, as part of a sentence; "" if they are."""
        if unusable := self.policy.uncertified():
            return unusable
        monitored = self.certificates.find(model) if self.certificates is not None else None
        if monitored is not None and monitored.record.state.is_void:
            return f"its certificate is void: {monitored.record.state.cause}"
        certificate = model.edge.certificate if model.edge is not None else None
        if certificate is None:
            return model.edge.uncertified if model.edge is not None else ""
        if unusable := self.policy.uncertified(certificate.contract):
            return unusable
        if not policy.covered(_CONFIDENT, self._without_alarm(model, None), certificate):
            return "policy.min_threshold is above its threshold, and its certificate on the stream holds only at that"
        return ""

    def may_escalate(self, model: DeviceModel, row: Row, decision: TierDecision) -> bool:
        """Returns whether a row may be escalated.

        The escalations that an alarm adds have a quota, so that a fleet's alarm causes no outage. Rows that would be
        escalated without the alarm need no quota.
        """
        if self.certificates is None or decision.reason is not Reason.UNCERTAIN:
            return True
        accepted_without_alarm = row.score >= self._without_alarm(model, row.group)
        return not accepted_without_alarm or self.certificates.take_escalation(model)

    def terms(self, model: DeviceModel, group: str | None = None) -> AcceptanceTerms:
        """Returns the current terms for answers of a model, or of one group.

        They are computed once, until the state of the certificate or the bundle changes.
        """
        certificate_state = VALID if self.certificates is None else self.certificates.of(model)
        manifest = model.manifest
        key = (model.edge.digest if model.edge is not None else "", group)
        terms = self._terms.get(key)
        if terms is None or terms.certificate_state is not certificate_state or terms.manifest is not manifest:
            threshold = self._without_alarm(model, group)
            if (raised := raised_threshold(certificate_state)) is not None:
                threshold = max(threshold, raised)
            certificate = model.edge.certificate if model.edge is not None else None
            covered = (
                certificate is not None
                and certificate.contract in self.policy.certifies
                and not certificate_state.is_void
                and policy.covered(_CONFIDENT, threshold, certificate, group)
            )
            record: Mapping[str, Any]
            if group is not None:  # the record describes the model as a whole
                record = self.terms(model).record
            else:
                record = {
                    "threshold": threshold if math.isfinite(threshold) else None,
                    "by": certificate.by if certificate is not None else "",
                    "certificate": certificate and certificate.promise,
                    "uncertified": self.uncertified(model),
                }
            terms = self._terms[key] = AcceptanceTerms(manifest, certificate_state, threshold, covered, record)
        return terms

    def _without_alarm(self, model: DeviceModel, group: str | None) -> float:
        certificate = model.edge.certificate if model.edge is not None else None
        return policy.threshold_in_use(model.manifest.policy.threshold, certificate, self.min_threshold, group)


def policy_from(section: PolicySection) -> Policy:
    """Returns the policy that the settings choose, with its parameters."""
    parameters = {
        "least_value": section.least_value,
        "threshold": section.threshold_cross_entropy if section.kind == "sedna" else section.threshold,
        "rate": section.rate,
        "pause_s": section.min_time_between_escalations_s,
    }
    return policy.make_policy(section.kind, **{name: parameters[name] for name in policy.parameters_of(section.kind)})


@dataclass(eq=False)
class LiveSettings:
    """Replaces policy, budgets, costs and audits of a running agent.

    All are replaced in one turn of the event loop; a running request finishes each row under the settings with which
    the row began. Only values that `firstline_core.fleet.configuration` can set are replaced.

    Args:
        router: takes the policy and the minimum threshold.
        certificates: takes the effect of an alarm.
        auditor: takes the cost limits of audits.
        spending: takes budgets and costs.
    """

    router: TierRouter
    certificates: CertificateStates
    auditor: Auditor
    spending: Spending

    def adopt(self, settings: EdgeSettings) -> None:
        """Uses other settings from now on."""
        chosen = policy_from(settings.policy)
        self.router.adopt(chosen, settings.policy.min_threshold)
        self.certificates.adopt(settings.audit)
        self.auditor.adopt(settings.audit, chosen.certifies)
        replace_budgets(self.spending, settings)
