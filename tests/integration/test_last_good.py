"""A configuration or a model that is damaged while the power is off: the agent answers as before, and says so."""

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS, edge_settings
from support.commands import run_agent_here
from support.digits import scan
from support.forks import run_forked
from support.processes import TierProcess

from firstline_edge.app import EdgeAgent


@contextmanager
def running(config: Path, log: Path) -> Iterator[str]:
    with TierProcess("firstline_edge", "--config", config, log=log) as agent:
        yield agent.url
        assert agent.stop() == 0


def edge_agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked("firstline_edge", *arguments)


def test_invalid_configuration_is_replaced_by_the_last_good_one(tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    text = f'[models]\ndirectories = ["{DIGITS}"]\n[agent]\nstate_dir = "state"\ndevice_id = "pump-7"\n'
    config.write_text(text)
    with running(config, tmp_path / "stderr") as url:
        assert httpx.get(f"{url}/firstline/v1/status", trust_env=False).json()["problems"] == []
    garbage = b'state_dir = "state"\n\xff\0' + text.encode()
    for damage, content in {"cut": text[:-4].encode(), "zeros": bytes(4096), "garbage": garbage, "gone": b""}.items():
        config.write_bytes(content)
        if damage == "gone":
            config.unlink()
            state = f"agent.state_dir={tmp_path / 'state'}"
            assert run_agent_here("status", "--config", config, "--set", state).returncode == 1  # no process runs
        log = tmp_path / f"stderr-{damage}"
        with running(config, log) as url:
            status = httpx.get(f"{url}/firstline/v1/status", trust_env=False).json()
            assert status["device_id"] == "pump-7", damage
            assert [found["path"] for found in status["problems"]] == [str(config)]
            assert "The last configuration that this agent started with is used instead" in log.read_text()
            reply = httpx.post(f"{url}/firstline/v1/models/digits/infer", content=scan(), trust_env=False)
            assert reply.status_code == 200
            shown = run_agent_here("status", "--config", config)
            assert shown.returncode == 0
            assert f"problem {config}: " in shown.stdout
        assert run_agent_here("doctor", "--config", config).returncode != 0
    assert edge_agent("run", "--config", str(config), "--set", "api.prot=1").returncode == 2  # a flag is not left over


def test_a_start_error_names_the_last_good_configuration(tmp_path: Path) -> None:
    config, tokens = tmp_path / "edge.toml", tmp_path / "tokens"
    tokens.write_text("camera:secret-secret-secret\n")
    text = f'[models]\ndirectories = ["{DIGITS}"]\n[api]\ntoken_file = "tokens"\n[agent]\nstate_dir = "state"\n'
    config.write_text(text)
    with running(config, tmp_path / "stderr"):
        pass
    config.write_text(f"# corrected\n{text}[links\n")
    tokens.write_text("")
    failed = edge_agent("run", "--config", str(config), "--port", "0")
    assert failed.returncode == 2
    last = failed.stderr.splitlines()[-1]
    assert f"the last good configuration of {config}:4: api.token_file: " in last


def test_invalid_configuration_needs_the_state_directory(tmp_path: Path) -> None:
    config, state = tmp_path / "etc" / "edge.toml", tmp_path / "lib" / "firstline"
    config.parent.mkdir()
    config.write_text(f'[models]\ndirectories = ["{DIGITS}"]\n[agent]\nstate_dir = "{state}"\n')
    with running(config, tmp_path / "stderr"):
        pass
    config.write_bytes(bytes(100))
    assert edge_agent("run", "--config", str(config), "--port", "0").returncode == 2
    shown = run_agent_here("status", "--config", config, "--set", f"agent.state_dir={state}")
    assert shown.returncode == 1, "found, but nobody runs"


@pytest.mark.parametrize("damage", ["flip", "manifest", "manifest gone"])
async def test_damaged_bundle_is_replaced_by_its_copy(tmp_path: Path, damage: str) -> None:
    models = tmp_path / "models"
    shutil.copytree(DIGITS, models / "digits")
    settings = edge_settings(tmp_path / "state", models__directories=[str(models)])
    async with EdgeAgent(settings) as agent:
        before = await agent.data_plane.infer_file("digits", scan())
        assert agent.operations.status()["problems"] == []
        model = agent.models.find("digits")
        file = models / "digits" / model.edge.loaded.model.artefacts[0].file
    target = file if damage == "flip" else models / "digits" / "manifest.json"
    if damage == "manifest gone":
        target.unlink()
    else:
        content = bytearray(target.read_bytes())
        content[len(content) // 2] ^= 4
        target.write_bytes(content)
    async with EdgeAgent(settings) as agent:
        after = await agent.data_plane.infer_file("digits", scan())
        assert after.output("probabilities").tobytes() == before.output("probabilities").tobytes()
        messages = [
            found["message"] for found in agent.operations.status()["problems"] if found["path"].endswith("digits")
        ]
        assert len(messages) == 1
        assert "A copy of version 1 answers instead." in messages[0]
        [copy] = (tmp_path / "state" / "bundles").iterdir()
        assert agent.operations.status()["models"][0]["certificate"] is not None
    (copy / file.name).write_bytes(b"damaged too") if (copy / file.name).exists() else shutil.rmtree(copy)
    async with EdgeAgent(settings) as agent:
        assert agent.models.all == ()
    shutil.rmtree(models / "digits")
    async with EdgeAgent(settings):
        assert list((tmp_path / "state" / "bundles").glob("*")) == []


async def test_a_bundle_above_the_limit_is_not_copied(tmp_path: Path) -> None:
    async with EdgeAgent(edge_settings(tmp_path / "state", models__copies_limit_bytes=0)):
        assert not (tmp_path / "state" / "bundles").exists()


@pytest.mark.parametrize("text", ["/var/lib/x\0y", "~nobody-of-this-name/state"])
def test_invalid_configuration_without_a_usable_path_is_an_error(tmp_path: Path, text: str) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(f'[models\nstate_dir = "{text}"\n')
    found = edge_agent("run", "--config", str(config), "--port", "0")
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert "is not valid TOML" in found.stderr


async def test_an_agent_starts_without_copies_that_its_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = edge_settings(tmp_path / "state")
    async with EdgeAgent(settings):
        pass
    listed = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder.name == "bundles":
            raise OSError(errno.EIO, "Input/output error")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    async with EdgeAgent(settings) as agent:
        assert agent.models.find("digits") is not None
