"""The settings of decisions that can be exchanged while the agent answers requests."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.budgets.from_settings import exchange
from firstline_edge.budgets.spending import Spending
from firstline_edge.cascade.cascade import TierRouter, policy_from
from firstline_edge.settings.settings import EdgeSettings, link_names


@dataclass(eq=False)
class LiveSettings:
    """Exchanges policy, budgets, costs and audits of a running agent.

    All are exchanged in one turn of the event loop; a running request finishes each row under the settings with which
    the row began. Only values that `firstline_core.fleet.configuration` can set are exchanged.

    Args:
        router: takes the policy and the minimum threshold.
        certificates: takes the effect of an alarm.
        auditor: takes the cost limits of audits.
        spending: takes budgets and costs; None if nothing has a price.
    """

    router: TierRouter
    certificates: CertificateStates
    auditor: Auditor
    spending: Spending | None

    def exchange(self, settings: EdgeSettings) -> None:
        """Uses other settings from now on."""
        policy = policy_from(settings.policy)
        self.router.adopt(policy, settings.policy.min_threshold)
        self.certificates.adopt(settings.audit)
        self.auditor.adopt(settings.audit, policy.certifies)
        if self.spending is not None:
            exchange(self.spending, settings, link_names(settings.links))
