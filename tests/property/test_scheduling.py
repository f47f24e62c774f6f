"""What the gateway's scheduling promises, on simulated time, whatever comes."""

import random
import statistics
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_load import Asked, Ended, Load

from firstline_core.errors import QueueFullError
from firstline_core.types import ModelKey

M, N = ModelKey("m", 1), ModelKey("n", 1)
SECONDS = {M: (0.0, 0.010), N: (0.020, 0.002)}

asked = st.builds(
    Asked,
    at_s=st.floats(0, 0.03),
    key=st.sampled_from((M, N)),
    rows=st.integers(1, 3),
    timeout_s=st.none() | st.floats(0.05, 0.5),  # no model takes more than 0.03 s
    principal=st.sampled_from(("a", "b", "c")),
    priority=st.integers(0, 3),
    audit=st.booleans(),
)


def in_order(plan: list[Asked]) -> list[Asked]:
    """The drawn times as distances."""
    times = accumulate(each.at_s for each in plan)
    return [Asked(at_s, *list(vars(each).values())[1:]) for at_s, each in zip(times, plan, strict=True)]


def poisson(seed: int, rate: float, seconds: float, **fields: object) -> list[Asked]:
    draw = random.Random(seed)
    plan, at_s = [], 0.0
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        plan.append(Asked(at_s, M, **fields))
    return plan


def together(*plans: list[Asked]) -> list[Asked]:
    return sorted((each for plan in plans for each in plan), key=lambda each: each.at_s)


def played(plan: list[Asked], slots: int = 1, others: Sequence[tuple[float, int]] = ()) -> tuple[Load, list[Ended]]:
    async def play() -> tuple[Load, list[Ended]]:
        load = Load(SECONDS, slots, others)
        await load.warm(1, 2, 4, 8, 16, 32)
        return load, await load.play(plan)

    return uvloop.run(play())


BESIDE = [[], [(2.0, 1)], [(20.0, 4)], [(5.0, 2), (50.0, 8)]]
"""Other executors of the same models: how many times as long each takes, and its slots."""


@given(plan=st.lists(asked, max_size=60).map(in_order), others=st.sampled_from(BESIDE))
@settings(max_examples=40, deadline=None)
def test_requests_end_by_their_deadline(plan: list[Asked], others: list[tuple[float, int]]) -> None:
    load, ended = played(plan, others=others)
    for each in ended:
        assert each.asked.timeout_s is None or each.seconds <= each.asked.timeout_s + 0.011  # the test's own steps
        assert each.refused or each.asked.timeout_s is not None or each.seconds <= 10.0 or each.asked.audit
        if isinstance(each.error, QueueFullError):
            assert each.error.retry_after_s >= 0
    assert load.batcher.depth == 0


def mixture(seed: int) -> list[Asked]:
    """Two models, three clients, all levels, with and without deadlines, about as much as can be answered."""
    rng = random.Random(seed)
    gap_s, plan = rng.choice((0.003, 0.01, 0.03)), []
    for _ in range(rng.randint(20, 60)):
        timeout_s = None if rng.random() < 1 / 3 else rng.uniform(0.05, 0.5)
        who, level, audit = rng.choice("abc"), rng.randint(0, 3), rng.random() < 0.3
        plan.append(Asked(rng.uniform(0, gap_s), rng.choice((M, N)), rng.randint(1, 3), timeout_s, who, level, audit))
    return in_order(plan)


@pytest.mark.parametrize("others", BESIDE)
def test_few_admitted_requests_are_late_in_any_mixture(others: list[tuple[float, int]]) -> None:
    """What batches of two models do to each other is foreseen about, not exactly."""
    seeds = range(20 if others else 60)
    ended = [each for seed in seeds for each in played(mixture(seed), others=others)[1]]
    assert sum(each.late for each in ended) <= 0.005 * sum(not each.refused for each in ended)


@pytest.mark.parametrize("times_capacity", [2.0, 10.0])
def test_overload_costs_no_goodput(times_capacity: float) -> None:
    _, ended = played(poisson(1, 100 * times_capacity, 5.0, timeout_s=0.1))
    good = sum(not each.refused for each in ended)
    assert good >= 0.95 * 500
    assert not any(each.late for each in ended)
    assert all(each.seconds == 0 for each in ended if each.refused)  # at once


@pytest.mark.parametrize("timeout_s", [0.1, 0.5])
@pytest.mark.parametrize("others", BESIDE[1:])
def test_overload_of_unequal_executors_makes_no_request_late(others: list[tuple[float, int]], timeout_s: float) -> None:
    """As if the slow ones were as quick, what they cannot do in time would be admitted, too."""
    _, ended = played(poisson(1, 300, 3.0, timeout_s=timeout_s), others=others)
    assert sum(each.late for each in ended) <= 0.002 * sum(not each.refused for each in ended)
    assert sum(not each.refused for each in ended) >= answered_alone(timeout_s)


@cache
def answered_alone(timeout_s: float) -> int:
    """The number of these requests that one executor answers."""
    _, ended = played(poisson(1, 300, 3.0, timeout_s=timeout_s))
    return sum(not each.refused for each in ended)


