"""Which executor a batch goes to, whatever they are like, and the share of its time that probes take."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from firstline_gateway.executors.dispatch.member import (
    PROBE_SAVED_S,
    PROBE_SHARE,
    Candidate,
    ProbeBudget,
    earliest_completion,
    free_s,
)

seconds = st.floats(0, 100)
candidate = st.builds(
    Candidate,
    member=st.integers(0, 9),
    wait_s=seconds,
    run_s=st.none() | seconds,
    under_way=st.integers(0, 20),
    trusted=st.booleans(),
)


def wait_s(left_s: list[float], slots: int) -> float:
    return free_s(left_s, slots)[0]


@given(st.lists(candidate, max_size=8))
def test_the_earliest_completion_is_chosen(candidates: list[Candidate[int]]) -> None:
    chosen = earliest_completion(candidates)
    if chosen is None:
        assert not candidates, "an executor was there"
        return
    trusted = [each for each in candidates if each.trusted]
    assert chosen.trusted or not trusted
    assert chosen.done_s == min(each.done_s for each in (trusted or candidates))


@given(st.lists(seconds, max_size=30), st.integers(1, 8))
def test_free_slots_follow_ended_batches(left_s: list[float], slots: int) -> None:
    found_s = wait_s(left_s, slots)
    if len(left_s) < slots:
        assert found_s == 0
    else:
        assert found_s <= sum(left_s) / slots * (1 + 1e-9), "the earliest of the slots is no later than their mean"
        assert found_s >= min(left_s)


@given(st.lists(st.floats(0.001, 0.1), min_size=2, max_size=5), st.integers(1, 3), st.integers(1, 200))
def test_simultaneous_batches_spread_over_executors(run_s: list[float], slots: int, batches: int) -> None:
    """Each choice adds to the running work that the next one sees: no batch would have finished earlier elsewhere,
    and all work ends within one batch of what a perfect division would take."""
    given_to: dict[int, list[float]] = {name: [] for name in range(len(run_s))}
    ends_s = []
    for _ in range(batches):
        candidates = [
            Candidate(name, wait_s(given_to[name], slots), each, len(given_to[name])) for name, each in enumerate(run_s)
        ]
        chosen = earliest_completion(candidates)
        ends_s.append(chosen.done_s)
        given_to[chosen.member].append(run_s[chosen.member])
    rate = sum(slots / each for each in run_s)
    assert max(ends_s) <= batches / rate + max(run_s) + 1e-9
    assert ends_s == sorted(ends_s), "later ones are done later: none was passed by"


def test_equal_executors_share_equally() -> None:
    given_to: Counter[int] = Counter()
    for _ in range(9):
        chosen = earliest_completion(
            Candidate(name, wait_s([0.01] * given_to[name], 2), 0.01, given_to[name]) for name in range(3)
        )
        given_to[chosen.member] += 1
    assert set(given_to.values()) == {3}


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), max_size=60))
@example([(0.0, 1.0)] * 20)
def test_probes_stay_within_their_share(requests: list[tuple[float, float]]) -> None:
    copies, now_s, taken_s, longest_s = ProbeBudget(), 0.0, 0.0, 0.0
    for pause_s, seconds in requests:
        now_s += pause_s
        if copies.may(now_s):
            now_s += seconds
            copies.took(seconds, now_s)
            taken_s, longest_s = taken_s + seconds, max(longest_s, seconds)
        assert taken_s <= PROBE_SAVED_S + PROBE_SHARE * now_s + longest_s + 1e-6


@given(st.floats(0, 100))
def test_the_probe_budget_refills(seconds: float) -> None:
    copies = ProbeBudget()
    copies.took(seconds, 0.0)
    assert copies.may(seconds / PROBE_SHARE + 1.0)
