"""A device on a budget, with a real gateway: what crosses the wire is what is counted, until nothing is left."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.agent import edge_settings
from support.audits import uncertified_digits
from support.digits import predictions, scans
from support.gateway import serving_gateway

from firstline_core.clock import SimulatedClock
from firstline_core.errors import BudgetExceededError
from firstline_core.storage.files import read_checked
from firstline_core.telemetry.decisions import find
from firstline_core.types import Answer, InferResponse, Reason, Status, Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.explain import describe
from firstline_edge.cli.status import describe as describe_status


@dataclass
class Wire:
    """A relay on loopback that counts every byte in both directions."""

    url: str = ""
    crossed: int = 0
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65_536):
                self.crossed += len(chunk)
                writer.write(chunk)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    new_wire, port = Wire(), int(url.rpartition(":")[2])

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(new_wire._relay(reader, upstream[1]), new_wire._relay(upstream[0], writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    new_wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield new_wire
    finally:
        server.close()
        for writer in new_wire._writers:
            writer.close()


@pytest.fixture
async def gateway_url(tmp_path: Path) -> AsyncIterator[str]:
    async with serving_gateway(tmp_path, auth__mode="off") as (_, url):
        yield url


async def ask(agent: EdgeAgent, picture: bytes, **preferences: str) -> Answer:
    response: InferResponse = await agent.data_plane.infer_file("digits", picture, timeout="20000000", **preferences)
    return response.answer


def budget_of(agent: EdgeAgent) -> dict[str, float]:
    [budget] = agent.operations.status()["budgets"]
    return dict(budget)


async def test_charged_bytes_equal_transferred_bytes(gateway_url: str, tmp_path: Path) -> None:
    async with wire(gateway_url) as line:
        settings = edge_settings(
            tmp_path, links=[{"kind": "http", "url": line.url}], budget__bytes_per_day=1_000_000, audit__per_hour=0
        )
        async with EdgeAgent(settings) as agent:
            first, second = scans(2)
            await ask(agent, first, route="cloud")  # opens the connection, by when the first probe is over
            spent, crossed = budget_of(agent)["spent"], line.crossed
            assert (await ask(agent, second, route="cloud")).tier is Tier.CLOUD
            assert budget_of(agent)["spent"] - spent == pytest.approx(line.crossed - crossed, rel=0.1)
            assert budget_of(agent)["spent"] > len(first) + len(second)


async def test_exhausted_budget_stops_escalations_over_restarts(gateway_url: str, tmp_path: Path) -> None:
    clock = SimulatedClock()
    settings = edge_settings(
        tmp_path, links=[{"kind": "http", "url": gateway_url}], budget__bytes_per_hour=6000, audit__per_hour=0
    )
    pictures = scans(40)
    async with EdgeAgent(settings, clock=clock) as agent:
        answers = [await ask(agent, picture, route="cloud") for picture in pictures]
        tiers = [answer.tier for answer in answers]
        ended = tiers.index(Tier.EDGE)
        assert ended > 0
        denied = answers[ended]
        assert (denied.reason, denied.status, denied.certified) == (Reason.BUDGET, Status.FINAL, False)
        assert budget_of(agent)["spent"] <= 6000
        agent.recorder.flush()
        [line] = find(agent.state.decisions_path, denied.request_id)
        story = "\n".join(describe(line))
        assert "a budget or quota forbade it" in story and "was not asked (budget_exceeded)" in story
        described = "\n".join(describe_status("http://edge", agent.operations.status()))
        assert "budget  bytes/hour: " in described
        metrics = agent.operations.exposition()[0].decode()
        assert 'firstline_edge_budget_left{budget="bytes/hour"}' in metrics
        spent = budget_of(agent)["spent"]

    async with EdgeAgent(settings, clock=clock) as agent:
        assert budget_of(agent)["spent"] == spent
        assert (await ask(agent, pictures[ended], route="cloud")).reason is Reason.BUDGET
        await clock.advance(3600)
        assert budget_of(agent)["spent"] == 0
        assert (await ask(agent, pictures[ended], route="cloud")).tier is Tier.CLOUD
    assert json.loads(read_checked(tmp_path / "spending.json"))["ledgers"]["bytes/hour"]["spent"] > 0


async def test_exhausted_budget_refuses_models_of_the_gateway_alone(gateway_url: str, tmp_path: Path) -> None:
    settings = edge_settings(
        tmp_path, models__directories=[], links=[{"kind": "http", "url": gateway_url}], budget__bytes_per_hour=10
    )
    async with EdgeAgent(settings) as agent:
        with pytest.raises(BudgetExceededError) as refused:
            await agent.data_plane.infer_file("digits", scans(1)[0], timeout="20000000")
        assert refused.value.retry_after_s is not None


async def test_row_below_its_price_is_explained(gateway_url: str, tmp_path: Path) -> None:
    settings = edge_settings(
        tmp_path,
        models__directories=[str(uncertified_digits(tmp_path))],  # a promise is kept at any price
        links=[{"kind": "http", "url": gateway_url}],
        policy__kind="value",
        costs__money_per_request=0.9,
    )
    async with EdgeAgent(settings) as agent:
        found = predictions(40)
        answers = [await ask(agent, content) for content, sure in zip(found.contents, found.sure, strict=True) if sure]
        assert {answer.tier for answer in answers} == {Tier.EDGE}
        agent.recorder.flush()
        [line] = find(agent.state.decisions_path, answers[0].request_id)
        assert "would have had to be worth 0.9" in "\n".join(describe(line))


async def test_free_link_is_used_if_the_metered_one_is_too_expensive(gateway_url: str, tmp_path: Path) -> None:
    dear, free = {"kind": "http", "url": gateway_url, "metered": True}, {"kind": "http", "url": gateway_url}
    settings = edge_settings(
        tmp_path, links=[dear, free], budget__money_per_day=1e-6, costs__money_per_mib=1.0, audit__per_hour=0
    )
    async with EdgeAgent(settings) as agent:
        first, *others = scans(40)
        assert (await ask(agent, first, route="cloud")).tier is Tier.CLOUD
        answers = [await ask(agent, picture) for picture in others]
        assert Tier.CLOUD in {answer.tier for answer in answers}
        assert Reason.BUDGET not in {answer.reason for answer in answers}
        assert budget_of(agent)["spent"] == 0
