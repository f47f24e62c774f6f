"""The agent as a process on a device that grows hot and short of memory: a cheaper variant first, no answer second."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.boards import hot_board
from support.control_groups import ControlGroup, Hog, UnlimitedError, limited
from support.processes import TierProcess
from support.sample_bundles import HEAVY, variant_bundle
from support.waiting import until

from firstline_core.bundle.store import Bundle
from firstline_core.units import MIB

LIMIT_MIB = 704
RESERVE_MIB = 64  # that the agent keeps free
STEP_MIB = 16  # less than half of the reserve: no reading misses that there is less than this


UP = [("small", False), ("medium", False), ("large", False)]
"""Down it goes at once where it is urgent; up one by one."""


def settings(root: Path) -> str:
    return f"""
        [hardware]
        root = "{root}"
        period_s = 0.1
        survey = false
        [adaptation]
        enabled = true
        settle_s = 0.3
        dwell_s = 0.4
    """


class Client:
    """Sends requests without a pause and records each outcome.

    Args:
        http: client of the agent.
        variants: ids by digest.
    """

    def __init__(self, http: httpx.AsyncClient, variants: Mapping[str, str]) -> None:
        self._http, self._variants = http, variants
        self._sent = 0

    async def new(self) -> str:
        """The variant that answered, or the code of the refusal; for a new row each time, which no cache knows."""
        self._sent += 1
        return await self._outcome(9 + self._sent / 1000)

    async def again(self) -> str:
        """The same, always for one row; "cache" where that knew it."""
        return await self._outcome(5.0)

    async def _outcome(self, first: float) -> str:
        body = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [first, 0]}],
            "parameters": {"privacy": "any"},
        }
        reply = await self._http.post("/v2/models/small/infer", content=json.dumps(body))
        document = reply.json()
        if reply.status_code == 200:
            parameters = document["parameters"]
            return "cache" if parameters["tier"] == "cache" else self._variants[parameters["model_digest"]]
        assert reply.status_code == 503 and "Retry-After" in reply.headers, document
        return str(document["code"])

    async def status(self) -> dict[str, Any]:
        """Of the model's variants."""
        (model,) = (await self._http.get("/firstline/v1/status")).json()["models"]
        return model["variants"]

    async def fill_cache(self) -> None:
        """Returns once the cache has the row of `again`, by the variant that answers now."""

        async def cached() -> bool:
            return await self.again() == "cache"

        await until(cached, 60)

    async def wait_for_reading(self) -> None:
        """Returns once the sensors were read again: they have seen what was done before."""
        since_s = time.monotonic()

        async def read() -> bool:
            return (await self._http.get("/firstline/v1/status")).json()["hardware"]["at_s"] > since_s

        await until(read, 60)

    async def wait_for(self, *outcomes: str) -> str:
        """Sends new rows until one has such an outcome; every request on the way is answered, or says why not."""
        latest = ""

        async def reached() -> bool:
            nonlocal latest
            latest = await self.new()
            return latest in outcomes

        await until(reached, 60)
        return latest


@asynccontextmanager
async def client_of(url: str, bundle: Bundle) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
        yield Client(http, {variant.digest: variant.id for variant in bundle.manifest.edge})


@asynccontextmanager
async def loaded(client: Client) -> AsyncIterator[Counter[str]]:
    """Three more ask meanwhile, without a pause, for new rows: what came of that. One that is lost ends the test."""
    outcomes: Counter[str] = Counter()
    over = asyncio.Event()

    async def asks() -> None:
        while not over.is_set():
            outcomes[await client.new()] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(asks())
        yield outcomes
        over.set()


def agent_process(
    folder: Path, settings: str, within: Callable[[Sequence[str]], Sequence[str]] | None = None
) -> TierProcess:
    """An agent with `folder/bundle` that is not yet started.

    Args:
        folder: for its settings, its state and its log.
        settings: sections of its TOML in addition to the state directory and the bundle.
        within: puts a command before it.
    """
    about = '[agent]\nstate_dir = "state"\n[models]\ndirectories = ["bundle"]\n'
    (folder / "edge.toml").write_text(about + settings)
    return TierProcess("firstline_edge", "--config", folder / "edge.toml", log=folder / "stderr", within=within)


def switches(folder: Path) -> list[tuple[str, bool]]:
    """What the agent switched to so far, and whether it sheds: from its decision log."""
    logged = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    return [(line["to"], line["sheds"]) for line in logged if line["event"] == "switched"]


