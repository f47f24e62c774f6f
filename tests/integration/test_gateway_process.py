"""The command `firstline-gateway` as a process."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.broker import free_port
from support.commands import run_here
from support.forks import ForkedProcess, run_forked
from support.gateway import DIGITS
from support.processes import TierProcess
from support.waiting import wait_until

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import write_graph
from firstline_core.processing.steps import InputSpec, Softmax


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.toml"
    file.write_text('[api]\nport = 0\n[log]\nformat = "json"\n')
    shutil.copytree(DIGITS, tmp_path / "models" / "digits", ignore=shutil.ignore_patterns("edge*"))
    return file


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_forked("firstline_gateway", *arguments)


def gateway(config: Path, *arguments: str, forked: bool = True) -> TierProcess:
    """A gateway that is not yet started."""
    log = config.with_suffix(".log")
    return TierProcess("firstline_gateway", "--config", config, *arguments, log=log, forked=forked)


def events(gateway: TierProcess) -> list[dict[str, Any]]:
    """The lines of its log."""
    return [json.loads(line) for line in gateway.log.read_text().splitlines()]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_gateway(config: Path, ending: signal.Signals) -> None:
    """It prints the ready line alone, and logs no line of a library."""
    with gateway(config, forked=ending is not signal.SIGTERM) as process:
        assert httpx.get(f"{process.url}/v2/health/ready").status_code == 200
        assert process.stop(ending) == 0
    logged = events(process)
    assert [line["event"] for line in logged][-2:] == ["draining", "stopped"]
    assert "no API key and no device yet, so no caller can authenticate" in [line["event"] for line in logged]
    assert "another store" not in process.log.read_text()
    assert {line["logger"].partition(".")[0] for line in logged} <= {"firstline_core", "firstline_gateway"}


def test_signal_stops_a_gateway_that_starts(tmp_path: Path) -> None:
    os.mkfifo(config := tmp_path / "gateway.toml")  # the gateway waits for its configuration
    process = subprocess.Popen(
        [sys.executable, "-m", "firstline_gateway", "run", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    writers: list[int] = []

    def is_read() -> bool:
        try:
            writers.append(os.open(config, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # not yet
            return False
        return True

    wait_until(is_read)
    process.terminate()
    out, err = process.communicate(timeout=20)
    os.close(writers[0])
    assert (process.returncode, out, err) == (0, "", "")


_LOADING = """
import hashlib, sys
from firstline_gateway import app
from firstline_gateway.__main__ import main

def load(*_: object, **__: object) -> None:
    print("loading", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"model", b"", 500_000_000)  # in C, for minutes

