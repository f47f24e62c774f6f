"""The engine on a Ray cluster, in simulated time: deploying, retries, deadlines, readiness, what is believed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from support.far_servers import SERVED, M
from support.waiting import result_of

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.protocol.limits import DecodingLimits
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.ray.deployment import Deployment, State, deployment_of
from firstline_gateway.executors.ray.executor import RayExecutor
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Settings

T = TypeVar("T")
WHERE = Path("models/m").absolute()
WANTED = replace(deployment_of(replace(SERVED, path=WHERE), Settings()), replicas_min=2, replicas_max=2)


class FakeCluster:
    """A cluster in simulated time. Attributes may be changed at any moment."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.there = True
        self.seconds = 0.01
        self.dying = 0  # number of the next batches that lose their replica
        self.breaks: Exception | None = None
        self.unclear: dict[str, Exception] = {}  # by deployment, what asking for its fingerprint raises
        self.extra_outcomes = 0
        self.starts = True  # else replicas do not come up
        self.deployed: dict[str, Deployment] = {}
        self.deploys = 0
        self.lefts: list[list[float | None]] = []
        self.closed = False

    async def connect(self) -> None:
        self._reach()

    async def states(self) -> dict[str, State]:
        self._reach()
        return {
            name: State(found.replicas_min, "") if self.starts else State(0, "The bundle is another.")
            for name, found in self.deployed.items()
        }

    async def deploy(self, deployment: Deployment) -> None:
        self._reach()
        self.deploys += 1
        self.deployed[deployment.name] = deployment

    async def fingerprint(self, name: str) -> str:
        self._reach()
        if name in self.unclear:
            raise self.unclear[name]
        return self.deployed[name].fingerprint

    async def run(
        self, name: str, inputs: Sequence[Arrays], left_s: Sequence[float | None], timeout_s: float
    ) -> list[Outcome]:
        self._reach()
        self.lefts.append(list(left_s))
        await self._clock.sleep(min(self.seconds, timeout_s))
        if self.dying:
            self.dying -= 1
            raise errors.LinkDownError("a replica died")
        if self.breaks is not None:
            raise self.breaks
        if self.seconds >= timeout_s:
            raise errors.RemoteTimeoutError("no answer")
        outcomes = [next(iter(each.values())).astype(np.float32) for each in inputs]
        return outcomes + outcomes[:1] * self.extra_outcomes

    async def close(self) -> None:
        self.closed = True

    def _reach(self) -> None:
        if not self.there:
            raise errors.LinkDownError("the Ray cluster at head:6379 does not answer (nobody)")


class Site:
    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.cluster = FakeCluster(self.clock)
        make = partial(deployment_of, settings=Settings())
        self.executor = RayExecutor({M: WANTED}, self.cluster, in_flight=2, timeout_s=30.0, make=make, clock=self.clock)

    async def until(self, awaited: Awaitable[T], step_s: float = 0.005) -> T:
        return await result_of(awaited, self.clock, step_s)

    async def up(self) -> None:
        await self.until(self.executor.start())
        await self.clock.advance(1.0)

    async def ask(self, *values: float, timeout_s: float | None = None) -> list[Outcome]:
        inputs = [{"x": np.array([[value]], np.float32)} for value in values]
        due_s = None if timeout_s is None else self.clock.monotonic_s() + timeout_s
        return await self.until(self.executor.run(M, inputs, [due_s] * len(values)))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.executor.close(1.0)


async def test_it_deploys_once_and_answers(site: Site) -> None:
    assert "not contacted yet" in site.executor.problem_with(M)
    await site.up()
    assert site.cluster.deployed == {WANTED.name: WANTED}
    assert (site.executor.problem_with(M), site.executor.slots) == ("", 4)
    assert [np.asarray(each).tolist() for each in await site.ask(1.0, 2.0)] == [[[1.0]], [[2.0]]]
    assert site.executor.report().up == {(WANTED.name,): 2.0}
    await site.clock.advance(100.0)
    assert site.cluster.deploys == 1
    assert await site.executor.close(1.0)
    assert site.cluster.closed


async def test_a_running_deployment_stays_unless_its_settings_change() -> None:
    site = Site()
    site.cluster.deployed[WANTED.name] = WANTED
    await site.up()
    assert site.cluster.deploys == 0
    await site.executor.close(1.0)
    site = Site()
    site.cluster.deployed[WANTED.name] = replace(WANTED, replicas_max=7)
    await site.up()
    assert site.cluster.deployed[WANTED.name] == WANTED
    await site.executor.close(1.0)


async def test_a_batch_whose_replica_dies_runs_on_another(site: Site) -> None:
    await site.up()
    site.cluster.dying = 3
    (answer,) = await site.ask(1.0)
    assert isinstance(answer, np.ndarray)
    assert site.executor.report().repeats == {("retry",): 3.0}
    site.cluster.dying = 10
    with pytest.raises(errors.EngineUnavailableError, match="A replica died"):
        await site.ask(1.0)
    assert site.executor.report().batches[WANTED.name, "failed"] == 7


async def test_deadlines_travel_as_what_is_left_and_end_retries(site: Site) -> None:
    await site.up()
    await site.ask(1.0, timeout_s=2.0)
    await site.ask(1.0)
    assert site.cluster.lefts[-2:] == [[pytest.approx(2.0)], [None]]
    site.cluster.seconds = 60.0
    with pytest.raises(errors.DeadlineExceededError):
        await site.ask(1.0, timeout_s=0.5)


