"""Agents, a gateway and a Mosquitto, each a process of its own: whole rollouts of good models and bad ones.

Every bundle is real, signed and fetched, and does what its name says: a slow one has more to compute, a less accurate
one takes two classes for each other, one that escalates more is less sure, one that drifts is surer. Of what the
registry keeps of the corrupt one a bit is another. The one that crashes is as good as the first, and whatever process
runs it is killed every few seconds (SIGKILL), as a runtime's fault would, and started again, as a service manager does.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from support.broker import Broker
from support.keys import bearer, create_key, create_keys

from firstline.release import publishing
from firstline.release.keyring import Keyring
from firstline.release.pushing import push
from firstline.release.registry import Registry, open_registry
from firstline_core.bundle.store import Bundle
from firstline_core.errors import FirstlineError
from firstline_core.fleet.rest import DEVICES_PATH, FleetDevice, FleetDevicePage
from firstline_core.fleet.rollout import ROLLOUTS_PATH, LookList, RolloutSummary
from firstline_edge.fleet.updates.slots import manifest_sha256
from firstline_gateway.rollouts.stages import place
from firstline_gateway.settings.settings import Store
from fleet.bundles import RETRAINED, SOUND, Character, write_bundle
from fleet.processes import Agent, gateway

BUNDLE = "cameras"
OLD = 1
_SHARE = 0.5
_START_TOGETHER = 4
_PATIENCE_S = 240.0
_KILL_EVERY_S = 12.0


class Case(NamedTuple):
    """A model that is brought to agents.

    Attributes:
        character: of its edge model.
        corrupt: whether the registry keeps other bytes than were signed.
        crashes: whether who runs it is killed.
    """

    character: Character = RETRAINED
    corrupt: bool = False
    crashes: bool = False


CASES = {
    "corrupt": Case(Character(sharpness=0.99), corrupt=True),
    "slow": Case(Character(layers=1000)),
    "crashing": Case(Character(sharpness=0.98), crashes=True),
    "less accurate": Case(Character(mistaken=True)),
    "escalating twice as much": Case(Character(sharpness=0.55)),
    "drifting": Case(Character(sharpness=2.5)),
    "good": Case(),  # the last, for it stays
}


class Pace(NamedTuple):
    """How agents are asked, and judged.

    Attributes:
        rows: of a request.
        period_s: between two requests to an agent, which is asked nothing while it answers.
        warm_requests: that each has answered before anything is brought.
        soak_s: for which a stage is observed, and looked at once.
    """

    rows: int = 16
    period_s: float = 0.7
    warm_requests: int = 20
    soak_s: float = 25.0


class Site:
    """What runs.

    Args:
        folder: of all of it.
        rest: an operator's way to the gateway.
        agents: by name.
    """

    def __init__(self, folder: Path, rest: httpx.AsyncClient, agents: dict[str, Agent]) -> None:
        self.folder = folder
        self.agents = agents
        self._rest = rest
        # As many take the model first as are left alone: of twenty devices there are only so many divisions.
        half = len(agents) * _SHARE
        self.salt = next(
            str(number)
            for number in range(10_000)
            if abs(sum(place(str(number), name) < _SHARE for name in agents) - half) < 1
        )

    async def roll_out(self, version: int, sha256: str, soak_s: float) -> str:
        """Starts a rollout; its id."""
        found = await self._asked(
            "POST",
            ROLLOUTS_PATH,
            RolloutSummary,
            {
                "bundle": BUNDLE,
                "version": version,
                "manifest_sha256": sha256,
                "stages": [{"share": _SHARE, "soak_s": soak_s}],
                "held_back": 1 - _SHARE,
                "salt": self.salt,
                "silent_s": 30,
                # What of a hundred thousand divisions only one would show is the least that ten against ten can tell.
                "rules": {"alpha": 0.05, "promote_unseen": True},
            },
        )
        await self._asked("POST", f"{ROLLOUTS_PATH}/{found.id}/start", RolloutSummary)
        return found.id

    async def ended(self, rollout: str) -> RolloutSummary:
        """How it ended."""
        found: list[RolloutSummary] = []

        async def has_ended() -> bool:
            found[:] = [await self._asked("GET", f"{ROLLOUTS_PATH}/{rollout}", RolloutSummary)]
            return found[0].state not in ("running", "rolling_back")

        await until(has_ended, f"rollout {rollout} to end")
        return found[0]

    async def last_look(self, rollout: str) -> tuple[str, int]:
        """The rule and the number of its last look; of a rollout that was never looked at none."""
        page = await self._asked("GET", f"{ROLLOUTS_PATH}/{rollout}/looks", LookList)
        return (page.looks[-1].rule, page.looks[-1].look) if page.looks else ("", 0)

    async def devices(self) -> tuple[FleetDevice, ...]:
        """As the gateway knows them."""
        return (await self._asked("GET", f"{DEVICES_PATH}?limit=1000", FleetDevicePage)).devices

    async def _asked(self, method: str, path: str, kind: Any, body: object = None) -> Any:
        reply = await self._rest.request(method, path, json=body)
        if reply.is_error:
            raise RuntimeError(reply.text)
        return msgspec.json.decode(reply.content, type=kind)


async def rolled_out(
    agents: int, told: Callable[[str], None], cases: tuple[str, ...] = tuple(CASES), pace: Pace | None = None
) -> dict[str, Any]:
    """Brings each model in turn to the same agents; how each ended, and on what verified model every agent.

    Args:
        agents: processes, half of which take a model first.
        told: hears of the progress.
        cases: which of `CASES`; "good" can only be the last.
        pace: how they are asked.
    """
    pace = pace or Pace()
    with tempfile.TemporaryDirectory(prefix="firstline-agents-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        bundles = {OLD: write_bundle(folder / "bundles" / "1", BUNDLE, OLD, SOUND)}
        for version, case in enumerate(cases, OLD + 1):
            path = folder / "bundles" / str(version)
            bundles[version] = write_bundle(path, BUNDLE, version, CASES[case].character)
        async with site(folder, bundles, agents, told) as found, asyncio.TaskGroup() as group:
            asking = [group.create_task(agent.ask(pace.rows, pace.period_s)) for agent in found.agents.values()]
            told(f"{agents} agents run, and are asked {pace.rows} rows every {pace.period_s:g} s")

            async def warm() -> bool:
                return min(agent.answered for agent in found.agents.values()) >= pace.warm_requests

            await until(warm, "agents to answer")
            ended = {}
            for version, case in enumerate(cases, OLD + 1):
                ended[case] = await _brought(found, bundles, version, CASES[case], pace)
                told(f"{agents} agents, {case}: {ended[case]['sentence']}")
            for task in asking:
                task.cancel()
        return ended


async def _brought(found: Site, bundles: dict[int, Bundle], version: int, case: Case, pace: Pace) -> dict[str, Any]:
    started_s, answered = time.monotonic(), sum(agent.answered for agent in found.agents.values())
    if case.corrupt:
        _damage(found.folder / "blobs", bundles[version])
    rollout = await found.roll_out(version, manifest_sha256(bundles[version].path), pace.soak_s)
    killing = asyncio.create_task(_kill(found, version)) if case.crashes else None
    ended = await found.ended(rollout)
    if killing is not None:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    wanted = version if ended.state == "completed" else OLD
    with contextlib.suppress(TimeoutError):  # who does not get there is counted
        await until(lambda: _all_run(found, wanted, bundles), "all agents to run it", 60.0)
    rule, look = await found.last_look(rollout)
    return {
        "devices": len(found.agents),
        "state": ended.state,
        "stage": ended.stage + 1,
        "rule": rule,
        "look": look,
        "verified": dict(await _verified(found, version, bundles)),
        "requests": sum(agent.answered for agent in found.agents.values()) - answered,
        "kills": sum(agent.kills for agent in found.agents.values()) if case.crashes else 0,
        "sentence": ended.sentence,
        "seconds": round(time.monotonic() - started_s, 1),
    }


async def _all_run(found: Site, version: int, bundles: dict[int, Bundle]) -> bool:
    counted = await _verified(found, version, bundles)
    return counted["old" if version == OLD else "new"] == len(found.agents)


async def _verified(found: Site, version: int, bundles: dict[int, Bundle]) -> Counter[str]:
    """How many agents run which version, by what they say was really loaded, and by their disks.

    What does not verify, or of which the two say different things, counts as "neither".
    """
    counted: Counter[str] = Counter()
    for device in await found.devices():
        runs = device.reported.models[0] if device.reported is not None and device.reported.models else None
        right = (
            runs is not None
            and runs.edge_digest == bundles[runs.version].manifest.edge[0].digest
            and found.agents[device.name].on_disk() == (manifest_sha256(bundles[runs.version].path), runs.version)
        )
        which = {OLD: "old", version: "old" if version == OLD else "new"}
        counted[which.get(runs.version, "neither") if runs is not None and right else "neither"] += 1
    return counted


async def _kill(found: Site, version: int) -> None:
    """Whoever runs this version, again and again."""
    killed_s: dict[str, float] = {}
    while True:
        for device in await found.devices():
            runs = device.reported.models if device.reported is not None else ()
            now_s, due_s = time.monotonic(), killed_s.get(device.name, 0.0) + _KILL_EVERY_S
            runs_it = any(each.version == version for each in runs)
            if runs_it and now_s >= due_s and found.agents[device.name].kill():
                killed_s[device.name] = now_s
        await asyncio.sleep(0.5)


def _damage(blobs: Path, bundle: Bundle) -> None:
    """A bit of the bundle's edge model, where the registry keeps it."""
    sha256 = bundle.manifest.edge[0].artefact.sha256
    (file,) = [path for path in blobs.rglob(f"*{sha256[2:]}*") if path.is_file()]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


