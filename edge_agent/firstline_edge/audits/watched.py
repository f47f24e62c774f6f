"""A certificate in the field: what was promised, what the audits found of it, and what that makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from firstline_core.routing import drift
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.drift import RecentCounts
from firstline_edge.audits.records import Record
from firstline_edge.models.models import DeviceModel


class CertificateState(NamedTuple):
    """The state of a certificate that the router needs.

    Attributes:
        alarmed: it is not to be relied on any more.
        threshold: from which answers are still kept; None for the certificate's, infinite where none is.
    """

    alarmed: bool = False
    threshold: float | None = None


CLEAR = CertificateState()


@dataclass(slots=True, eq=False)
class Watched:
    """A certificate in the field.

    Args:
        key: of its record.
        epsilon: the disagreement rate that the audits test.
        record: the findings, stored across restarts.
        scores: the latest ones; None where the certificate has no histogram to compare them with.
        quota: escalations that the alarm may cause now.
        quota_at_s: when that was true.
    """

    model: DeviceModel
    certificate: Certificate
    key: str
    epsilon: float
    record: Record
    scores: RecentCounts | None
    quota_at_s: float
    quota: float = 0.0
    certificate_state: CertificateState = CLEAR

    @property
    def threshold(self) -> float:
        """The score from which answers are kept, as far as the audits have a say."""
        tightened_to = self.certificate_state.threshold
        return self.certificate.threshold if tightened_to is None else tightened_to

    def speaks_of(self, score: float, group: str | None) -> bool:
        """Whether an answer is of those that are promised something, or that an alarm still lets be kept.

        Its score alone decides, not what became of it: a device that asks the full model about more than the
        certificate demands keeps a part that may be riskier than the whole, and only the whole was promised anything.

        Args:
            score: the edge model's; NaN if it has none.
            group: of the answer, see `DeviceModel.group`.
        """
        if score < self.threshold or score != score:  # noqa: PLR0124 (NaN)
            return False
        return not self.certificate.by or score >= self.certificate.threshold_for(group or "")

    def stability_index(self) -> float | None:
        """How far the scores have moved from the certificate's; None while there are too few to tell."""
        histogram = self.certificate.histogram
        if histogram is None or self.scores is None:
            return None
        counts, n = self.scores.counts, self.certificate.n
        index = drift.population_stability_index([share * n for share in histogram.shares], counts)
        return drift.beyond_chance(index, len(counts), n, sum(counts))
