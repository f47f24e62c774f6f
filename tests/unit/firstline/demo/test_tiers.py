"""Tiers that end on their own, and folders without room."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.sample_bundles import colour_bundle

from firstline.demo import tiers
from firstline.demo.tiers import RunningTier, ServedBundle, create_device_key, run_agent, serve_bundle
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError

DIGITS = Path(__file__).parents[4] / "models" / "digits" / "bundle"


async def _ending(code: str) -> RunningTier:
    return RunningTier("http://127.0.0.2:1", await asyncio.create_subprocess_exec(sys.executable, "-c", code))


async def test_agent_goes_on_without_its_gateway(tmp_path: Path) -> None:
    (tmp_path / "agent.log").write_text("no such file\n")
    agent = await _ending("import time; time.sleep(60)")
    gateway = await _ending("import os; os.kill(os.getpid(), 9)")
    sentences = list[str]()

    def report(sentence: str) -> None:
        sentences.append(sentence)
        agent.process.terminate()

    ended = await ServedBundle(agent, gateway, tmp_path).ended(report)
    assert sentences == ["The gateway ended with signal 9; the agent answers alone."]
    assert ended == "The agent ended with signal 15."


async def test_exit_code_comes_with_the_last_output(tmp_path: Path) -> None:
    (tmp_path / "gateway.log").write_text("The port is in use.\n")
    ended = await ServedBundle(None, await _ending("raise SystemExit(3)"), tmp_path).ended(print)
    assert ended == "The gateway ended with exit code 3 and said: The port is in use."


async def test_folder_without_room_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise shutil.Error([("a.onnx", "b.onnx", "[Errno 28] No space left on device")])

    bundle = colour_bundle(tmp_path)
    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(ConfigError, match=r"No space left on device\. Set TMPDIR to a folder with more room"):
        async with serve_bundle(bundle, tmp_path / "served"):
            pass


@pytest.fixture
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiers have an address alone, and no key is created."""

    @asynccontextmanager
    async def tier(*_: object) -> AsyncIterator[RunningTier]:
        running = await _ending("")
        await running.process.wait()
        yield running

    async def key(*_: object) -> str:
        return "flk_key"

    monkeypatch.setattr(tiers, "tier", tier)
    monkeypatch.setattr(tiers, "create_device_key", key)


@pytest.mark.usefixtures("_no_processes")
async def test_agent_takes_the_address_of_its_gateway(tmp_path: Path) -> None:
    async with serve_bundle(open_bundle(DIGITS), tmp_path) as served:
        assert f'url = "{served.gateway.url}"' in (tmp_path / "agent.toml").read_text()


@pytest.mark.usefixtures("_no_processes")
async def test_second_agent_of_a_folder_takes_the_models_of_the_first(tmp_path: Path) -> None:
    bundle = open_bundle(DIGITS)
    async with run_agent(bundle, tmp_path, "", device="d", name="one"):
        manifest = tmp_path / "edge" / bundle.manifest.name / "manifest.json"
        manifest.write_text("not written again")
    async with run_agent(bundle, tmp_path, "", device="d", name="two"):
        assert manifest.read_text() == "not written again"


async def test_modules_of_the_users_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError\n")
    (tmp_path / "gateway.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert (await create_device_key(tmp_path / "gateway.toml", "d")).startswith("flk_")
