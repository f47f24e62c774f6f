"""Reports about several executors: in the log, the API and the command."""

from __future__ import annotations

import re

import orjson
from support.executors import SERVED, M, N, row, site
from support.gateway import served_as
from support.logs import captured_lines

from firstline_core.protocol import http
from firstline_gateway.api.monitoring import _executor
from firstline_gateway.commands.status import executor_lines
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.forecast import Costs


def lines_of(dispatcher: Dispatcher) -> list[str]:
    """As `firstline-gateway status` writes what the API says."""
    reply = http.json_reply({"executors": [_executor(each) for each in dispatcher.report().executors]})
    return executor_lines(orjson.loads(reply.body)["executors"])


async def test_a_batch_that_hangs_is_shown_with_its_age() -> None:
    async with site({"only": 0.01}) as made:
        await made.until(made.ask(1.0))
        made.executors["only"].stop()
        asked = made.dispatcher.run_on(made.members["only"], M, [row(1.0)], [None]).ended
        for _ in range(200):
            await made.clock.advance(0.1)
        (line,) = lines_of(made.dispatcher)
        assert line == (
            "executor: only: up (100% of batches, 1 under way, m at 1 times its usual seconds with a batch under way "
            "for 20 s)"
        )
        made.executors["only"].go_on()
        await made.until(asked)
        assert "1 times its usual" not in (line := lines_of(made.dispatcher)[0])
        assert "under way for" not in line


async def test_a_model_that_an_executor_is_left_alone_with_is_told_beside_those_that_run() -> None:
    async with site({"only": 0.01}) as made:
        made.add(served_as(N))
        for _ in range(3):
            made.members["only"].models[M].health.failed(0.0)
        (line,) = lines_of(made.dispatcher)
        assert re.search(r"only: up .*m at 1 times its usual seconds: It failed; it is tried again in 0\.5 s\.", line)
        for _ in range(3):
            made.members["only"].models[N].health.failed(0.0)
        assert lines_of(made.dispatcher)[0].count("It failed") == 1


async def test_a_budget_of_energy_that_nobody_can_keep_is_told() -> None:
    """With a profile of one model and not of the other the settings cannot know."""
    with captured_lines() as logged:
        async with site({"only": 0.01}, energy_w={"only": 1.0}) as made:
            made.members["only"].place(SERVED, Costs(energy_j={1: 0.1}, energy_source="measured"))
            await made.dispatcher.put(served_as(N))
            lines = lines_of(made.dispatcher)
    assert lines[1].startswith("mind: executor only, model n: Its energy_budget_w does not hold for this model")
    assert len(lines) == 2
    warned = [(each["executor"], each["model"]) for each in logged if each["event"] == "energy budget does not hold"]
    assert warned == [("only", "m"), ("only", "n")], "the first before its profile was placed"


async def test_stated_watts_count_by_what_a_batch_took_where_nobody_had_measured_it() -> None:
    async with site({"only": 0.01}, unknown={}, power_w={"only": 10.0}, energy_w={"only": 100.0}) as made:
        await made.until(made.ask(1.0))
        assert made.report("only").energy_j > 0.09
        assert lines_of(made.dispatcher)[0].startswith("executor: only: up")
        assert len(lines_of(made.dispatcher)) == 1
