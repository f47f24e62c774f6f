from __future__ import annotations

import math

import pytest

from firstline_core.errors import RequestError
from firstline_core.routing.policy import Decision, Evidence, after, before
from firstline_core.types import Privacy, Reason, Route, Tier


def evidence(
    route: Route = Route.AUTO, privacy: Privacy = Privacy.ANY, *, holds_model: bool = True, size_bytes: int = 10
) -> Evidence:
    return Evidence(route, privacy, holds_model, size_bytes, limit_bytes=10)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (evidence(), None),
        (evidence(size_bytes=11), Decision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(holds_model=False), Decision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(Route.CLOUD), Decision(Tier.CLOUD, Reason.REQUESTED)),
        (evidence(Route.EDGE), Decision(Tier.EDGE, Reason.REQUESTED)),
        (evidence(Route.AUTO, Privacy.LOCAL_ONLY), Decision(Tier.EDGE, Reason.LOCAL_ONLY)),
        (evidence(Route.EDGE, Privacy.LOCAL_ONLY), Decision(Tier.EDGE, Reason.LOCAL_ONLY)),
    ],
)
def test_before(given: Evidence, expected: Decision | None) -> None:
    assert before(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (evidence(Route.EDGE, size_bytes=11), "route=edge, but its payload of 11 bytes is over .* limit of 10"),
        (evidence(Route.EDGE, holds_model=False), "route=edge, but this device holds no edge variant"),
        (evidence(privacy=Privacy.LOCAL_ONLY, size_bytes=11), "privacy=local_only, but its payload"),
        (evidence(Route.CLOUD, Privacy.LOCAL_ONLY), "privacy=local_only and route=cloud exclude each other"),
    ],
)
def test_what_no_tier_may_answer_is_refused(given: Evidence, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        before(given)


def test_after() -> None:
    assert after(0.8, 0.8) == Decision(Tier.EDGE, Reason.CONFIDENT)
    assert after(math.nextafter(0.8, 0), 0.8) == Decision(Tier.CLOUD, Reason.UNCERTAIN)
    assert after(math.nan, 0.0) == Decision(Tier.CLOUD, Reason.UNCERTAIN)
