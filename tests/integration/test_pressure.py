"""The agent as a process on a device that grows hot and short of memory: a cheaper variant first, no answer second."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.agent import until
from support.boards import say
from support.bundles import HEAVY, variant_bundle
from support.control_groups import MIB, ControlGroup, Hog, UnlimitedError, limited
from support.pressure import Client, agent_process, refusals, switches

from firstline_core.bundle.store import Bundle

SOC = "sys/class/thermal/thermal_zone0"
LIMIT_MIB = 704
STEP_MIB = 16  # less than half of the reserve: no reading misses that there is less than this


class Board:
    """A board's files of /proc and /sys, which the agent reads instead of this machine's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        say(root, f"{SOC}/type", "cpu-thermal")
        self.is_at(45.0)
        self.has_left(1024)

    def is_at(self, celsius: float) -> None:
        self._say(f"{SOC}/temp", str(int(celsius * 1000)))

    def has_left(self, mib: int) -> None:
        self._say("proc/meminfo", f"MemTotal:        4000000 kB\nMemAvailable:    {mib * 1024} kB")

    def _say(self, path: str, content: str) -> None:
        """At once, as the kernel does: no reading sees half a file."""
        say(self.root, f"{path}.new", content)
        (self.root / f"{path}.new").replace(self.root / path)


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


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    try:
        with limited(LIMIT_MIB * MIB) as found:
            yield found
    except UnlimitedError as error:
        pytest.skip(str(error))


async def test_a_hot_device_without_memory_degrades_then_sheds_and_never_dies(tmp_path: Path) -> None:
    bundle, board = variant_bundle(tmp_path / "bundle"), Board(tmp_path / "board")
    with agent_process(tmp_path, settings(board.root)) as (process, url):
        async with asking(url, bundle) as client:
            await client.comes_to("large")
            board.is_at(79)  # of 80
            await client.comes_to("small")
            board.is_at(45)
            await client.comes_to("large")

            board.has_left(20)  # MiB, of the 64 to keep back
            await client.comes_to("shedding")
            found = await client.status()
            assert [rung["variant"] for rung in found["rungs"] if rung["loaded"]] == ["small"]
            assert found["sheds"] and "memory: 21 MB are left" in found["why"]
            assert process.poll() is None
            board.has_left(1024)
            await client.comes_to("large")
            assert all(rung["loaded"] for rung in (await client.status())["rungs"])
            assert process.poll() is None

    down_and_up = [("small", False), ("medium", False), ("large", False)]
    assert switches(tmp_path) == [
        ("small", False),  # heat that is urgent takes the cheapest at once, and is over as soon
        ("large", False),
        ("small", False),
        ("small", True),
        *down_and_up,
    ]
    assert refusals(tmp_path) == {"shedding"}, "nothing else was refused"


@pytest.mark.timeout(300)
async def test_a_neighbour_that_takes_the_groups_memory_kills_nobody(tmp_path: Path, group: ControlGroup) -> None:
    """The kernel's own limit, and its own word on what is left."""
    bundle = variant_bundle(tmp_path / "bundle", labours=HEAVY)
    hog = Hog(group)
    try:
        with agent_process(tmp_path, settings(Path("/")), group.victim) as (process, url):
            async with asking(url, bundle) as client:
                await client.comes_to("large")
                assert all(rung["loaded"] for rung in (await client.status())["rungs"])
                most_bytes = group.used_bytes()
                came: list[str] = []
                while came[-1:] != ["shedding"]:
                    hog.holds(hog.held_mib + STEP_MIB)
                    await client.reads_anew()
                    came.append(await client.comes_to("large", "medium", "small", "shedding"))
                assert came[-2] == "small", "a cheaper variant first"
                assert (process.poll(), group.kills()) == (None, 0)
                assert most_bytes + hog.held_mib * MIB > LIMIT_MIB * MIB, "there was no room for this and all variants"
                hog.holds(0)
                await client.comes_to("large")
                assert all(rung["loaded"] for rung in (await client.status())["rungs"])
                assert (process.poll(), group.kills()) == (None, 0)
    finally:
        hog.close()
    assert switches(tmp_path)[0] == ("small", False)
    assert refusals(tmp_path) == {"shedding"}