app.load_full = load
sys.exit(main())
"""


def test_signal_stops_a_gateway_that_loads_a_slow_model(config: Path) -> None:
    script = config.with_name("loading.py")
    script.write_text(_LOADING)
    environment = os.environ | {"FIRSTLINE_GATEWAY_MODELS__WAIT": "false"}
    process = ForkedProcess(str(script), "run", "--config", config, environ=environment)
    try:
        assert {process.stdout.readline().split()[0] for _ in range(2)} == {"loading", "listening"}
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()


def test_an_imported_authority_needs_no_store_yet_and_a_used_one_does(config: Path) -> None:
    assert run_here("ca", "init", "--config", config).returncode == 0
    with gateway(config) as process:
        assert httpx.get(f"{process.url}/v2/health/live").status_code == 200
        process.stop()
    store = config.parent / "gateway.db"
    store.write_bytes(b"")
    refused = run("run", "--config", config)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is damaged: it was cut off at 0 bytes" in refused.stderr and "restore FILE --store-only" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert store.stat().st_size == 0


def test_second_gateway_on_one_sqlite_store_is_refused(config: Path) -> None:
    other = config.with_name("other.toml")
    (config.parent / "link.db").symlink_to("gateway.db")
    other.write_text(config.read_text() + '[store]\nurl = "sqlite:///link.db"\n')
    with gateway(config) as process:
        for same in (config, other):
            refused = run("run", "--config", same)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert "is in use by another gateway; stop it, or share a store on PostgreSQL" in refused.stderr
        assert run_here("check", "--config", config).returncode == 0
        assert run_here("backup", config.with_name("saved.zip"), "--config", config).returncode == 0
        process.kill()
    with gateway(config) as process:
        assert process.stop() == 0


def test_keys_are_created_listed_and_revoked_while_the_gateway_runs(config: Path) -> None:
    with gateway(config) as process:
        url = process.url
        created = json.loads(run_here("key", "create", "shop", "--config", config, "-o", "json").stdout)
        headers = {"Authorization": f"Bearer {created['key']}"}
        assert httpx.get(f"{url}/v2", headers=headers).status_code == 200
        status = run_here("status", url, FIRSTLINE_TOKEN=created["key"])
        assert (status.returncode, status.stdout) == (
            0,
            "live: yes\nready: yes\nmodel: digits version 1\ncontracts: a key with the scope fleet shows them\n",
        )
        assert "set FIRSTLINE_TOKEN" in run_here("status", url).stdout
        assert "application  shop  infer" in run_here("key", "list", "--config", config).stdout
        assert run_here("key", "revoke", "shop", "--config", config).returncode == 0
        wait_until(lambda: httpx.get(f"{url}/v2", headers=headers).status_code == 401)  # within `auth.refresh_s`


def test_request_is_logged_in_one_line_without_its_payload(config: Path) -> None:
    with gateway(config, "--host", "127.0.0.1") as process:
        text = run_here("key", "create", "press-7", "--device", "--config", config).stdout.strip()
        body = b"no image, but a secret"
        refused = httpx.post(
            f"{process.url}/firstline/v1/models/digits/infer", content=body, headers={"Authorization": f"Bearer {text}"}
        )
        assert refused.status_code == 400
        process.stop()
    (line,) = (found for found in events(process) if found["event"] == "refused")
    assert (line["outcome"], line["principal"], line["rows"]) == ("invalid_tensor", "device:press-7", 1)
    assert len(line["request_id"]) == 36
    assert "secret" not in process.log.read_text()
    assert text not in process.log.read_text()


def heavy_bundle(folder: Path) -> None:
    """A model whose work grows with the cube of the row's length: seconds for one row of 3000 numbers."""
    steps = [helper.make_node("Transpose", ["x"], ["column"], perm=[1, 0])]
    steps.append(helper.make_node("MatMul", ["column", "x"], ["square_0"]))
    steps += [helper.make_node("MatMul", [f"square_{n}", "square_0"], [f"square_{n + 1}"]) for n in range(8)]
    steps.append(helper.make_node("MatMul", ["x", "square_8"], ["wide"]))
    steps.append(helper.make_node("Slice", ["wide", "starts", "ends", "axes"], ["logits"]))
    numbers = [numpy_helper.from_array(np.array([n]), name) for name, n in (("starts", 0), ("ends", 2), ("axes", 1))]
    path = write_graph(
        folder / "heavy.onnx",
        steps,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "width"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        numbers,
    )
    full = model(path, folder, postprocess=(Softmax(),))
    write_manifest(folder, [], ["a", "b"], name="heavy", full=full, inputs=(InputSpec("x", "FP32", (-1, -1)),))


# A tenth of the time that a gateway gives what still runs when it closes.
_HASTY = """
import sys
from firstline_gateway.__main__ import main
from firstline_gateway.app import Gateway

Gateway.close.__defaults__ = (0.5,)
sys.exit(main())
"""


def test_endless_batch_is_abandoned_when_the_drain_times_out(config: Path) -> None:
    config.write_text('[api]\nport = 0\ndrain_s = 0.1\n[auth]\nmode = "off"\n[log]\nformat = "json"\n')
    heavy_bundle(config.parent / "models" / "heavy")
    body = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 5000], "data": [0.0] * 5000}]})
    hasty = config.with_name("hasty.py")
    hasty.write_text(_HASTY)
    with (
        TierProcess(str(hasty), "--config", config, log=config.with_suffix(".log")) as process,
        ThreadPoolExecutor(1) as threads,
    ):
        future = threads.submit(httpx.post, f"{process.url}/v2/models/heavy/infer", content=body, timeout=60)
        metrics = f"{process.url}/metrics"
        wait_until(lambda: "firstline_gateway_batch_rows_count 1.0" in httpx.get(metrics).text)
        process.process.terminate()
        reply = future.result()
        assert (reply.status_code, reply.json()["code"]) == (503, "not_ready")
        started_s = time.monotonic()
        process.process.communicate(timeout=20)
        assert time.monotonic() - started_s < 15
        assert process.process.returncode == 1
    logged = [line["event"] for line in events(process)]
    assert logged[-1] == "stopped while a batch runs, or the store does not respond"
    assert "gave up on requests in flight" in logged


_FEW_DESCRIPTORS = """
import resource, sys
from firstline_gateway.__main__ import main

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sys.exit(main())
"""


