"""`edge-agent purge`: what a stopped agent kept is gone from every file."""

import asyncio
import contextlib
import json
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from support.agent import edge_settings
from support.broker import free_port
from support.digits import scan
from support.forks import run_forked
from support.waiting import until

from firstline_core.types import Status
from firstline_edge.app import EdgeAgent
from firstline_edge.cache.disk_cache import DiskCache

LINKS = [{"kind": "http", "url": f"http://127.0.0.1:{free_port()}"}]


def files_with(folder: Path, payload: bytes) -> list[str]:
    return [str(file) for file in folder.rglob("*") if file.is_file() and payload in file.read_bytes()]


def purge(state_dir: Path, *arguments: str) -> dict[str, object]:
    place = f"agent.state_dir={state_dir}"
    done = run_forked("firstline_edge", "purge", "-o", "json", "--set", place, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def ask(agent: EdgeAgent) -> tuple[str, bytes]:
    """Asks for what is promised a correction; the id, and the bytes that the disk has of the model's answer."""
    response = await agent.data_plane.infer_file("digits", scan())
    assert response.answer.status is Status.PROVISIONAL
    return response.answer.request_id, response.output("probabilities").astype(np.float32).tobytes()


async def test_purge_erases_every_file(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    async with EdgeAgent(edge_settings(state_dir, links=LINKS, policy__min_threshold=1.0)) as agent:
        request_id, result = await ask(agent)
        state_dir.joinpath("outbox", "outbox.db.damaged").write_bytes(b"set aside" + scan())
        assert len(files_with(state_dir, scan())) >= 2
        await until(lambda: asyncio.to_thread(files_with, state_dir / "cache", result))  # which another thread writes
    shown = purge(state_dir)
    before = shown["places"]
    assert isinstance(before, dict)
    assert all(place["before_bytes"] for name, place in before.items() if name != "samples")
    assert shown["erased"] is False
    purge(state_dir, "--yes", "--what", "cache")
    assert files_with(state_dir, scan())
    purge(state_dir, "--yes")
    assert files_with(state_dir, request_id.encode()) == []
    assert files_with(state_dir, scan()) == []
    assert files_with(state_dir, result) == []


async def test_purge_refuses_while_an_agent_runs(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    async with EdgeAgent(edge_settings(state_dir, links=LINKS, policy__min_threshold=1.0)) as agent:
        await ask(agent)
        command = ("purge", "--yes", "--set", f"agent.state_dir={state_dir}")
        refused = await asyncio.to_thread(run_forked, "firstline_edge", *command)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"An agent runs with {state_dir}; stop it, and purge again." in refused.stderr
        assert agent.outbox.depth == 1
        assert files_with(state_dir, scan())


async def test_encrypted_state_needs_its_key(tmp_path: Path) -> None:
    state_dir, key = tmp_path / "state", tmp_path / "key"
    key.write_text("ab" * 32)
    encrypted = edge_settings(state_dir, links=LINKS, policy__min_threshold=1.0, encryption__key_file=str(key))
    async with EdgeAgent(encrypted) as agent:
        request_id, result = await ask(agent)
        assert files_with(state_dir, scan()) == files_with(state_dir, result) == []
    async with EdgeAgent(encrypted) as agent:
        assert (await agent.outbox.answer(request_id, "local")).answer is not None
    key.unlink()
    async with EdgeAgent(encrypted) as agent:  # it answers, but keeps nothing
        response = await agent.data_plane.infer_file("digits", scan())
        assert (response.answer.status, response.answer.durable) == (Status.FINAL, False)
        messages = [found["message"] for found in agent.operations.status()["problems"]]
        assert len(messages) == 2
        assert all("encryption.key_file" in message for message in messages)
    key.write_text("cd" * 32)
    async with EdgeAgent(encrypted) as agent:  # another key: a fresh outbox next to it
        await ask(agent)
        assert agent.outbox.depth == 1
        assert any("outbox.db.damaged" in found["message"] for found in agent.operations.status()["problems"])


async def test_old_results_are_deleted_without_an_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_dir, now_s = tmp_path / "state", time.time()
    monkeypatch.setattr(time, "time", lambda: now_s - 2 * 86_400)
    cache = DiskCache(state_dir / "cache", limit_bytes=1 << 24, ttl_s=86_400)
    for number in range(250):
        cache.put(b"%d" % number, b"what a model said the day before yesterday")
    cache.close()
    monkeypatch.undo()
    (state_dir / "outbox").write_text("in the way")
    async with EdgeAgent(edge_settings(state_dir)) as agent:
        assert agent.outbox.problem
        with contextlib.closing(sqlite3.connect(state_dir / "cache" / "cache.db")) as looking:
            await until(lambda: looking.execute("SELECT count(*) FROM Cache").fetchone() == (0,))
