"""Exchanges the settings of an agent that is answering, and watches whether it fails since then.

Everything is exchanged within one turn of the event loop; a request under way finishes each row under the settings
that it began the row with. Only what `firstline_core.fleet.configuration` can set is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.budgets.from_settings import exchange
from firstline_edge.budgets.spending import Spending
from firstline_edge.cascade.router import Router, policy_from
from firstline_edge.models.held import HeldModel, Models
from firstline_edge.settings.settings import EdgeSettings, link_names

# The share of rows without an answer that fails a trial, of at least so many rows: as for a model's trial.
_LEAST_ROWS, _FAILED_SHARE = 20, 0.5


class SettingsAdoption:
    """Gives the parts of a running agent other settings.

    Args:
        models: the models held.
        router: takes the policy and the least threshold.
        certificates: takes what an alarm does.
        auditor: takes what audits may cost.
        spending: takes budgets and costs; None if nothing has a price.
        answered: counts the rows of a model so far, and those without an answer.
    """

    def __init__(
        self,
        *,
        models: Models,
        router: Router,
        certificates: CertificateStates,
        auditor: Auditor,
        spending: Spending | None,
        answered: Callable[[HeldModel], tuple[int, int]],
    ) -> None:
        self._models = models
        self._router = router
        self._certificates = certificates
        self._auditor = auditor
        self._spending = spending
        self._answered = answered
        self._before = (0, 0)

    def adopt(self, settings: EdgeSettings) -> None:
        """Exchanges the settings, and begins to count failures."""
        self._before = self._counts()
        policy = policy_from(settings.policy)
        self._router.adopt(policy, settings.policy.min_threshold)
        self._certificates.adopt(settings.audit)
        self._auditor.adopt(settings.audit, policy.certifies)
        if self._spending is not None:
            exchange(self._spending, settings, link_names(settings.links))

    def failed(self) -> bool:
        """Returns whether more than half of the rows since the latest exchange got no answer."""
        rows, errors = (max(0, now - then) for now, then in zip(self._counts(), self._before, strict=True))
        return rows >= _LEAST_ROWS and errors > _FAILED_SHARE * rows

    def _counts(self) -> tuple[int, int]:
        found = [self._answered(held) for held in self._models.all]
        return sum(rows for rows, _ in found), sum(errors for _, errors in found)
