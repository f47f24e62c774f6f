"""Keep the edge model's answer, or escalate it? Row by row; what the full model said before is as good as new."""

from __future__ import annotations

from firstline_core.clock import Clock
from firstline_core.routing.policy import Decision
from firstline_core.types import Reason, Tier
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache import keys
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.router import Router
from firstline_edge.gateway import attempt
from firstline_edge.models.edge_model import EdgeModel
from firstline_edge.models.held import HeldModel
from firstline_edge.requests.context import Case
from firstline_edge.requests.rows import Row

_EDGE = Tier.EDGE  # looking it up takes as long as reading a clock


class Judge:
    """Answers what can be answered here and now, and finds what the full model has to be asked about.

    Args:
        router: decides by the edge model's answer.
        cache: knows what full models said.
        spending: says what is worth its price; None where nothing has one.
    """

    def __init__(self, router: Router, cache: ResultCache, spending: Spending | None, clock: Clock) -> None:
        self._router = router
        self._cache = cache
        self._spending = spending
        self._clock = clock

    def escalated(self, case: Case, decision: Decision | None) -> list[Row]:
        """Gives every row a verdict and answers those that it keeps; the others.

        Args:
            case: the request.
            decision: the policy's, where that needed no look at the edge model's answer; None to go by its score.
        """
        return [row for row in case.rows if not self._settled(case, row, decision)]

    def _settled(self, case: Case, row: Row, decision: Decision | None) -> bool:
        """Answers the row, unless the full model has to be asked."""
        model, edge = case.model, case.model.edge
        verdict = decision or self._router.verdict(model, row)
        row.reason = verdict.reason
        if verdict.tier is _EDGE and edge is not None:
            self._keep(model, edge, row, verdict)
            return True
        if self._recall_full(case, row):
            return True
        if decision is not None or edge is None:
            return False
        if self._denied(case, row, verdict):
            instead = self._router.instead(model, row, verdict)
            certified = self._router.covers(model, row, instead)
            unreachable = instead.reason is Reason.BUDGET and self._spending is not None and not self._spending.linked
            row.keep(Reason.LINK_DOWN if unreachable else instead.reason, edge.loaded.digest, certified=certified)
            return True
        if not self._router.grants(model, row, verdict):
            row.keep(Reason.BUDGET, edge.loaded.digest)
            return True
        return False

    def _keep(self, model: HeldModel, edge: EdgeModel, row: Row, verdict: Decision) -> None:
        row.reason = verdict.reason
        row.keep(verdict.reason, edge.loaded.digest, certified=self._router.covers(model, row, verdict))

    def _recall_full(self, case: Case, row: Row) -> bool:
        """Answers the row with what this very full model said of it before, where that is known."""
        digest, attempts = case.model.manifest.full_digest, case.trail.attempts
        if case.hedge is not None and case.hedge.take(row, attempts):
            return True
        started_s = self._clock.monotonic_s()
        output = self._cache.get(keys.result_key(digest, row.content)) if digest else None
        if output is None:
            return False
        row.take(output, Tier.CACHE, row.reason, digest)
        if case.hedge is not None:
            case.hedge.recalled(row)
        if not any(tried.tier is Tier.CACHE for tried in attempts):
            attempts.append(attempt(self._clock, Tier.CACHE, "ok", started_s))
        return True

    def _denied(self, case: Case, row: Row, verdict: Decision) -> bool:
        """Whether asking the full model about this row is not worth its price; notes why."""
        if self._spending is None or row.edge is None:
            return False
        size_bytes = case.request.size_bytes / case.request.rows
        denial = self._spending.denial(size_bytes, row.value, demanded=verdict.demanded)
        if denial is not None:
            case.trail.denials[row.position] = denial
        return denial is not None
