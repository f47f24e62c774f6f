"""Several executors for a model, in simulated time: shares, budgets, one that degrades, hangs, fails and comes back."""

import asyncio
import gc
import itertools
import re
from collections import Counter

import pytest
from support.executors import SERVED, M, N, row, site
from support.gateway import served_as

from firstline_core import errors
from firstline_core.types import ModelKey


@pytest.mark.parametrize(("models", "row_s"), [(1, 0.5), (20, 0.5), (5, 3.0)])
async def test_probes_take_little_of_a_slow_executors_time(models: int, row_s: float) -> None:
    """Two seconds are saved up; after that it is 2 % of its time, however many models are tried there."""
    async with site({"one": 0.05, "other": 0.06}) as cluster:
        others = [served_as(ModelKey(f"m{number}", 1)) for number in range(1, models)]
        cluster.add(*others)
        keys = [M, *(served.key for served in others)]
        cluster.executors["other"].row_s = row_s
        for number in range(1200):  # a minute
            await cluster.until(cluster.ask(1.0, key=keys[number % len(keys)]), 0.05)
        spent_s = sum(min(row_s, 1.0) for _ in cluster.executors["other"].batches)  # one that takes longer is given up
        assert spent_s <= 2.0 + 0.02 * cluster.clock.monotonic_s() + 1.0
        assert spent_s > 1.0


async def test_no_probe_exceeds_the_budgets() -> None:
    async with site({"one": 0.01, "other": 0.02}, slots={"one": 2}) as cluster:
        cluster.add(served_as(N))
        cluster.executors["other"].stop()
        busy = cluster.dispatcher.run_on(cluster.members["other"], N, [row(1.0)], [None])
        await cluster.until(cluster.ask(1.0))
        assert cluster.executors["other"].batches == [1]
        cluster.executors["other"].go_on()
        await cluster.until(busy)


async def test_work_spreads_in_proportion_to_the_speeds() -> None:
    async with site({"fast": 0.01, "slow": 0.04}) as cluster:
        assert await cluster.share("fast", 4.0, clients=8) == pytest.approx(0.8, abs=0.05)


async def test_single_requests_go_to_the_fastest_executor() -> None:
    async with site({"fast": 0.01, "slow": 0.04}) as cluster:
        took_s = await cluster.go(2.0, clients=1)
        assert cluster.shares()["slow"] < 0.05, "but for copies"
        assert max(took_s) < 0.012


async def test_an_unmeasured_executor_is_measured_by_probes() -> None:
    async with site({"one": 0.02, "other": 0.01}, unknown={}) as cluster:
        took_s = await cluster.go(2.0, clients=1)
        assert cluster.shares()["other"] > 0.9
        assert cluster.repeats["executor_probe"] >= 1
        assert max(took_s) < 0.022


async def test_a_probe_with_an_internal_error_frees_its_slot() -> None:
    async with site({"one": 0.01, "other": 0.02}) as cluster:
        cluster.executors["other"].error = RuntimeError("a fault")
        seen: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(str(context["exception"])))
        await cluster.go(0.5, clients=1)
        assert cluster.executors["other"].batches
        assert cluster.members["other"].running == []
        gc.collect()
        assert "a fault" in seen


async def test_load_moves_away_from_a_degraded_executor_and_returns() -> None:
    async with site({"one": 0.01, "other": 0.02}) as cluster:
        assert await cluster.share("one", 1.0, clients=1) > 0.9
        cluster.executors["one"].row_s = 0.2
        took_s = await cluster.go(1.0, clients=1)
        assert max(took_s) < 0.1, "what is late is run elsewhere too"
        assert await cluster.share("one", 2.0, clients=1) < 0.1
        assert cluster.pace("one", M).pace > 3
        cluster.executors["one"].row_s = 0.01
        await cluster.go(6.0, clients=1)
        assert await cluster.share("one", 1.0, clients=1) > 0.9
        assert cluster.pace("one", M).pace == pytest.approx(1.0, abs=0.3)


