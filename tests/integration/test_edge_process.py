"""The agent as a process: the ready line, signals, exit codes, and what it costs to start."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS
from support.forks import ForkedProcess, run_forked
from support.images import noise
from support.processes import TierProcess
from support.waiting import wait_until

RSS_LIMIT_KIB = 120 * 1024  # 90 MB is the aim; a debug allocator or another libc may take more
START_LIMIT_S = 10.0  # under a second where nothing else runs


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "edge.toml"
    file.write_text(f'[agent]\nstate_dir = "state"\n[models]\ndirectories = ["{DIGITS}"]\n')
    return file


def agent_of(config: Path, *arguments: str, forked: bool = True) -> TierProcess:
    """An agent that is not yet started."""
    log = config.with_suffix(".log")
    return TierProcess("firstline_edge", "--config", config, *arguments, log=log, forked=forked)


@pytest.fixture
def agent(config: Path) -> Iterator[TierProcess]:
    with agent_of(config) as found:
        yield found


def test_first_answer_comes_soon_and_costs_little(config: Path) -> None:
    started_s = time.monotonic()
    with agent_of(config, forked=False) as agent:
        httpx.get(f"{agent.url}/v2/models/digits", trust_env=False).raise_for_status()
        assert time.monotonic() - started_s < START_LIMIT_S
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
        rss_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
        assert rss_kib < RSS_LIMIT_KIB


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_agent(agent: TierProcess, number: signal.Signals) -> None:
    assert httpx.get(f"{agent.url}/v2/health/ready", trust_env=False).status_code == 200
    assert agent.stop(number) == 0


_LOADS_FOR_MINUTES = """
import hashlib, sys
from firstline_edge.__main__ import main
from firstline_edge.models import loading

def load(*_: object) -> None:
    print("loading", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"model", b"", 500_000_000)  # in C

loading.load_edge = load
sys.exit(main())
"""


def test_signal_stops_an_agent_that_loads_a_slow_model(config: Path) -> None:
    command = [sys.executable, "-c", _LOADS_FOR_MINUTES, "run", "--config", str(config), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "loading\n"
            process.terminate()
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


_RUNS_SLOWLY = """
import sys, time
from pathlib import Path
from firstline_edge.__main__ import main
from firstline_edge.models.models import EdgeModel

run = EdgeModel.run

def run_slowly(*arguments: object, **options: object) -> object:
    Path(__file__).with_name("runs").touch()
    time.sleep(RUN_S)
    return run(*arguments, **options)

EdgeModel.run = run_slowly
EdgeModel.quick = lambda *_: False  # in a thread, as slow models do
sys.exit(main())
"""


@contextmanager
def asking_a_slow_model(config: Path, run_s: int, timeout_us: int) -> Iterator[tuple[TierProcess, Future[int]]]:
    """Yields an agent whose model runs, and the status of the request to come."""
    script = config.with_name("slow.py")
    script.write_text(_RUNS_SLOWLY.replace("RUN_S", str(run_s)))
    agent = TierProcess(str(script), "--config", config, log=config.with_suffix(".log"))

    def ask() -> int:
        address = f"{agent.url}/firstline/v1/models/digits/infer?timeout={timeout_us}"
        return httpx.post(address, content=noise(side=28), timeout=60, trust_env=False).status_code

    with agent, ThreadPoolExecutor(1) as threads:
        status = threads.submit(ask)
        wait_until(config.with_name("runs").exists)
        yield agent, status


def test_signal_lets_a_slow_model_answer_first(config: Path) -> None:
    with asking_a_slow_model(config, run_s=1, timeout_us=60_000_000) as (agent, status):
        assert agent.stop() == 0
        assert status.result() == 200


def test_signal_ends_an_agent_whose_model_still_runs(config: Path) -> None:
    with asking_a_slow_model(config, run_s=600, timeout_us=3_000_000) as (agent, status):
        assert status.result() == 504  # a thread still runs
        assert agent.stop() == 0


def test_agent_runs_without_its_ready_line_if_the_disk_refuses_it(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "firstline_edge", "run", "--config", str(config), "--port", "0"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "state" / "last-good-configuration.json").exists)  # is written just before the line
    url = (tmp_path / "state" / "url").read_text().strip()
    wait_until(lambda: httpx.get(f"{url}/v2/health/live", trust_env=False).status_code == 200)
    process.terminate()
    assert process.wait(20) == 0


def test_status_of_a_killed_agent_sends_no_request(agent: TierProcess, config: Path, tmp_path: Path) -> None:
    agent.kill()
    assert (tmp_path / "state" / "url").read_text().strip() == agent.url  # no process could clean up
    with socket.socket() as stranger:  # it must receive no token
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", agent.port))
        stranger.listen()
        stranger.setblocking(False)
        done = run_forked("firstline_edge", "status", "--config", str(config))
        with pytest.raises(BlockingIOError):
            stranger.accept()
    assert (done.returncode, done.stdout) == (1, "")
    assert "No agent runs with" in done.stderr and "edge-agent run" in done.stderr


def test_every_setting_has_a_flag(config: Path) -> None:
    with agent_of(config, "--set", "api.port=0", "--set", "models.directories=[]") as agent:
        assert httpx.get(f"{agent.url}/firstline/v1/status", trust_env=False).json()["models"] == []


def test_reader_of_explain_may_close_the_pipe(config: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    lines = b'{"request_id": "r", "note": "' + b"x" * 1000 + b'"}\n'
    (tmp_path / "state" / "decisions.jsonl").write_bytes(lines * 2000)
    process = ForkedProcess("firstline_edge", "explain", "r", "--config", config)
    assert process.stdout is not None and process.stderr is not None
    assert "did not write this line" in process.stdout.readline()
    process.stdout.close()
    with process.stderr as stderr:
        assert (process.wait(timeout=20), stderr.read()) == (0, "")


def test_status_finds_the_agent_on_any_port(agent: TierProcess, config: Path) -> None:
    done = run_forked("firstline_edge", "status", "--config", str(config), "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["url"]) == (0, agent.url)


def test_taken_port_is_one_error_line(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_forked("firstline_edge", "run", "--config", str(config), "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"edge-agent: 127.0.0.1:{port} is in use by another program; stop it, or choose a port with --port "
        "(0 for any free one).\n"
    )
