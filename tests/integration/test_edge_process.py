"""The agent as a process: the ready line, signals, exit codes, and what it costs to start."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS

RSS_LIMIT_KIB = 120 * 1024  # 90 MB is the aim; a debug allocator or another libc may take more
START_LIMIT_S = 10.0  # under a second where nothing else runs


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "edge.toml"
    file.write_text(f'[agent]\nstate_dir = "state"\n[models]\ndirectories = ["{DIGITS}"]\n')
    return file


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "firstline_edge", *arguments]


@pytest.fixture
def agent(config: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with (tmp_path / "stderr").open("wb") as stderr:  # an unread pipe would fill and block the agent
        process = subprocess.Popen(
            command("run", "--config", str(config), "--port", "0", "-o", "json"),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["event"] == "ready"
    yield process, ready["url"]
    process.kill()
    process.communicate()


def test_the_first_answer_comes_soon_and_costs_little(config: Path) -> None:
    started_s = time.monotonic()
    process = subprocess.Popen(
        command("run", "--config", str(config), "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:")
        url = line.split()[-1]
        httpx.get(f"{url}/v2/models/digits", trust_env=False).raise_for_status()
        assert time.monotonic() - started_s < START_LIMIT_S
        status = Path(f"/proc/{process.pid}/status").read_text()
        rss_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
        assert rss_kib < RSS_LIMIT_KIB
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_gracefully(agent: tuple[subprocess.Popen[str], str], number: signal.Signals) -> None:
    process, url = agent
    assert httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200
    process.send_signal(number)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_may_be_stopped_while_it_starts(config: Path, tmp_path: Path, number: signal.Signals) -> None:
    bundles = tmp_path / "bundles"
    for copy in range(40):  # so that there is time to stop it
        (bundles / str(copy)).parent.mkdir(exist_ok=True)
        (bundles / str(copy)).symlink_to(DIGITS)
    config.write_text(config.read_text().replace(str(DIGITS), str(bundles)))
    process = subprocess.Popen(
        command("run", "--config", str(config), "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + 20
    while not (tmp_path / "state" / "lock").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    process.send_signal(number)
    out, said = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in said


def test_status_of_an_agent_that_was_killed_asks_nobody(
    agent: tuple[subprocess.Popen[str], str], config: Path, tmp_path: Path
) -> None:
    process, url = agent
    process.kill()
    process.wait()
    assert (tmp_path / "state" / "url").read_text().strip() == url  # no process could clean up
    with socket.socket() as stranger:  # whom a token must not be sent to
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        stranger.listen()
        stranger.setblocking(False)
        done = subprocess.run(command("status", "--config", str(config)), capture_output=True, text=True, check=False)
        with pytest.raises(BlockingIOError):
            stranger.accept()
    assert (done.returncode, done.stdout) == (1, "")
    assert "No agent runs with" in done.stderr and "edge-agent run" in done.stderr


def test_every_setting_has_a_flag(config: Path) -> None:
    process = subprocess.Popen(
        command("run", "--config", str(config), "--set", "api.port=0", "--set", "models.directories=[]", "-o", "json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert httpx.get(f"{url}/firstline/v1/status", trust_env=False).json()["models"] == []
    finally:
        process.kill()
        process.communicate()
    for wrong, said in (("port=1", "is not SECTION.KEY=VALUE"), ("api.prot=1", "did you mean 'port'")):
        done = subprocess.run(
            command("run", "--config", str(config), "--set", wrong), capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and said in done.stderr


def test_whoever_has_read_enough_may_close_the_pipe(config: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    lines = b'{"request_id": "r", "note": "' + b"x" * 1000 + b'"}\n'
    (tmp_path / "state" / "decisions.jsonl").write_bytes(lines * 2000)
    process = subprocess.Popen(
        command("explain", "r", "--config", str(config)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    assert b"did not write this line" in process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(timeout=20), said) == (0, b"")
    process.stderr.close()


def test_status_finds_the_agent_whatever_its_port(agent: tuple[subprocess.Popen[str], str], config: Path) -> None:
    done = subprocess.run(
        command("status", "--config", str(config), "-o", "json"), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["url"] == agent[1]


def test_a_taken_port_is_a_sentence(config: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            command("run", "--config", str(config), "--port", str(port)), capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"edge-agent: 127.0.0.1:{port} is in use by another program; stop it, or choose a port with --port "
        "(0 lets the system).\n"
    )


def test_an_open_address_without_tokens_is_refused(config: Path) -> None:
    config.write_text(config.read_text() + '[api]\nhost = "0.0.0.0"\n')
    done = subprocess.run(command("run", "--config", str(config)), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "api.token_file is empty" in done.stderr and len(done.stderr.splitlines()) == 1