async def test_an_executor_that_hung_for_long_gets_work_again() -> None:
    async with site({"one": 0.005, "other": 0.02}) as cluster:
        cluster.executors["one"].stop()
        await cluster.go(15.0, clients=1)
        cluster.executors["one"].go_on()
        await cluster.go(15.0, clients=1)
        assert await cluster.share("one", 1.0, clients=1) > 0.9


async def test_a_hanging_batch_is_answered_by_another_executor() -> None:
    async with site({"one": 0.01, "other": 0.015}) as cluster:
        cluster.executors["one"].stop()
        took_s = await cluster.go(3.0)
        assert max(took_s) < 0.2
        assert cluster.repeats["executor_late"] >= 1
        assert len(took_s) > 100, "and the hang does not repeat"
        cluster.executors["one"].go_on()
        await cluster.go(6.0)
        assert await cluster.share("one", 1.0) > 0.4


@pytest.mark.parametrize(("first", "second", "within_s"), [({}, {}, 2.0), ({}, {1: 0.01}, 0.2), ({1: 0.01}, {}, 0.2)])
async def test_a_hanging_batch_of_unknown_duration_is_answered_by_another(
    first: dict[int, float], second: dict[int, float], within_s: float
) -> None:
    async with site({"one": 0.01, "other": 0.01}) as cluster:
        for member, seconds in zip(cluster.members.values(), (first, second), strict=True):
            member.place(SERVED, seconds)
            member.begin(M, 1, 0.0)  # no copies
            member.cut_off(member.running[0], 0.0)
        cluster.executors["one"].stop()
        (outcome,) = await cluster.until(cluster.dispatcher.run_on(cluster.members["one"], M, [row(2.0)], [None]))
        assert outcome["probabilities"].tolist() == [[4.0]]
        assert cluster.clock.monotonic_s() < within_s
        assert cluster.repeats == {"executor_late": 1}
        cluster.executors["one"].go_on()


@pytest.mark.parametrize(
    "error", [errors.LinkDownError("gone"), errors.QueueFullError("full"), errors.InferenceError("no kernel")]
)
async def test_a_failure_is_retried_elsewhere_and_ejects(error: errors.FirstlineError) -> None:
    async with site({"one": 0.01, "other": 0.02}) as cluster:
        cluster.executors["one"].error = error
        took_s = await cluster.go(4.0, clients=1)
        assert max(took_s) < 0.2
        assert 3 <= cluster.repeats["executor_retry"] <= 6
        assert "It failed; it is tried again in" in cluster.report("one").problem
        assert sum(member.slots for member in cluster.dispatcher.members) == 1
        cluster.executors["one"].error = None
        await cluster.go(20.0, clients=1)
        assert cluster.report("one").problem == ""
        assert await cluster.share("one", 1.0, clients=1) > 0.9


@pytest.mark.parametrize("error", [errors.CapacityError("out of memory"), errors.InferenceError("out of memory")])
async def test_ejection_for_one_model_keeps_the_others(error: errors.FirstlineError) -> None:
    """A GPU has memory for one of two models: answers of that one do not readmit it for the other."""
    async with site({"gpu": 0.01, "cores": 0.02}) as cluster:
        cluster.add(served_as(N))
        cluster.executors["gpu"].errors_of[N] = error
        for _ in range(300):
            for key in (M, M, N):
                (outcome,) = await cluster.until(cluster.ask(1.0, key=key))
                assert not isinstance(outcome, errors.FirstlineError), outcome
        assert 3 <= cluster.repeats["executor_retry"] <= 6
        assert cluster.report("gpu").problem == ""
        assert re.fullmatch(r"It failed; it is tried again in [0-9.]+ s\.", cluster.pace("gpu", N).problem)
        look = cluster.dispatcher.snapshot()
        completion = look.completion(N, 8)
        assert len(completion.lanes) == 1 and look.part(N, N) == 1
        assert look.part(N, M) < 0.5, "most of m's work goes to the GPU, and is no wait for n"
        cluster.shares()
        for _ in range(20):
            await cluster.until(cluster.ask(1.0))
        assert cluster.shares()["gpu"] > 0.9
        del cluster.executors["gpu"].errors_of[N]
        for _ in range(1000):
            await cluster.until(cluster.ask(1.0, key=N))
        assert cluster.pace("gpu", N).problem == ""