async def test_a_failed_run_on_the_cluster_is_not_retried(site: Site) -> None:
    await site.up()
    site.cluster.breaks = errors.InferenceError("it broke")
    with pytest.raises(errors.InferenceError):
        await site.ask(1.0)
    assert len(site.cluster.lefts) == 1


async def test_outcomes_that_do_not_fit_the_batch_fail_it(site: Site) -> None:
    await site.up()
    site.cluster.extra_outcomes = 1
    with pytest.raises(errors.InferenceError, match="gave 3 outcomes of 2 requests"):
        await site.ask(1.0, 2.0)


async def test_replicas_that_do_not_start_are_reported_and_retried(site: Site) -> None:
    site.cluster.starts = False
    await site.up()
    assert site.executor.problem_with(M) == "The bundle is another."
    with pytest.raises(errors.EngineUnavailableError, match="The bundle is another"):
        await site.ask(1.0)
    await site.clock.advance(20.0)
    assert site.cluster.deploys == 1
    await site.clock.advance(15.0)
    assert site.cluster.deploys == 2
    site.cluster.starts = True
    await site.clock.advance(2.0)
    assert site.executor.problem_with(M) == ""


async def test_batches_do_not_wait_for_replicas_that_are_gone(site: Site) -> None:
    await site.up()
    site.cluster.seconds = 25.0
    task = asyncio.ensure_future(site.ask(1.0))
    await asyncio.sleep(0)
    site.cluster.starts = False
    began_s = site.clock.monotonic_s()
    with pytest.raises(errors.EngineUnavailableError):
        await task
    assert site.clock.monotonic_s() - began_s < 5


async def test_later_model_is_deployed_before_it_is_ready(site: Site) -> None:
    other = ModelKey("other", 1)
    served = replace(SERVED, key=other, path=WHERE.parent / "other")
    await site.up()
    await site.until(site.executor.put(served), step_s=0.1)
    assert site.executor.problem_with(other) == ""
    assert len(site.cluster.deployed) == 2
    await site.executor.drop(other)
    assert len(site.cluster.deployed) == 2, "other gateways may use it"


@pytest.mark.parametrize(
    "error",
    [
        errors.InferenceError("it broke"),
        errors.RemoteTimeoutError("no replica answered"),
        errors.LinkDownError("a replica is away"),
    ],
)
async def test_a_deployment_that_does_not_say_its_settings_delays_no_other(site: Site, error: Exception) -> None:
    other = ModelKey("other", 1)
    second = deployment_of(replace(SERVED, key=other, path=WHERE.parent / "other"), Settings())
    site.executor.models[other] = second
    site.cluster.deployed[WANTED.name] = WANTED
    site.cluster.unclear[WANTED.name] = error
    await site.up()
    await site.clock.advance(5.0)
    assert (site.executor.problem_with(M), site.executor.problem_with(other)) == ("", "")
    # A failure is that of another program under this name; the cluster replaces it, once.
    assert site.cluster.deploys == (2 if isinstance(error, errors.InferenceError) else 1)


async def test_replicas_of_a_replaced_model_take_no_batches(site: Site) -> None:
    await site.up()
    await site.executor.drop(M)
    assert site.executor.slots == 2
    await site.until(site.executor.put(replace(SERVED, digest="f" * 64, path=WHERE)))
    await site.clock.advance(5.0)
    replicas = Settings().ray.replicas_min
    assert site.executor.slots == 2 * replicas


async def test_the_last_state_of_a_silent_cluster_holds_for_a_while(site: Site) -> None:
    await site.up()
    site.cluster.there = False
    await site.clock.advance(5.0)
    assert site.executor.problem_with(M) == ""
    await site.clock.advance(15.0)
    assert site.executor.problem_with(M) == "The Ray cluster at head:6379 does not answer (nobody)."
    site.cluster.there = True
    await site.clock.advance(2.0)
    assert site.executor.problem_with(M) == ""


def test_deployments_have_the_clusters_path_and_the_gateways_limits() -> None:
    served = replace(SERVED, path=Path("models/m/3").absolute())
    overrides = {"ray.models_directory": "/srv/models", "models.directory": "models", "decoding.side_limit": 5000}
    found = deployment_of(served, load(None, environ={}, overrides=overrides))
    assert found.decoding.side == 5000
    assert found.fingerprint != replace(found, decoding=DecodingLimits()).fingerprint
    assert (found.bundle, found.name) == ("/srv/models/m/3", f"firstline-m-3-{SERVED.digest[:12]}")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"ray.address": "ray://head:10001"}, "ray.address"),
        ({"ray.address": "head"}, "ray.address"),
        ({"ray.replicas_min": 3, "ray.replicas_max": 2}, "ray.replicas_max"),
    ],
)
def test_settings_that_make_no_sense(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(errors.ConfigError, match=words):
        load(None, environ={}, overrides=overrides)


def test_without_ray_a_sentence_says_what_to_install() -> None:
    import importlib.util

    from firstline_gateway.executors.factory import check_executors

    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed here")
    with pytest.raises(errors.ConfigError, match=r"install firstline\[gateway,ray\]"):
        check_executors(load(None, environ={}, overrides={"execution.engine": "ray"}))