def share_of(ended: list[Ended], principal: str) -> float:
    answered = [each.asked.principal for each in ended if not each.refused]
    return answered.count(principal) / len(answered)


def test_greedy_client_does_not_starve_others() -> None:
    refused: list[bool] = []
    for first in range(771, 779, 2):  # of 60 requests alone one in some hundreds of seeds has a tenth refused
        polite = poisson(first, 20, 3.0, principal="polite", timeout_s=0.2)
        greedy = poisson(first + 1, 500, 3.0, principal="greedy", timeout_s=0.2)
        _, ended = played(together(polite, greedy))
        refused += [each.refused for each in ended if each.asked.principal == "polite"]
        assert sum(not each.refused for each in ended) >= 0.9 * 300  # and what it leaves is not wasted
    assert sum(refused) <= 0.1 * len(refused)  # of them some from before it was known


def test_greedy_clients_share_equally() -> None:
    plans = [
        poisson(n, rate, 4.0, principal=name, timeout_s=0.3)
        for n, (name, rate) in enumerate({"a": 500, "b": 150}.items())
    ]
    _, ended = played(together(*plans))
    assert 0.4 <= share_of(ended, "b") <= 0.6


def test_priorities_order_answers_and_the_lowest_is_answered() -> None:
    high = poisson(1, 80, 5.0, priority=1, timeout_s=0.3)
    low = poisson(2, 80, 5.0, priority=3, timeout_s=0.3)
    _, ended = played(together(high, low))
    by_level = {level: [each for each in ended if each.asked.priority == level] for level in (1, 3)}
    answered = {level: sum(not each.refused for each in found) / len(found) for level, found in by_level.items()}
    assert answered[1] > 0.9
    assert 0.1 < answered[3] < answered[1]
    assert not any(each.late for each in ended)


def test_a_higher_priority_waits_less_where_many_go_together() -> None:
    """Batches are filled by level too: if one request only of each were chosen by it, all would wait alike."""

    async def play() -> list[Ended]:
        load = Load({M: (0.010, 0.001)})
        await load.warm(1, 2, 4, 8, 16, 32)
        return await load.play(together(poisson(1, 200, 3.0, priority=1), poisson(2, 1500, 3.0, priority=3)))

    ended = uvloop.run(play())
    waited = {
        level: [each.seconds for each in ended if not each.refused and each.asked.priority == level] for level in (1, 3)
    }
    assert statistics.median(waited[1]) < 0.2 * statistics.median(waited[3])
    assert max(waited[3]) <= 10.0  # and no request forever: see `seconds` of `Bounds`


def test_audits_have_the_lowest_priority() -> None:
    audits = poisson(1, 200, 5.0, audit=True, timeout_s=1.0, principal="d")
    escalations = poisson(2, 80, 5.0, timeout_s=0.3, principal="d")
    _, ended = played(together(audits, escalations))
    refused = [each.refused for each in ended if not each.asked.audit]
    assert sum(refused) <= 0.1 * len(refused)


def test_a_slowdown_makes_only_earlier_requests_late() -> None:
    row_s, timeout_s = 0.010, 0.2

    async def play() -> tuple[list[Ended], list[Ended], list[Ended]]:
        load = Load(SECONDS)
        await load.warm(1, 2, 4)
        before = await load.play(poisson(1, 300, 3.0, timeout_s=timeout_s))
        load.executor.slowness = 3.0
        slow = await load.play(poisson(101, 300, 6.0, timeout_s=timeout_s))
        load.executor.slowness = 1.0
        return before, slow, await load.play(poisson(201, 300, 3.0, timeout_s=timeout_s))

    before, slow, after = uvloop.run(play())
    assert not any(each.late for each in before)
    late = [each for each in slow if each.late]
    assert len(late) <= timeout_s / row_s  # all that can have been promised at the old speed
    assert all(each.asked.at_s <= 1.0 for each in late)  # five times as long as one waits: then it has learned
    assert sum(not each.refused and not each.late for each in slow) >= 0.8 * 200
    assert sum(not each.refused and not each.late for each in after) >= 0.85 * 300
    assert not any(each.late for each in after)


def test_temporary_slowdowns_make_few_requests_late() -> None:
    """Half a second in two, as if other processes used the memory: more than is learned in time."""

    async def play() -> list[Ended]:
        load = Load(SECONDS)
        await load.warm(1, 2, 4)
        now_s = load.clock.monotonic_s()
        for start_s in range(1, 10, 2):
            for at_s, slowness in ((start_s, 2.0), (start_s + 0.5, 1.0)):
                load.clock.call_at(now_s + at_s, partial(setattr, load.executor, "slowness", slowness))
        return await load.play(poisson(2, 1000, 10.0, timeout_s=0.25))

    ended = uvloop.run(play())
    good = sum(not each.refused and not each.late for each in ended)
    assert good >= 0.95 * 1000 * 0.875  # a quarter of the time at half the speed
    assert sum(each.late for each in ended) <= 0.03 * good
