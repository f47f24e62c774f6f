"""A device whose disk is full: it starts, answers, promises nothing, says so, and recovers by itself."""

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS, edge_settings
from support.broker import free_port
from support.digits import scan
from support.disk import SmallDisk, small_disk
from support.forks import run_forked
from support.processes import TierProcess
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import ConfigError, UnknownAnswerError
from firstline_core.types import InferResponse, Reason, Status
from firstline_edge.app import EdgeAgent
from firstline_edge.cache.disk_cache import DiskCache
from firstline_edge.state import StateDirectory


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


def summary(response: InferResponse) -> tuple[Status, Reason, bool]:
    return response.answer.status, response.answer.reason, response.answer.durable


async def test_full_disk_prevents_only_promises(disk: SmallDisk) -> None:
    clock = SimulatedClock()
    links = [{"kind": "http", "url": f"http://127.0.0.1:{free_port()}"}]
    settings = edge_settings(disk.path / "state", links=links, policy__min_threshold=1.0, cache__ttl_s=1e6)
    async with EdgeAgent(settings, clock=clock) as agent:
        first = await agent.data_plane.infer_file("digits", scan())
        assert summary(first) == (Status.PROVISIONAL, Reason.LINK_DOWN, True)
    disk.fill()
    async with EdgeAgent(settings, clock=clock) as agent:
        assert summary(await agent.data_plane.infer_file("digits", scan())) == (Status.FINAL, Reason.OUTBOX_FULL, False)
        messages = [found["message"] for found in agent.operations.status()["problems"]]
        assert len(messages) == 2 and all("Free space" in message for message in messages)

        disk.free()
        await clock.advance(61)
        await until(lambda: not agent.outbox.problem)  # a thread opens it
        assert summary(await agent.data_plane.infer_file("digits", scan())) == (
            Status.PROVISIONAL,
            Reason.LINK_DOWN,
            True,
        )
        assert agent.operations.status()["problems"] == []
        assert agent.outbox.depth == 2  # the promise from before is still there
    assert not (disk.path / "state" / "cache.damaged").exists()


def test_the_process_starts_on_a_full_disk(disk: SmallDisk, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(f'[agent]\nstate_dir = "{disk.path}/state"\n[models]\ndirectories = ["{DIGITS}"]\n')
    (disk.path / "state").mkdir()
    disk.fill()
    log = tmp_path / "stderr"
    with TierProcess("firstline_edge", "--config", config, log=log) as agent:
        for _ in range(3):
            reply = httpx.post(f"{agent.url}/firstline/v1/models/digits/infer", content=scan(), trust_env=False)
            assert reply.status_code == 200
        problems = httpx.get(f"{agent.url}/firstline/v1/status", trust_env=False).json()["problems"]
        assert {Path(found["path"]).name for found in problems} == {"cache", "outbox.db"}
        assert agent.stop() == 0
    logged = log.read_text()
    assert "Traceback" not in logged
    assert logged.count("disk cache unavailable") == logged.count("outbox unavailable") == 1


def test_the_process_starts_again_on_a_disk_that_became_read_only(disk: SmallDisk, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(f'[agent]\nstate_dir = "{disk.path}/state"\n[models]\ndirectories = ["{DIGITS}"]\n')
    log = tmp_path / "stderr"
    with TierProcess("firstline_edge", "--config", config, log=log) as agent:
        assert agent.stop() == 0
    disk.become_read_only()
    with TierProcess("firstline_edge", "--config", config, log=log) as agent:
        reply = httpx.post(f"{agent.url}/firstline/v1/models/digits/infer", content=scan(), trust_env=False)
        assert reply.status_code == 200
        problems = httpx.get(f"{agent.url}/firstline/v1/status", trust_env=False).json()["problems"]
        assert {Path(found["path"]).name for found in problems} == {"cache", "outbox.db"}
        with pytest.raises(ConfigError, match="in use by another agent"):
            StateDirectory(disk.path / "state")
        assert agent.stop() == 0
    assert "Traceback" not in log.read_text()


def test_unwritable_cache_stays_in_place(tmp_path: Path) -> None:
    clock = SimulatedClock()
    directory = tmp_path / "cache"
    cache = DiskCache(directory, limit_bytes=1 << 24, ttl_s=1e6, clock=clock)
    cache.put(b"k" * 32, b"good")
    cache.close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        cache = DiskCache(directory, limit_bytes=1 << 24, ttl_s=1e6, clock=clock)
        cache.put(b"n" * 32, b"new")
        problem = cache.problem
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "The disk refuses the result cache" in problem
    clock._now_s += 61
    found = cache.get(b"k" * 32)
    assert found[0] == b"good"
    cache.put(b"n" * 32, b"new")
    assert cache.problem == ""
    cache.close()
    assert not (tmp_path / "cache.damaged").exists()


def test_damaged_cache_that_cannot_be_moved_is_unused(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    (directory / "cache.db").write_bytes(b"this is no database" * 1000)
    aside = tmp_path / "cache.damaged"
    aside.write_text("a file, which no directory can replace")
    cache = DiskCache(directory, limit_bytes=1 << 24, ttl_s=60)
    assert cache.get(b"k") is None
    cache.put(b"k", b"v")
    assert "The disk refuses" in cache.problem
    cache.close()


async def test_full_disk_is_purged(disk: SmallDisk) -> None:
    """Nothing of it may need room, and the room that was taken is free again."""
    state_dir = disk.path / "state"
    links = [{"kind": "http", "url": f"http://127.0.0.1:{free_port()}"}]
    settings = edge_settings(state_dir, links=links, policy__min_threshold=1.0)
    async with EdgeAgent(settings) as agent:
        first = await agent.data_plane.infer_file("digits", scan())
        assert first.answer is not None
        assert summary(first) == (Status.PROVISIONAL, Reason.LINK_DOWN, True)
    disk.fill()
    command = ("firstline_edge", "purge", "--yes", "--set", f"agent.state_dir={state_dir}")
    done = await asyncio.to_thread(run_forked, *command)
    assert done.returncode == 0, done.stderr
    leftovers = [path for path in state_dir.rglob("*") if path.is_file() and scan() in path.read_bytes()]
    assert leftovers == []
    disk.free()
    async with EdgeAgent(settings) as agent:
        assert agent.outbox.depth == 0
        with pytest.raises(UnknownAnswerError):
            await agent.outbox.answer(first.answer.request_id, "local")
        again = await agent.data_plane.infer_file("digits", scan())
        assert summary(again) == (Status.PROVISIONAL, Reason.LINK_DOWN, True)
