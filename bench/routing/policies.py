"""The policies of `firstline_core.routing.policy`: with defaults, and set to escalate a number of rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.pools import Pool
from bench.routing.replay import DECLARED
from firstline.workbench.selection import choose_score, fit_value
from firstline_core.bundle.loading import scorer
from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.routing.policy import (
    Policy,
    PolicyKind,
    PolicyState,
    RowEvidence,
    entropy,
    make_policy,
    score,
    value_of,
)
from firstline_core.types import Tier
from firstline_edge.cascade.cascade import TierRouter
from firstline_edge.models.models import DeviceModel

KINDS: tuple[PolicyKind, ...] = (
    "certified",
    "value",
    "threshold",
    "sedna",
    "groundlight",
    "random",
    "edge_only",
    "cloud_only",
)


def router_of(kind: PolicyKind, model: DeviceModel, fitted: Pool, clock: Clock) -> TierRouter:
    """A router with this policy.

    What `value` asks for an escalation beyond the contract's, and the rate of `random`, are such that either would
    escalate as many of the fitted rows as `certified` does. The others keep the numbers that their projects ship with,
    and `threshold` what the pairs' bundles declare.
    """
    certified = TierRouter(min_threshold=0.0)
    escalated = score("max_probability", fitted.edge) < certified.threshold(model)
    parameters: dict[str, float] = {}
    if kind == "threshold":
        parameters["threshold"] = DECLARED
    elif kind == "random":
        parameters["rate"] = float(escalated.mean())
    elif kind == "value" and model.edge is not None and model.edge.value is not None:
        values = model.edge.value.losses(fitted.edge)
        parameters["least_value"] = float(np.quantile(values, 1 - escalated.mean()))
    return TierRouter(min_threshold=0.0, chosen=make_policy(kind, **parameters), clock=clock)


Floats = NDArray[np.float64]

_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Rows:
    """What policies see of the rows of a pool, in the order in which they come.

    Args:
        declared: with the score that the pairs' bundles declare.
        chosen: with the score that a certification would choose.
        certainty: of each, as Sedna's rule has it.
    """

    declared: list[RowEvidence]
    chosen: list[RowEvidence]
    certainty: Floats


def rows_of(fitted: Pool, measured: Pool, times_s: Floats) -> Rows:
    """Learns on one pool what there is to learn, and looks at the other with it."""
    harm, disagreement = (fitted.losses()[loss] for loss in ("harm", "disagreement"))
    try:
        learned = fit_value(fitted.edge, harm, disagreement).losses(measured.edge).tolist()
    except ConfigError:  # not one loss to learn from
        learned = [None] * len(measured.labels)
    choice = choose_score(fitted.edge, disagreement, seed=_SEED)

    def seen(scores: NDArray[np.floating]) -> list[RowEvidence]:
        return [
            RowEvidence(sure, value_of(value, sure), DECLARED, False, probabilities, now_s)
            for sure, value, probabilities, now_s in zip(
                scores.tolist(), learned, measured.edge, times_s.tolist(), strict=True
            )
        ]

    certainty = entropy(measured.edge).astype(np.float64)
    return Rows(seen(score("max_probability", measured.edge)), seen(scorer(choice.declared)(measured.edge)), certainty)


def escalated(policy: Policy, rows: Sequence[RowEvidence], state: PolicyState | None = None) -> NDArray[np.bool_]:
    """Which of the rows a policy would have the full model answer."""
    state = PolicyState() if state is None else state
    return np.array([policy.decide(seen, state).tier is Tier.CLOUD for seen in rows])


def _certified(rows: Rows, wanted: int) -> NDArray[np.bool_]:
    threshold = _lowest(_scores(rows.chosen), wanted)
    for seen in rows.chosen:
        seen.threshold = threshold
    return escalated(make_policy("certified"), rows.chosen)


def _value(rows: Rows, wanted: int) -> NDArray[np.bool_]:
    values = np.sort([-seen.value for seen in rows.declared])
    return escalated(make_policy("value", least_value=float(-values[wanted - 1])), rows.declared)


def _threshold(rows: Rows, wanted: int) -> NDArray[np.bool_]:
    return escalated(make_policy("threshold", threshold=_lowest(_scores(rows.declared), wanted)), rows.declared)


def _sedna(rows: Rows, wanted: int) -> NDArray[np.bool_]:
    return escalated(make_policy("sedna", threshold=_lowest(rows.certainty, wanted)), rows.declared)


def _groundlight(rows: Rows, wanted: int) -> NDArray[np.bool_]:
    """Its pause is as long as it must be; its threshold is raised only where it leaves too few."""
    threshold = max(DECLARED, _lowest(_scores(rows.declared), wanted))
    shortest_s, longest_s = 0.0, 4 * len(rows.declared) / wanted  # rows come one a second
    found = np.zeros(len(rows.declared), bool)
    for _ in range(12):
        pause_s = (shortest_s + longest_s) / 2
        found = escalated(make_policy("groundlight", threshold=threshold, pause_s=pause_s), rows.declared)
        if found.sum() == wanted:
            break
        if found.sum() > wanted:
            shortest_s = pause_s
        else:
            longest_s = pause_s
    return found


def _random(rows: Rows, wanted: int) -> NDArray[np.bool_]:
    state = PolicyState(draws=random.Random(wanted))
    return escalated(make_policy("random", rate=wanted / len(rows.declared)), rows.declared, state)


CONTENDERS: dict[PolicyKind, Callable[[Rows, int], NDArray[np.bool_]]] = {
    "value": _value,
    "certified": _certified,
    "threshold": _threshold,
    "sedna": _sedna,
    "groundlight": _groundlight,
    "random": _random,
}
"""By kind, from the rows and how many of them to escalate, which it escalates: as many, or as near as ties allow."""


def _scores(rows: Sequence[RowEvidence]) -> Floats:
    return np.array([seen.score for seen in rows])


def _lowest(scores: Floats, wanted: int) -> float:
    """The threshold below which so many lie; where scores tie, the nearest number."""
    ascending = np.sort(scores)
    at = float(ascending[wanted])
    below, above = np.searchsorted(ascending, at, "left"), np.searchsorted(ascending, at, "right")
    return at if wanted - below <= above - wanted else float(np.nextafter(at, np.inf))
