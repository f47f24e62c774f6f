"""`edge-agent update list` and `rollback` without a gateway, with and without an agent."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import free_port
from support.commands import run_agent_here
from support.processes import TierProcess
from support.updates import NAME, Device, HastyClock, Registry, bundle_at

from firstline_core.fleet.update import UpdateState

NOBODY = 65_534


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def config(tmp_path: Path, state: Path) -> Path:
    """Of a device that was set up with version 1, and whose gateway is away."""
    bundle_at(tmp_path / "setup" / NAME, 1)
    file = tmp_path / "edge.toml"
    file.write_text(
        f'[agent]\nstate_dir = "{state}"\n[models]\ndirectories = ["{tmp_path / "setup"}"]\n[fleet]\nenabled = true\n'
        f'[[links]]\nkind = "http"\nurl = "http://127.0.0.1:{free_port()}"\n'
    )
    return file


@pytest.fixture
def updated(config: Path, state: Path, tmp_path: Path) -> None:
    """The fleet has brought version 2, and it has stayed."""
    registry = Registry(random.Random(1))
    model = registry.add(bundle_at(tmp_path / "two", 2), "r1")

    async def update() -> None:
        device = Device(state, registry, HastyClock())
        device.setup = tmp_path / "setup" / NAME
        device.start()
        device.updater.receive([model])
        await device.run()
        assert device.installed.record.state is UpdateState.COMMITTED

    asyncio.run(update())


def run(*arguments: str, code: int = 0) -> str:
    """What a command prints; where it fails, what it complains of."""
    done = run_agent_here(*arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def listed(config: Path) -> list[dict[str, Any]]:
    return json.loads(run("update", "list", "--config", str(config), "-o", "json"))["updates"]


@contextmanager
def agent(config: Path) -> Iterator[str]:
    with TierProcess("firstline_edge", "--config", config, log=config.with_suffix(".log")) as found:
        yield found.url
        assert found.stop() == 0


def running(url: str) -> list[str]:
    return httpx.get(f"{url}/v2/models/{NAME}", trust_env=False).json()["versions"]


def test_a_device_without_updates(config: Path, state: Path) -> None:
    assert run("update", "list", "--config", str(config)) == "the fleet has never updated this device\n"
    assert listed(config) == []
    state.mkdir()
    assert "No update of a model 'wide' is known" in run("update", "rollback", NAME, "--config", str(config), code=1)


@pytest.mark.usefixtures("updated")
def test_a_stopped_agent_is_rolled_back_on_disk(config: Path) -> None:
    line = run("update", "list", "--config", str(config))
    assert line.startswith(NAME) and "version 2" in line and "committed" in line
    (update,) = listed(config)
    assert (update["state"], update["slot"], update["previous"]) == ("committed", "a", "")
    assert run("update", "rollback", NAME, "--config", str(config)) == f"{NAME}: rolled back to the previous version\n"
    (update,) = listed(config)
    assert (update["state"], update["reason"], update["slot"]) == ("rolled_back", "asked", "")
    assert "no previous version to roll back to" in run("update", "rollback", NAME, "--config", str(config), code=1)
    with agent(config) as url:
        assert running(url) == ["1"]


@pytest.mark.usefixtures("updated")
def test_a_running_agent_rolls_back(config: Path) -> None:
    with agent(config) as url:
        assert running(url) == ["2"]
        reply = json.loads(run("update", "rollback", NAME, "--config", str(config), "-o", "json"))
        assert reply == {"rolled_back": NAME}
        assert running(url) == ["1"]
        assert listed(config)[0]["state"] == "rolled_back"
        assert "no previous version to roll back to" in run("update", "rollback", NAME, "--config", str(config), code=1)
    with agent(config) as url:
        assert running(url) == ["1"]


@pytest.mark.usefixtures("updated")
def test_commands_leave_a_damaged_file_to_the_agent(config: Path, state: Path) -> None:
    file = state / "models" / NAME / "state"
    file.write_bytes(b"x\ny\n")
    assert "committed" in run("update", "list", "--config", str(config))
    assert file.read_bytes() == b"x\ny\n"
    with agent(config) as url:  # the copy of the file says what had stayed
        assert running(url) == ["2"]
    assert file.with_name("state.damaged").read_bytes() == b"x\ny\n"


@pytest.mark.usefixtures("updated")
def test_a_lost_state_is_an_error(config: Path, state: Path) -> None:
    damaged = [state / "models" / NAME / "state", state / "models" / NAME / "state.copy"]
    for file in damaged:
        file.write_bytes(b"x\ny\n")
    for command in (("list",), ("rollback", NAME)):
        assert f"{damaged[0]} is damaged" in run("update", *command, "--config", str(config), code=1)
    assert [file.read_bytes() for file in damaged] == [b"x\ny\n"] * 2
    with agent(config) as url:  # the bundle that the device was set up with, until the fleet desires another
        assert running(url) == ["1"]


def test_an_unusable_configuration_is_an_error(config: Path, state: Path) -> None:
    file = state / "fleet" / "configuration"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x\ny\n")
    for command in ("list", "rollback --configuration"):
        assert f"{file} is damaged" in run("update", *command.split(), "--config", str(config), code=1)
    assert file.read_bytes() == b"x\ny\n"
    file.unlink()
    file.mkdir()  # cannot be read, also by root
    for command in ("list", "rollback --configuration"):
        assert "it is a folder" in run("update", *command.split(), "--config", str(config), code=1)
    assert file.is_dir()


# What a command imports is read by root: an interpreter may be unreadable for other users.
_AS_NOBODY = f"""
import os, sys
import firstline_edge.cli.purge, firstline_edge.cli.update_rollback, firstline_edge.cli.update_list
from firstline_edge.__main__ import main
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
for command in sys.argv[1:]:
    sys.argv[1:] = command.split()
    print(main())
"""


@pytest.mark.usefixtures("updated")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_wrong_user_is_an_error(state: Path) -> None:
    commands = [
        f"{command} --set agent.state_dir={state}"
        for command in ("update list", f"update rollback {NAME}", "purge --yes")
    ]
    done = subprocess.run([sys.executable, "-c", _AS_NOBODY, *commands], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n1\n1\n"), done.stderr
    refusals = done.stderr.splitlines()
    assert len(refusals) == 3
    assert all("run this as the user that the agent runs as" in line and str(state) in line for line in refusals)