async def test_only_failed_requests_are_retried() -> None:
    async with site({"one": 0.01, "other": 0.02}) as cluster:
        outcomes = await cluster.until(cluster.ask(1.0, -1.0, 3.0))
        assert [isinstance(each, errors.InvalidTensorError) for each in outcomes] == [False, True, False]
        assert cluster.report("one").batches == {"refused": 1}
        assert cluster.repeats["executor_retry"] == 0, "another executor would say the same"


async def test_a_request_that_fails_everywhere_ejects_no_executor() -> None:
    async with site({"one": 0.01, "other": 0.02}) as cluster:
        for executor in cluster.executors.values():
            executor.error = errors.InferenceError("a row of zeros")
        for _ in range(5):
            (outcome,) = await cluster.until(cluster.ask(1.0))
            assert isinstance(outcome, errors.InferenceError)
        assert cluster.report("one").problem == cluster.report("other").problem == ""


async def test_counted_outcomes_never_fall() -> None:
    """The first executor fails on both requests, and each of them is answered by another one; two answer a copy."""
    async with site({"one": 0.01, "other": 0.02, "third": 0.03}) as cluster:
        cluster.executors["one"].values_that_fail = {1.0, 2.0}
        cluster.executors["other"].values_that_fail = {2.0}
        run = cluster.dispatcher.run_on(cluster.members["one"], M, [row(1.0), row(2.0)], [None, None])
        seen: list[Counter[str]] = []
        await asyncio.sleep(0)  # the executors begin
        while not run.done():
            seen.append(Counter(cluster.members["one"].outcomes))
            await cluster.clock.advance(0.001)
        assert [each["probabilities"].tolist() for each in run.result()] == [[[2.0]], [[4.0]]]
        await asyncio.sleep(0)
        assert all(earlier <= later for earlier, later in itertools.pairwise(seen))
        assert {name: member.outcomes for name, member in cluster.members.items()} == {
            "one": {"failed": 1},
            "other": {"answered": 1, "failed": 1},
            "third": {"answered": 2},
        }


async def test_retries_are_bounded_if_everything_fails() -> None:
    async with site({"one": 0.001, "other": 0.001}) as cluster:
        for executor in cluster.executors.values():
            executor.error = errors.LinkDownError("gone")
        for _ in range(400):
            assert await cluster.until(asyncio.gather(cluster.ask(1.0), return_exceptions=True), 0.01)
        assert cluster.repeats["executor_retry"] <= 64 + 0.1 * 400 + 1


async def test_nothing_is_retried_after_its_deadline() -> None:
    async with site({"one": 0.05, "other": 0.01}) as cluster:
        cluster.executors["other"].error = errors.LinkDownError("gone")
        cluster.executors["other"].row_s = 0.03
        (outcome,) = await cluster.until(cluster.ask(1.0, timeout_s=0.02))
        assert isinstance(outcome, errors.LinkDownError)
        assert cluster.repeats["executor_retry"] == 0


async def test_a_missing_server_is_explained_in_a_sentence() -> None:
    async with site({"one": 0.01, "other": 0.02}) as cluster:
        cluster.executors["one"].away = "It is out."
        assert cluster.dispatcher.problem_with(M) == ""
        await cluster.until(cluster.ask(1.0))
        cluster.executors["other"].away = "It sleeps."
        assert cluster.dispatcher.problem_with(M) == "one: It is out. other: It sleeps."
        with pytest.raises(errors.EngineUnavailableError, match="It sleeps"):
            await cluster.until(cluster.ask(1.0))
