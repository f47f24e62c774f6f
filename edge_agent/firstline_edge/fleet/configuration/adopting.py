"""Other settings for an agent that is answering: what it is made of goes on, and no request waits or is dropped.

Everything is exchanged within one turn of the event loop; a request under way finishes each row under the terms that
it began that row with. Only what `firstline_core.fleet.configuration` can set is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstline_edge.budgets.wiring import exchange
from firstline_edge.settings.settings import EdgeSettings, link_names
from firstline_edge.wiring import make_policy

if TYPE_CHECKING:
    from firstline_edge.parts import Parts


def adopt(parts: Parts, settings: EdgeSettings) -> None:
    """Has an agent go on with these settings; it was made with `fleet.enabled`, so that it can spend."""
    chosen = make_policy(settings.policy)
    parts.router.adopt(chosen, settings.policy.min_threshold)
    parts.audits.adopt(settings.audit, chosen.certifies)
    if parts.spending is not None:
        exchange(parts.spending, settings, link_names(settings.links))
