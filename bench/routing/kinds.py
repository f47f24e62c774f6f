"""The policies of `firstline_core.routing.policies`, each as a device would run it by default."""

from __future__ import annotations

import numpy as np

from bench.pools import Pool
from bench.routing.replay import DECLARED
from firstline_core.clock import Clock
from firstline_core.routing.confidence import score
from firstline_core.routing.policies import Kind, make
from firstline_edge.cascade.router import Router
from firstline_edge.models.held import HeldModel

KINDS: tuple[Kind, ...] = (
    "certified",
    "value",
    "threshold",
    "sedna",
    "groundlight",
    "random",
    "edge_only",
    "cloud_only",
)


def router_of(kind: Kind, model: HeldModel, fitted: Pool, clock: Clock) -> Router:
    """A router with this policy.

    What `value` asks for an escalation beyond the contract's, and the rate of `random`, are such that either would
    escalate as many of the fitted rows as `certified` does. The others keep the numbers that their projects ship with,
    and `threshold` what the pairs' bundles declare.
    """
    certified = Router(min_threshold=0.0)
    escalated = score("max_probability", fitted.edge) < certified.threshold(model)
    parameters: dict[str, float] = {}
    if kind == "threshold":
        parameters["threshold"] = DECLARED
    elif kind == "random":
        parameters["rate"] = float(escalated.mean())
    elif kind == "value" and model.edge is not None and model.edge.value is not None:
        values = model.edge.value.losses(fitted.edge)
        parameters["least_value"] = float(np.quantile(values, 1 - escalated.mean()))
    return Router(min_threshold=0.0, chosen=make(kind, **parameters), clock=clock)
