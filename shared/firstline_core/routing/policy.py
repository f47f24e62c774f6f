"""The routing policy: a pure function of evidence. `before` the edge model runs, and `after`.

This module uses no link, cache or clock: their findings are in the evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from firstline_core.errors import RequestError
from firstline_core.routing.certificate import Certificate
from firstline_core.types import Privacy, Reason, Route, Tier


class Evidence(NamedTuple):
    """The evidence for one request before the edge model runs.

    Attributes:
        holds_model: this device has an edge variant of the bundle loaded.
        size_bytes: payload of the request.
        limit_bytes: the largest payload that this device processes.
    """

    route: Route
    privacy: Privacy
    holds_model: bool
    size_bytes: int
    limit_bytes: int

    @property
    def heavy(self) -> bool:
        return not self.holds_model or self.size_bytes > self.limit_bytes


# Looking up a member of an enumeration takes as long as the rest of `before`.
_AUTO, _ANY, _CONFIDENT = Route.AUTO, Privacy.ANY, Reason.CONFIDENT


@dataclass(frozen=True, slots=True)
class Decision:
    """The tier that answers, and the reason.

    Args:
        tier: EDGE or CLOUD.
        demanded: False for an escalation that is made only if it is worth its price.
    """

    tier: Tier
    reason: Reason
    demanded: bool = True


def before(evidence: Evidence) -> Decision | None:
    """Decides without the edge model's answer; returns None if the answer is needed.

    Raises:
        RequestError: no tier may answer: the request is heavy, but bound to this device.
    """
    if evidence.route is _AUTO and evidence.privacy is _ANY and not evidence.heavy:  # most requests
        return None
    if evidence.heavy and (evidence.privacy is Privacy.LOCAL_ONLY or evidence.route is Route.EDGE):
        bound = "privacy=local_only" if evidence.privacy is Privacy.LOCAL_ONLY else "route=edge"
        cause = (
            f"its payload of {evidence.size_bytes} bytes is over this device's limit of {evidence.limit_bytes}"
            if evidence.holds_model
            else "this device holds no edge variant of the model"
        )
        raise RequestError(f"The request asks for {bound}, but {cause}; send it without {bound}.")
    if evidence.privacy is Privacy.LOCAL_ONLY:
        if evidence.route is Route.CLOUD:
            raise RequestError("privacy=local_only and route=cloud exclude each other; drop one of them.")
        return Decision(Tier.EDGE, Reason.LOCAL_ONLY)
    if evidence.heavy:
        return Decision(Tier.CLOUD, Reason.HEAVY)
    if evidence.route is Route.CLOUD:
        return Decision(Tier.CLOUD, Reason.REQUESTED)
    if evidence.route is Route.EDGE:
        return Decision(Tier.EDGE, Reason.REQUESTED)
    return None


def after(score: float, threshold: float) -> Decision:
    """Accepts an edge answer if and only if its score is at least the threshold; NaN is never accepted."""
    if score >= threshold:
        return Decision(Tier.EDGE, Reason.CONFIDENT)
    return Decision(Tier.CLOUD, Reason.UNCERTAIN)


def threshold_in_use(
    declared: float, certificate: Certificate | None, min_threshold: float = -math.inf, label: str | None = None
) -> float:
    """Returns the score from which an edge answer is accepted.

    Args:
        declared: threshold of the bundle, for a variant without a certificate.
        certificate: of the variant, if valid.
        min_threshold: of the device; it raises the threshold and never lowers it.
        label: the predicted class, for a certificate by class; None for the lowest threshold of all classes.
    """
    return max(declared if certificate is None else _certified(certificate, label), min_threshold)


def covered(decision: Decision, threshold: float, certificate: Certificate | None, label: str | None = None) -> bool:
    """Whether a valid certificate covers an edge answer.

    The certificate bounds the share of differing answers among those that were accepted for their score at its
    threshold. Escalating more rows makes no answer worse, so a stricter threshold is covered too. Answers that the
    caller or a failure bound to the device are not covered. A contract on the stream balances losses against gains of
    the edge, so it holds only at exactly its threshold.

    Args:
        decision: the policy's for this answer.
        threshold: the one in use, for this label.
        certificate: of the variant, if valid.
        label: the predicted class, which matters to a certificate by class.
    """
    if certificate is None or decision.reason is not _CONFIDENT:
        return False
    certified = _certified(certificate, label)
    return threshold == certified if certificate.contract == "stream" else threshold >= certified


def _certified(certificate: Certificate, label: str | None) -> float:
    return certificate.threshold if label is None else certificate.threshold_for(label)
