"""Reports about several executors: in the log, the API and the command."""

import re

import orjson
from support.executors import M, N, row, site
from support.gateway import served_as

from firstline_core.protocol import http
from firstline_gateway.commands.status import executor_lines
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher


def lines_of(dispatcher: Dispatcher) -> list[str]:
    """As `firstline-gateway status` writes what the API says."""
    reply = http.json_reply({"executors": dispatcher.report().executors})
    return executor_lines(orjson.loads(reply.body)["executors"])


async def test_a_batch_that_hangs_is_shown_with_its_age() -> None:
    async with site({"only": 0.01}) as cluster:
        await cluster.until(cluster.ask(1.0))
        cluster.executors["only"].stop()
        run = cluster.dispatcher.run_on(cluster.members["only"], M, [row(1.0)], [None])
        for _ in range(200):
            await cluster.clock.advance(0.1)
        (line,) = lines_of(cluster.dispatcher)
        assert line == (
            "executor: only: up (100% of batches, 1 under way, m at 1 times its usual seconds with a batch under way "
            "for 20 s)"
        )
        cluster.executors["only"].go_on()
        await cluster.until(run)
        assert "1 times its usual" not in (line := lines_of(cluster.dispatcher)[0])
        assert "under way for" not in line


def test_two_versions_of_a_model_are_told_apart() -> None:
    paces = [{"model": "m", "version": version, "pace": 1.0} for version in ("1", "2")]
    paces.append({"model": "n", "version": "1", "pace": 3.0})
    (line,) = executor_lines([{"name": "only", "batches": {}, "under_way": 0, "problem": "", "paces": paces}])
    assert "m 1 at 1 times its usual seconds, m 2 at 1 times its usual seconds, n at 3 times" in line


async def test_model_that_only_one_executor_runs_is_shown() -> None:
    async with site({"only": 0.01}) as cluster:
        cluster.add(served_as(N))
        for _ in range(3):
            cluster.members["only"].models[M].health.failed(0.0)
        (line,) = lines_of(cluster.dispatcher)
        assert re.search(r"only: up .*m at 1 times its usual seconds: It failed; it is tried again in 0\.5 s\.", line)
        for _ in range(3):
            cluster.members["only"].models[N].health.failed(0.0)
        assert lines_of(cluster.dispatcher)[0].count("It failed") == 1
