"""Background tasks, and the problem that is reported when one ends."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from support.agent import edge_settings, serving_agent
from support.logs import captured_lines
from support.waiting import until

from firstline_edge.telemetry.background import Background


async def forever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(forever())
        tasks.create_task(asyncio.to_thread(int, "x"))


async def test_a_failed_task_is_reported_at_once_and_ends_no_other() -> None:
    background = Background()
    with captured_lines() as lines:
        background.start("sensors", forever)
        background.start("survey", fails)
        await until(lambda: background.problems)
        assert list(background.problems) == ["survey"]
        assert "survey ended (ValueError: invalid literal" in background.problems["survey"]
        await background.close("sensors")
        with pytest.raises(ExceptionGroup):
            await background.close("survey")
    assert [(line["level"], line["part"]) for line in lines if "part" in line] == [("error", "survey")]


async def test_a_finished_task_is_no_problem() -> None:
    background = Background()
    background.start("identity", partial(asyncio.sleep, 0))
    background.start("sensors", forever)
    await asyncio.sleep(0.01)
    await background.close("identity")
    await background.close("sensors")
    assert background.problems == {}


async def test_a_failed_task_is_a_problem_in_status(tmp_path: Path) -> None:
    async with serving_agent(edge_settings(tmp_path)) as (agent, _):
        background = agent.background
        background.start("survey of a test", fails)
        await until(lambda: background.problems)
        assert [
            one["path"] for one in agent.operations.status()["problems"] if "survey of a test" in one["message"]
        ] == [str(agent.state.path)]
