"""Draws a random sample of the answers that a certificate covers, which the full model checks (`audit_sender.py`).

Every edge answer that reaches the certificate's threshold can be drawn, also if the device escalated it: some devices
accept fewer answers than the certificate allows (`policy.min_threshold`, the policy `value`). So the audits of all
devices of a fleet test the same promise.

At any moment every answer has the same propensity, the probability of an audit. It depends only on past traffic and the
budget. Nevertheless two audits of one source are some time apart: `routing/sampling.py` explains why the draw
probability then differs from the propensity. The propensity of an answer is smaller in two cases: its source gives more
answers within a pause than any source gave today or yesterday since the agent started (`docs/adr/0008`), or a burst is
so large that equal propensities would make audits over 100 times rarer.

The caller never waits for an audit. A drawn row is sent even if this device already knows the full model's answer: the
gateway pools the audits of all devices, and would otherwise receive only new inputs, whose risk differs from the
promised one. The result is cached like any other output of the full model.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.ids import new_request_id
from firstline_core.routing import sampling
from firstline_core.routing.certificate import Contract
from firstline_core.routing.policy import CERTIFIED
from firstline_core.routing.sampling import NO_PEAK, Allowance, AuditBudget
from firstline_core.types import AuditNote, InferRequest, Privacy, Reason
from firstline_edge.audits.audit_sender import Audit, AuditSender
from firstline_edge.audits.certificate_states import CertificateStates, MonitoredCertificate, raised_threshold
from firstline_edge.audits.samples import Comparison
from firstline_edge.budgets.spending import Spending
from firstline_edge.models.models import DeviceModel
from firstline_edge.requests.context import ModelOutput, Row
from firstline_edge.requests.full_answers import escalation_of
from firstline_edge.settings.settings import AuditSection

_BY_SCORE = (Reason.CONFIDENT, Reason.UNCERTAIN, Reason.VALUABLE)
_SOURCES = 1024  # with answers within the last pause length; further sources are not audited meanwhile
_SLOTS = 8  # of a pause, by which the answers of a source are counted
_LEAST_SHARE = 0.01  # of the audits that the budget allows, so that one burst does not end the audits of other answers
_PROPENSITY_S = 0.1  # the longest use of a propensity, which takes a microsecond to compute


@dataclass(slots=True, eq=False)
class _Slot:
    """The answers of a source in one slot of time: their number, and the sum of their propensities."""

    number: int
    answers: int = 0
    taken: float = 0.0


@dataclass(slots=True, eq=False)
class _Source:
    """The recent answers of a source.

    Attributes:
        drawn: the slot of the latest audit.
        slots: those with answers within the last pause length, oldest first.
        answers, taken: sums of all slots.
    """

    drawn: float = -math.inf
    slots: deque[_Slot] = field(default_factory=deque)
    answers: int = 0
    taken: float = 0.0

    def begin(self, number: int) -> None:
        """Begins a slot, and forgets those whose audits cannot make the source pause any more."""
        while self.slots and self.slots[0].number < number - _SLOTS:
            self.slots.popleft()
        self.answers = sum(slot.answers for slot in self.slots)
        self.taken = sum(slot.taken for slot in self.slots)
        self.slots.append(_Slot(number))


class AuditRate:
    """Decides the propensity of the next answer by past traffic, source and budget, not by the answer or its model.

    `audit.per_hour`, `audit.bytes_per_hour` and `audit.max_share` limit it; a burst of one source lowers it for all
    sources. It is 0 while the sender has no room, and for further sources beyond 1,024. The draw probability is also 0
    for a source whose latest audit is less than a pause ago.

    Args:
        settings: the limits of audits.
        clock: for the budget.
        has_room: whether one more audit may wait.
    """

    def __init__(self, settings: AuditSection, clock: Clock, has_room: Callable[[], bool] = lambda: True) -> None:
        self._allowance = _allowance_of(settings)
        self._spacing_s = settings.spacing_s
        self._clock = clock
        self._has_room = has_room
        self._budget = AuditBudget(clock.monotonic_s())
        self._propensity = 0.0
        self._propensity_until_s = -math.inf
        self._sources: dict[str, _Source] = {}
        self._searched_slot = -1
        self._peak, self._most_answers = NO_PEAK, 0
        self._uncounted_rows = self._uncounted_bytes = 0

    def adopt(self, settings: AuditSection) -> None:
        """Applies new limits; a change of the spacing ends all pauses, which have the old length."""
        self._allowance = _allowance_of(settings)
        if settings.spacing_s != self._spacing_s:
            self._spacing_s = settings.spacing_s
            self._sources.clear()
            self._searched_slot, self._peak, self._most_answers = -1, NO_PEAK, 0
        self._propensity_until_s = -math.inf

    @property
    def switched_off_by(self) -> str:
        """Returns the name of the setting that allows no audit at all; "" if both allow some."""
        limits = {"audit.per_hour": self._allowance.per_hour, "audit.bytes_per_hour": self._allowance.bytes_per_hour}
        return next((name for name, limit in limits.items() if not limit), "")

    def current(self) -> float:
        """Returns the propensity of an answer that comes now; 0 without room for an audit.

        It is computed after a draw, after new settings and otherwise every 0.1 s, so it may stay 0 for 0.1 s after room
        was made.
        """
        now_s = self._clock.monotonic_s()
        if now_s >= self._propensity_until_s:
            self._find_propensity(now_s)
        return self._propensity

    def probabilities_of_next(self, source: str, size_bytes: int) -> tuple[float, float]:
        """Returns the draw probability of the next answer, and its propensity; counts that answer as traffic."""
        target = self.current()
        self._uncounted_rows += 1
        self._uncounted_bytes += size_bytes
        if not self._spacing_s:
            return target, target
        number = int(self._clock.monotonic_s() * _SLOTS / self._spacing_s)
        history = self._sources.get(source)
        if history is None:
            if not self._make_place(number):
                return 0.0, 0.0
            history = self._sources[source] = _Source()
        if not history.slots or history.slots[-1].number != number:
            history.begin(number)
        slot = history.slots[-1]
        slot.answers += 1
        history.answers += 1
        self._most_answers = max(self._most_answers, history.answers)
        draw, propensity = sampling.spaced_probabilities(target, history.taken)
        slot.taken += propensity
        history.taken += propensity
        return draw if number - history.drawn > _SLOTS else 0.0, propensity

    def charge(self, source: str, size_bytes: int) -> None:
        """Pays for an answer that was drawn, the latest of its source."""
        self._budget = sampling.charge(self._budget, size_bytes)
        if self._spacing_s:
            history = self._sources[source]
            history.drawn = history.slots[-1].number
        self._propensity_until_s = -math.inf

    def _find_propensity(self, now_s: float) -> None:
        """Finds the propensity that the budget allows, and that leaves the busiest source enough pauses."""
        budget = sampling.add_answers(self._budget, self._uncounted_rows, self._uncounted_bytes)
        self._uncounted_rows = self._uncounted_bytes = 0
        self._budget = sampling.after_time(budget, now_s, self._allowance)
        self._peak, self._most_answers = self._peak.with_number(self._most_answers, now_s), 0
        within_budget = sampling.propensity(self._budget, self._allowance) if self._has_room() else 0.0
        with_pauses = max(1 / max(1, self._peak.value), _LEAST_SHARE * within_budget)
        self._propensity = min(within_budget, with_pauses)
        self._propensity_until_s = now_s + _PROPENSITY_S

    def _make_place(self, number: int) -> bool:
        """Returns whether another source can be remembered, after forgetting sources that were silent for a pause."""
        if len(self._sources) >= _SOURCES and number != self._searched_slot:
            self._searched_slot = number
            first = number - _SLOTS
            self._sources = {name: one for name, one in self._sources.items() if one.slots[-1].number >= first}
        return len(self._sources) < _SOURCES


def _allowance_of(settings: AuditSection) -> Allowance:
    return Allowance(settings.per_hour, settings.bytes_per_hour, settings.max_share)


@dataclass(eq=False)
class Auditor:
    """Draws answers at random, and gives them to the sender.

    It draws no answer to a `local_only` request, and none that was not decided by its score (`_BY_SCORE`). A model
    without a certificate on which the policy relies (`certifies`) is audited only for a rollout. While a budget has a
    price (`Spending.ample`), it draws only answers that test a promise, and so none at a raised threshold.

    Args:
        sender: asks the full model.
        certificates: the certificates that audits test.
        settings: the limits of audits.
        clock: for the budget and for the time of samples.
        rng: draws.
        certifies: the contracts on which this device's policy relies; only these are audited.
        spending: while a budget is not ample, only answers that test a promise are drawn.

    Attributes:
        rate: decides the propensity of the next answer.
    """

    sender: AuditSender
    certificates: CertificateStates
    settings: InitVar[AuditSection]
    clock: Clock
    rng: random.Random
    _: KW_ONLY
    spending: Spending
    certifies: Collection[Contract] = CERTIFIED.certifies
    rate: AuditRate = field(init=False)
    _for_rollouts: Collection[str] = field(default=(), init=False)

    def __post_init__(self, settings: AuditSection) -> None:
        self.rate = AuditRate(settings, self.clock, self.sender.has_room)

    def audit_for_rollouts(self, bundles: Collection[str]) -> None:
        """Audits these bundles without a certificate too, within the same budget; "" is every bundle."""
        self._for_rollouts = bundles

    def adopt(self, settings: AuditSection, certifies: Collection[Contract]) -> None:
        """Applies a new audit budget and policy."""
        self.rate.adopt(settings)
        self.certifies = certifies

    def observe_decisions(self, request: InferRequest, model: DeviceModel, rows: Sequence[Row]) -> None:
        """Counts the scores of rows that the policy decided by score, and draws audits and samples.

        Called after all rows are decided; by then only the cache or a hedge can have given answers of the full model.
        Covered answers are drawn for an audit at random. Other rows with the full model's answer become samples with
        the same probability. An answer is covered if it reaches the certificate's threshold, or the threshold to which
        an alarm has raised it.
        Rows whose escalation the budget denied are drawn too while the budgets are ample. These rows test no
        promise; without them, answers just below a raised threshold would be missing from the next certification.
        """
        if request.privacy is Privacy.LOCAL_ONLY:
            return
        monitored = self.certificates.find(model)
        if monitored is None or monitored.certificate.contract not in self.certifies:
            self._observe_for_rollout(request, model, rows)
        if monitored is None:
            return
        may_draw = self._may_draw(monitored)
        fully_answered: list[Row] = []
        for row in rows:
            if row.policy_reason not in _BY_SCORE:
                continue
            score = row.score
            if monitored.scores is not None:
                monitored.scores.add(score)
            if row.edge is None:
                continue
            covered = monitored.is_auditable(score, row.group)
            if covered or (row.answer is not None and row.answer.reason is Reason.BUDGET):
                if may_draw and (covered or self.spending.ample):
                    self._draw(request, model, row, row.edge, monitored, covered=covered)
            elif row.answer is not None:
                fully_answered.append(row)
        if fully_answered:
            self.observe_escalations(model, fully_answered)

    def _observe_for_rollout(self, request: InferRequest, model: DeviceModel, rows: Sequence[Row]) -> None:
        """Draws audits of edge answers that test no certificate, while a rollout compares them."""
        if not {model.manifest.name, ""}.intersection(self._for_rollouts) or not self.spending.ample:
            return
        if not model.manifest.full_digest:
            return
        for row in rows:
            if row.edge is not None and row.output is row.edge and row.policy_reason in _BY_SCORE:
                self._draw(request, model, row, row.edge)

    def _draw(
        self,
        request: InferRequest,
        model: DeviceModel,
        row: Row,
        edge: ModelOutput,
        monitored: MonitoredCertificate | None = None,
        *,
        covered: bool = False,
    ) -> None:
        """Audits an edge answer by chance.

        Args:
            request: of which it is a row.
            model: that gave the answer.
            row: answered, or escalated.
            edge: the edge model's output for it.
            monitored: the certificate; None to audit for a rollout alone.
            covered: whether the threshold in use covers it.
        """
        size_bytes = _row_bytes(request, model.full_inputs, row.position)
        draw, propensity = self.rate.probabilities_of_next(request.source, size_bytes)
        if self.rng.random() >= draw:
            return
        escalation = escalation_of(
            request.take([row.position]), model.version, model.manifest.full_digest, model.full_inputs
        )
        # The caller of the request does not wait for an audit, and its trace does not contain one.
        sent = replace(escalation, request_id=new_request_id(), trace=None)
        if monitored is not None and covered and raised_threshold(monitored.record.state) is None:
            # It tests the promise.
            sent = replace(sent, audit=_note_of(monitored, propensity), edge_outputs=edge.outputs)
        self.rate.charge(request.source, sent.size_bytes)
        self.sender.add(
            Audit(
                model=model,
                monitored=monitored,
                request_id=request.request_id,
                row=row,
                edge=edge.outputs,
                sent=sent,
                propensity=propensity,
                threshold=monitored.threshold if monitored is not None else math.nan,
                covered=covered,
            )
        )

    def observe_escalations(self, model: DeviceModel, rows: Sequence[Row]) -> None:
        """Samples answers that the full model gave, with the propensity of audits, so that both can be joined.

        Args:
            model: of both answers.
            rows: answered by the full model; the edge model may have answered them too.
        """
        monitored = self.certificates.find(model)
        if monitored is None or not self._may_draw(monitored):
            return
        for row in rows:
            if row.edge is None or row.output is None or row.answer is None or not row.answer.certified:
                continue
            if monitored.is_auditable(row.score, model.group(row.edge)):  # already drawn, or not, as an audit
                continue
            propensity = self.rate.current()
            if self.rng.random() < propensity:
                compared = Comparison.of(model, row.edge.outputs, row.output.outputs)
                sample = monitored.sample(self.clock.wall_s(), row.score, compared, propensity, kept=False)
                self.certificates.add_sample(sample)

    def _may_draw(self, monitored: MonitoredCertificate) -> bool:
        """Returns whether its answers may be drawn now: under a raised threshold only while the budgets are ample."""
        return monitored.certificate.contract in self.certifies and (
            raised_threshold(monitored.record.state) is None or self.spending.ample
        )


def _note_of(monitored: MonitoredCertificate, propensity: float) -> AuditNote:
    """Returns the note to the gateway about an audit that tests a promise.

    The promise is about all answers from the certificate's threshold on: a stricter part may be riskier than the whole,
    and would raise a false alarm for the whole fleet. A tightened threshold concerns this device alone.
    """
    certificate = monitored.certificate
    return AuditNote(
        propensity=propensity,
        epsilon=max(monitored.bounds.values()),
        threshold=certificate.threshold,
        edge_digest=certificate.edge_digest,
        events=monitored.bounds if certificate.events else {},
    )


def _row_bytes(request: InferRequest, names: Collection[str], position: int) -> int:
    """Size of one row's payload for the full model."""
    size_bytes = 0
    for tensor in request.inputs:
        if tensor.name in names:
            array = tensor.array
            is_text = array.dtype.hasobject
            size_bytes += sum(map(len, array[position : position + 1].flat)) if is_text else array.nbytes // len(array)
    return size_bytes
