"""The agent as a process on a device that grows hot and short of memory: a cheaper variant first, no answer second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.control_groups import MIB, ControlGroup, Hog, UnlimitedError, limited
from support.hot_board import hot_board
from support.pressure import Client, agent_process, refusals, switches
from support.sample_bundles import HEAVY, variant_bundle
from support.waiting import until

from firstline_core.bundle.store import Bundle

LIMIT_MIB = 704
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


class Asking:
    """A client of a bundle's variants."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._came = ""
        self.status = client.status
        self.new = client.asks
        self.again = client.asks_again

    async def knows(self) -> None:
        """Returns once the cache knows the row of `again`, by the variant that answers now."""

        async def there() -> bool:
            return await self.again() == "cache"

        await until(there, 60)

    async def reads_anew(self) -> None:
        """Returns once the sensors were read again: what was done before is seen."""
        since_s = time.monotonic()

        async def there() -> bool:
            return await self._client.read_at_s() > since_s

        await until(there, 60)

    async def comes_to(self, *wanted: str) -> str:
        """Goes on asking until one of these comes of it; every request on the way is answered, or says why not."""

        async def there() -> bool:
            self._came = await self._client.asks()
            return self._came in wanted

        await until(there, 60)
        return self._came


@asynccontextmanager
async def asking(url: str, bundle: Bundle) -> AsyncIterator[Asking]:
    client = Client(url, {variant.digest: variant.id for variant in bundle.manifest.edge})
    try:
        yield Asking(client)
    finally:
        await client.close()


@asynccontextmanager
async def loaded(client: Asking) -> AsyncIterator[Counter[str]]:
    """Three more ask meanwhile, without a pause, for new rows: what came of that. One that is lost ends the test."""
    came: Counter[str] = Counter()
    over = asyncio.Event()

    async def asks() -> None:
        while not over.is_set():
            came[await client.new()] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(asks())
        yield came
        over.set()


async def switched(folder: Path, *wanted: tuple[str, bool]) -> None:
    """Returns once the decision log, which is written behind the answers, tells of these switches; and of no others."""

    await until(lambda: len(switches(folder)) >= len(wanted), 60)
    assert switches(folder) == list(wanted)


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
        async with asking(agent.url, bundle) as client:
            await client.comes_to("large")
            board.has_left(20)  # MiB, of the 64 to keep back
            await client.comes_to("shedding")
            found = await client.status()
            assert [rung["variant"] for rung in found["rungs"] if rung["loaded"]] == ["small"]
            assert found["sheds"] and "memory: 21 MB available" in found["why"]
            assert agent.process.poll() is None
            board.has_left(1024)
            await client.comes_to("large")
            assert all(rung["loaded"] for rung in (await client.status())["rungs"])
            await switched(tmp_path, ("small", False), ("small", True), *UP)
            assert agent.process.poll() is None
    assert refusals(tmp_path) == {"shedding"}, "nothing else was refused"


async def test_heat_degrades_then_sheds(tmp_path: Path) -> None:
    """A recorded board, through the margin and the limit and back, while several clients ask without a pause."""
    bundle = variant_bundle(tmp_path / "bundle")
    with hot_board(tmp_path / "board") as board, agent_process(tmp_path, settings(board.root)) as agent:
        async with asking(agent.url, bundle) as client, loaded(client) as came:
            await client.comes_to("large")
            board.is_at(79)  # of 80
            await client.comes_to("small")
            await client.knows()
            assert not (await client.status())["sheds"]
            board.is_at(81)
            await client.comes_to("shedding")
            assert "heat: 81.0 C" in (await client.status())["why"]
            assert [await client.again() for _ in range(20)] == ["cache"] * 20, (
                "what is known is answered all the while"
            )
            board.is_at(45)
            await client.comes_to("large")
            await switched(tmp_path, ("small", False), ("small", True), *UP)
            assert agent.process.poll() is None
    assert refusals(tmp_path) == {"shedding"}, "nothing else was refused"
    assert set(came) == {"large", "medium", "small", "shedding"}, "each request had an answer, or was told to come back"


@pytest.mark.timeout(300)
async def test_agent_survives_memory_pressure_in_its_cgroup(tmp_path: Path, group: ControlGroup) -> None:
    """The kernel's own limit, and its own word on what is left."""
    bundle = variant_bundle(tmp_path / "bundle", labours=HEAVY)
    hog = Hog(group)
    try:
        with agent_process(tmp_path, settings(Path("/")), group.victim) as agent:
            async with asking(agent.url, bundle) as client:
                await client.comes_to("large")
                assert all(rung["loaded"] for rung in (await client.status())["rungs"])
                most_bytes = group.used_bytes()
                came: list[str] = []
                while came[-1:] != ["shedding"]:
                    hog.holds(hog.held_mib + STEP_MIB)
                    await client.reads_anew()
                    came.append(await client.comes_to("large", "medium", "small", "shedding"))
                assert came[-2] == "small", "a cheaper variant first"
                assert (agent.process.poll(), group.kills()) == (None, 0)
                assert most_bytes + hog.held_mib * MIB > LIMIT_MIB * MIB, "there was no room for this and all variants"
                hog.holds(0)
                await client.comes_to("large")
                assert all(rung["loaded"] for rung in (await client.status())["rungs"])
                assert (agent.process.poll(), group.kills()) == (None, 0)
    finally:
        hog.close()
    assert switches(tmp_path)[0] == ("small", False)
    assert refusals(tmp_path) == {"shedding"}