def refusals(folder: Path) -> set[str]:
    """Codes of what was refused so far."""
    logged = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    return {line["code"] for line in logged if line["event"] == "refused"}


async def switched(folder: Path, *expected: tuple[str, bool]) -> None:
    """Returns once the decision log, which is written behind the answers, tells of these switches; and of no others."""

    await until(lambda: len(switches(folder)) >= len(expected), 60)
    assert switches(folder) == list(expected)


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    try:
        with limited(LIMIT_MIB * MIB) as found:
            yield found
    except UnlimitedError as error:
        pytest.skip(str(error))


async def test_low_memory_degrades_then_sheds(tmp_path: Path) -> None:
    bundle = variant_bundle(tmp_path / "bundle")
    with hot_board(tmp_path / "board") as board, agent_process(tmp_path, settings(board.root)) as agent:
        async with client_of(agent.url, bundle) as client:
            await client.wait_for("large")
            board.has_left(20)  # MiB, of the 64 to keep back
            await client.wait_for("shedding")
            found = await client.status()
            assert [rung["variant"] for rung in found["rungs"] if rung["loaded"]] == ["small"]
            assert found["sheds"] and "memory: 21 MB available" in found["why"]
            assert agent.process.poll() is None
            board.has_left(1024)
            await client.wait_for("large")
            assert all(rung["loaded"] for rung in (await client.status())["rungs"])
            await switched(tmp_path, ("small", False), ("small", True), *UP)
            assert agent.process.poll() is None
    assert refusals(tmp_path) == {"shedding"}, "nothing else was refused"


async def test_heat_degrades_then_sheds(tmp_path: Path) -> None:
    """A recorded board, through the margin and the limit and back, while several clients ask without a pause."""
    bundle = variant_bundle(tmp_path / "bundle")
    with hot_board(tmp_path / "board") as board, agent_process(tmp_path, settings(board.root)) as agent:
        async with client_of(agent.url, bundle) as client, loaded(client) as outcomes:
            await client.wait_for("large")
            board.is_at(79)  # of 80
            await client.wait_for("small")
            await client.fill_cache()
            assert not (await client.status())["sheds"]
            board.is_at(81)
            await client.wait_for("shedding")
            assert "heat: 81.0 C" in (await client.status())["why"]
            assert [await client.again() for _ in range(20)] == ["cache"] * 20, (
                "what is known is answered all the while"
            )
            board.is_at(45)
            await client.wait_for("large")
            await switched(tmp_path, ("small", False), ("small", True), *UP)
            assert agent.process.poll() is None
    assert refusals(tmp_path) == {"shedding"}, "nothing else was refused"
    assert set(outcomes) == {"large", "medium", "small", "shedding"}, "each request was answered or shed"


@pytest.mark.timeout(300)
async def test_agent_survives_memory_pressure_in_its_cgroup(tmp_path: Path, group: ControlGroup) -> None:
    """The kernel's own limit, and its own word on what is left."""
    bundle = variant_bundle(tmp_path / "bundle", labours=HEAVY)
    hog = Hog(group)
    try:
        with agent_process(tmp_path, settings(Path("/")), group.victim) as agent:
            async with client_of(agent.url, bundle) as client:
                await client.wait_for("large")
                assert all(rung["loaded"] for rung in (await client.status())["rungs"])
                most_bytes = group.used_bytes()
                hog.holds(max(0, LIMIT_MIB - most_bytes // MIB - 2 * RESERVE_MIB))
                outcomes: list[str] = []
                while outcomes[-1:] != ["shedding"]:
                    hog.holds(hog.held_mib + STEP_MIB)
                    await client.wait_for_reading()
                    outcomes.append(await client.wait_for("large", "medium", "small", "shedding"))
                assert outcomes[-2] == "small", "a cheaper variant first"
                assert (agent.process.poll(), group.kills()) == (None, 0)
                assert most_bytes + hog.held_mib * MIB > LIMIT_MIB * MIB, "there was no room for this and all variants"
                hog.holds(0)
                await client.wait_for("large")
                assert all(rung["loaded"] for rung in (await client.status())["rungs"])
                assert (agent.process.poll(), group.kills()) == (None, 0)
    finally:
        hog.close()
    assert switches(tmp_path)[0] == ("small", False)
    assert refusals(tmp_path) == {"shedding"}
