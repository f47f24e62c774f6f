"""Decides which tier answers a row by the edge model's output: policy, certificate, device settings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from firstline_core.bundle.manifest import Manifest
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.routing import policy
from firstline_core.routing.policy import CERTIFIED, Decision, Policy, PolicyState, RowEvidence, value_of
from firstline_core.types import Reason, Tier
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.audits.watched import CLEAR, CertificateState
from firstline_edge.models.models import DeviceModel
from firstline_edge.requests.context import Row
from firstline_edge.settings.settings import PolicySection


class Terms(NamedTuple):
    """The thresholds for answers of a model, or of one predicted class.

    Attributes:
        manifest, certificate_state: for which these terms hold.
        threshold: the bundle's, raised by the device or an alarm.
        covered: whether a certificate covers edge answers that their score accepts.
        record: for the decision log, see `Router.record_of`.
    """

    manifest: Manifest
    certificate_state: CertificateState
    threshold: float
    covered: bool
    record: Mapping[str, Any]


_CONFIDENT, _DENIED = Decision(Tier.EDGE, Reason.CONFIDENT), Decision(Tier.EDGE, Reason.BUDGET)
_TOO_HEAVY = Decision(Tier.CLOUD, Reason.HEAVY)


class Router:
    """Decides row by row.

    Args:
        min_threshold: raises a bundle's threshold, never lowers it.
        chosen: the policy that decides.
        clock: for policies that look at the time.
        certificates: their states in the field; None if there are no audits.
    """

    def __init__(
        self,
        *,
        min_threshold: float,
        chosen: Policy = CERTIFIED,
        clock: Clock = SYSTEM_CLOCK,
        certificates: CertificateStates | None = None,
    ) -> None:
        self._min_threshold = min_threshold
        self.policy = chosen
        self._clock = clock
        self._terms: dict[tuple[str, str | None], Terms] = {}  # by the evidence's digest, and by group
        self._states: defaultdict[str, PolicyState] = defaultdict(
            PolicyState
        )  # by the digest of what computes the evidence
        self._certificates = certificates

    def adopt(self, chosen: Policy, min_threshold: float) -> None:
        """Exchanges the policy and the least threshold from the next row on."""
        if chosen.kind != self.policy.kind:
            self._states.clear()
        self.policy, self._min_threshold = chosen, min_threshold
        self._terms.clear()

    def threshold(self, model: DeviceModel, group: str | None = None) -> float:
        """Returns the score from which edge answers are accepted; the device can only raise it.

        Args:
            model: that answered.
            group: of the answer, see `DeviceModel.group`; None for the lowest threshold of any.
        """
        return self.terms(model, group).threshold

    def verdict(self, model: DeviceModel, row: Row) -> Decision:
        """Decides by the edge output; a row without one is too heavy for this device."""
        edge, said = model.edge, row.edge
        if said is None or edge is None:
            return _TOO_HEAVY
        score = math.nan if said.score is None else said.score
        seen = RowEvidence(
            score,
            value_of(said.value, score),
            self.threshold(model, model.group(said)),
            edge.certificate is not None,
            said.probabilities,
            self._clock.monotonic_s(),
        )
        return self.policy.decide(seen, self._states[edge.digest])

    def instead(self, model: DeviceModel, row: Row, denied: Decision) -> Decision:
        """Decides an answer whose escalation was denied: accepted by its score, if only the price was against it."""
        confident = row.score >= self.threshold(model, model.group(row.edge))
        return _CONFIDENT if confident and not denied.demanded else _DENIED

    def covers(self, model: DeviceModel, row: Row, verdict: Decision) -> bool:
        """Returns whether a valid certificate covers an edge answer that this verdict accepts."""
        if verdict.reason is not _CONFIDENT.reason:
            return False
        return self.terms(model, model.group(row.edge)).covered

    def uncertified(self, model: DeviceModel) -> str:
        """Returns why answers of this model are not certified, as part of a sentence; "" if they are."""
        if not self.policy.certifies:
            return f"policy.kind is {self.policy.kind}, which no certificate covers"
        watched = self._certificates.find(model) if self._certificates is not None else None
        if watched is not None and watched.record.alarmed:
            return f"an alarm voids its certificate: {watched.record.cause}"
        return model.edge.uncertified if model.edge is not None else ""

    def record_of(self, model: DeviceModel) -> Mapping[str, Any]:
        """Returns the thresholds of this model's answers for the decision log; JSON-able."""
        return self.terms(model).record

    def grants(self, model: DeviceModel, row: Row, verdict: Decision) -> bool:
        """Returns whether a row may be escalated.

        The escalations of an alarm have a quota, so that a fleet's alarm causes no outage. Escalations that happen
        without the alarm too need no quota.
        """
        if self._certificates is None or verdict.reason is not Reason.UNCERTAIN:
            return True
        kept_before = row.score >= self._without_alarm(model, model.group(row.edge))
        return not kept_before or self._certificates.grants(model)

    def terms(self, model: DeviceModel, group: str | None = None) -> Terms:
        """Returns the current terms for answers of a model, or of one group.

        They are computed once, until the state of the certificate or the bundle changes.
        """
        certificate_state = CLEAR if self._certificates is None else self._certificates.of(model)
        manifest = model.manifest
        at = (model.edge.digest if model.edge is not None else "", group)
        known = self._terms.get(at)
        if known is None or known.certificate_state is not certificate_state or known.manifest is not manifest:
            threshold = self._without_alarm(model, group)
            if certificate_state.threshold is not None:
                threshold = max(threshold, certificate_state.threshold)
            certificate = model.edge.certificate if model.edge is not None else None
            covered = (
                certificate is not None
                and certificate.contract in self.policy.certifies
                and not certificate_state.alarmed
                and policy.covered(_CONFIDENT, threshold, certificate, group)
            )
            record: Mapping[str, Any] = {
                "threshold": threshold if math.isfinite(threshold) else None,
                "by": certificate.by if certificate is not None else "",
                "certificate": certificate and certificate.promise,
                "uncertified": self.uncertified(model),
            }
            if group is not None:  # the record describes the model as a whole
                record = self.terms(model).record
            known = self._terms[at] = Terms(manifest, certificate_state, threshold, covered, record)
        return known

    def _without_alarm(self, model: DeviceModel, group: str | None) -> float:
        certificate = model.edge.certificate if model.edge is not None else None
        return policy.threshold_in_use(model.manifest.policy.threshold, certificate, self._min_threshold, group)


def policy_from(section: PolicySection) -> Policy:
    """Returns the policy that the settings choose, with its parameters."""
    parameters = {
        "least_value": section.least_value,
        "threshold": section.threshold_cross_entropy if section.kind == "sedna" else section.threshold,
        "rate": section.rate,
        "pause_s": section.min_time_between_escalations_s,
    }
    return policy.make_policy(section.kind, **{name: parameters[name] for name in policy.parameters_of(section.kind)})