async def until(holds: Callable[[], Awaitable[bool]], what: str, timeout_s: float = _PATIENCE_S) -> None:
    """Waits for something that only asking can tell.

    Raises:
        TimeoutError: it never came.
    """
    end_s = time.monotonic() + timeout_s
    while not await holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        await asyncio.sleep(0.25)


@asynccontextmanager
async def site(
    folder: Path, bundles: dict[int, Bundle], agents: int, told: Callable[[str], None]
) -> AsyncIterator[Site]:
    """A broker, a gateway whose registry has these bundles, and agents with the first of them."""
    store = Store(url=f"sqlite:///{folder / 'gateway.db'}")
    operator = create_key(store, "ops", "operator")
    names = [f"camera-{number:02}" for number in range(agents)]
    tokens = create_keys(store, names, "device")
    async with AsyncExitStack() as stack:
        broker = stack.enter_context(Broker(folder / "broker"))
        url = await stack.enter_async_context(gateway(folder, broker.port))
        keyring = Keyring(folder / "keys")
        await asyncio.to_thread(_publish, url, operator, keyring, list(bundles.values()))
        rest = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=bearer(operator), timeout=60))
        there = {name: Agent(folder / name, name, url, tokens[name], broker.port) for name in names}
        turn = asyncio.Semaphore(_START_TOGETHER)
        supervised = await stack.enter_async_context(_supervised())
        for agent in there.values():
            agent.set_up(bundles[OLD].path, keyring.anchor, BUNDLE)
            supervised.append(asyncio.create_task(agent.supervise(turn)))
        for number, agent in enumerate(there.values(), 1):
            await agent.ready()
            if number % _START_TOGETHER == 0:
                told(f"{number} of {agents} agents have started")
        yield Site(folder, rest, there)


@asynccontextmanager
async def _supervised() -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _publish(url: str, operator: str, keyring: Keyring, bundles: list[Bundle]) -> None:
    with open_registry(url, operator) as registry:
        keyring.init(registry.online_key(), time.time())
        publishing.publish(keyring, registry, time.time())
        for bundle in bundles:
            _push(keyring, registry, bundle)


def _push(keyring: Keyring, registry: Registry, bundle: Bundle) -> None:
    try:
        push(keyring, registry, bundle, {}, time.time())
    except FirstlineError as error:
        raise RuntimeError(error.message) from error