def with_few_descriptors(config: Path) -> TierProcess:
    """A gateway that may open 256 files and connections."""
    script = config.with_name("limited.py")
    script.write_text(_FEW_DESCRIPTORS)
    return TierProcess(str(script), "--config", config, log=config.with_suffix(".log"))


def test_idle_connections_of_strangers_leave_room_for_others(config: Path) -> None:
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: here\r\n\r\n"
    with with_few_descriptors(config) as process, contextlib.ExitStack() as stack:
        for _ in range(300):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=5))
            stranger.sendall(request)
            assert stranger.recv(100).startswith(b"HTTP/1.1 200")
        assert httpx.get(f"{process.url}/v2/health/live", timeout=5).status_code == 200


def test_connections_of_strangers_to_grpc_leave_descriptors_for_http(config: Path) -> None:
    port = free_port()
    config.write_text(f"{config.read_text()}[grpc]\nenabled = true\nport = {port}\n")
    with with_few_descriptors(config) as process, contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        assert httpx.get(f"{process.url}/v2/health/live", timeout=5).status_code == 200


def test_taken_port_is_one_error_line(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = run("run", "--config", config, "--port", str(port))
    assert taken.returncode == 1
    assert taken.stdout == ""
    assert taken.stderr.startswith(f"firstline-gateway: 127.0.0.1:{port} is in use by another program; stop it, or ")
    assert taken.stderr.count("\n") == 1


def test_unknown_host_is_named_with_its_place(config: Path) -> None:
    config.write_text(config.read_text().replace("[api]", '[api]\nhost = "press..local"\nplain_http = true'))
    refused = run("run", "--config", config)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(
        f"firstline-gateway: {config}:2: api.host is 'press..local', which is not known; check the host name, "
    )


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        ("check", '[mqtt]\nenabled = true\ngroup = "a/b"\n', "shared subscription's group"),
        ("check", '[mqtt]\nenabled = true\ntls_ca_file = "gateway.toml"\n', "mqtt.tls_ca_file: "),
        ("run", '[execution]\nproviders = ["CUDAExecutionProvider"]\n', "names CUDAExecutionProvider, but this onnx"),
        ("check", '[execution]\nproviders = ["CUDAExecutionProvider"]\n', "has: "),
        ("check", "[api]\nkeep_alive_s = inf\n", "gateway.toml:2, 'api.keep_alive_s'"),
    ],
)
def test_invalid_configuration_is_one_error_line(config: Path, command: str, text: str, message: str) -> None:
    config.write_text(text)
    free_port = ("--port", "0")
    wrong = run(command, "--config", config, *free_port) if command == "run" else run_here(command, "--config", config)
    assert wrong.returncode == 2
    assert message in wrong.stderr
    assert wrong.stderr.startswith("firstline-gateway: ")
    assert wrong.stderr.count("\n") == 1


def test_check_lists_the_models_that_would_be_served(config: Path) -> None:
    good = run_here("check", "--config", config)
    assert (good.returncode, good.stdout) == (0, f"digits version 1 from {config.parent}/models/digits\n")
    text = config.read_text()
    config.write_text(f"{text}[models]\nmemory_budget_mb = 1\n")
    large = run_here("check", "--config", config)
    assert (large.returncode, large.stdout.count("\n")) == (1, 1)
    assert "more than models.memory_budget_mb allows" in large.stdout
    config.write_text(text)
    (config.parent / "models" / "digits" / "full.onnx").write_bytes(b"damaged")
    bad = run_here("check", "--config", config, "-o", "json")
    assert bad.returncode == 1
    found = json.loads(bad.stdout)
    assert found["models"] == []
    assert "full.onnx has 7 bytes" in found["refused"][0]["error"]
    (config.parent / "models" / "digits" / "manifest.json").unlink()
    assert run_here("check", "--config", config).stdout.startswith("no bundle in ")


def test_limit_of_an_unknown_model_gives_a_warning(config: Path) -> None:
    config.write_text(f"{config.read_text()}[models]\nconcurrency_of = {{ digits = 1, digit = 1 }}\n")
    checked = run_here("check", "--config", config)
    assert (checked.returncode, checked.stdout.count("concurrency_of")) == (0, 1)
    assert "models.concurrency_of names 'digit', and there is no such model; did you mean 'digits'?" in checked.stdout
    with gateway(config) as process:
        process.stop()
    assert [line["model"] for line in events(process) if "concurrency_of" in line["event"]] == ["'digit'"]


def test_status_of_an_unreachable_gateway_is_one_line() -> None:
    status = run_here("status", "http://127.0.0.1:9")
    assert status.returncode == 1
    assert "http://127.0.0.1:9 does not answer as a gateway" in status.stdout
