"""The command `firstline-gateway`, as an operator and a service manager run it."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import httpx
import numpy as np
import orjson
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.gateway import DIGITS

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import write_graph
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_gateway.__main__ import main

COMMAND = (sys.executable, "-m", "firstline_gateway")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.toml"
    file.write_text('[api]\nport = 0\n[log]\nformat = "json"\n')
    shutil.copytree(DIGITS, tmp_path / "models" / "digits", ignore=shutil.ignore_patterns("edge*"))
    return file


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def called(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `call`, within this process, which has imported what the command needs."""
    out, said = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(said):
        code = main(list(map(str, arguments)))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), said.getvalue())


@contextmanager
def running(config: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [*COMMAND, "run", "--config", str(config), "-o", "json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        ready = json.loads(line)
        assert ready["event"] == "ready"
        yield ready["url"], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_runs_until_it_is_told_to_end_and_says_only_where_it_listens(config: Path, ending: signal.Signals) -> None:
    with running(config) as (url, process):
        assert httpx.get(f"{url}/v2/health/ready").status_code == 200
        process.send_signal(ending)
        out, logged = process.communicate(timeout=20)
        assert process.returncode == 0
    assert out == ""
    events = [json.loads(line)["event"] for line in logged.splitlines()]
    assert events[-2:] == ["draining", "stopped"]
    assert "no API key and no device yet, so no caller can authenticate" in events
    loggers = {json.loads(line)["logger"].partition(".")[0] for line in logged.splitlines()}
    assert "another store" not in logged
    assert loggers <= {"firstline_core", "firstline_gateway"}, "libraries say nothing at info that helps"


def test_a_store_that_is_new_beside_an_authority_that_is_not_is_told_of(config: Path) -> None:
    assert called("ca", "init", "--config", config).returncode == 0
    with running(config) as (_, process):
        process.terminate()
        logged = process.communicate(timeout=20)[1]
    assert "check store.url, or restore a backup" in logged


def test_keys_are_made_shown_and_revoked_beside_a_running_gateway(config: Path) -> None:
    with running(config) as (url, _):
        made = json.loads(called("key", "create", "shop", "--config", config, "-o", "json").stdout)
        headers = {"Authorization": f"Bearer {made['key']}"}
        assert httpx.get(f"{url}/v2", headers=headers).status_code == 200
        status = called("status", url, FIRSTLINE_TOKEN=made["key"])
        assert (status.returncode, status.stdout) == (
            0,
            "live: yes\nready: yes\nmodel: digits version 1\ncontracts: a key with the scope fleet shows them\n",
        )
        assert "set FIRSTLINE_TOKEN" in called("status", url).stdout
        assert "application  shop  infer" in called("key", "list", "--config", config).stdout
        assert called("key", "revoke", "shop", "--config", config).returncode == 0
        deadline_s = time.monotonic() + 10  # `auth.refresh_s`, and a busy machine
        while httpx.get(f"{url}/v2", headers=headers).status_code != 401:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)  # it is another process


def test_a_request_is_one_line_of_the_log_without_its_payload(config: Path) -> None:
    with running(config, "--host", "127.0.0.1") as (url, process):
        text = called("key", "create", "press-7", "--device", "--config", config).stdout.strip()
        body = b"no image, but a secret"
        refused = httpx.post(
            f"{url}/firstline/v1/models/digits/infer", content=body, headers={"Authorization": f"Bearer {text}"}
        )
        assert refused.status_code == 400
        process.terminate()
        logged = process.communicate(timeout=20)[1]
    (line,) = (found for found in map(json.loads, logged.splitlines()) if found["event"] == "refused")
    assert (line["outcome"], line["principal"], line["rows"]) == ("invalid_tensor", "device:press-7", 1)
    assert len(line["request_id"]) == 36
    assert "secret" not in logged
    assert text not in logged


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
    write_manifest(folder, [], ["a", "b"], name="heavy", full=full, input=InputSpec("x", "FP32", (-1, -1)))


def test_a_batch_that_does_not_end_is_not_waited_for(config: Path) -> None:
    config.write_text('[api]\nport = 0\ndrain_s = 0.1\n[auth]\nmode = "off"\n[log]\nformat = "json"\n')
    heavy_bundle(config.parent / "models" / "heavy")
    body = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 5000], "data": [0.0] * 5000}]})
    with running(config) as (url, process), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(httpx.post, f"{url}/v2/models/heavy/infer", content=body, timeout=60)
        while "firstline_gateway_batch_rows_count 1.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)  # the server is another process
        process.terminate()
        reply = asked.result()
        assert (reply.status_code, reply.json()["code"]) == (503, "not_ready")
        started_s = time.monotonic()
        logged = process.communicate(timeout=20)[1]
        assert time.monotonic() - started_s < 15
        assert process.returncode == 1
    events = [json.loads(line)["event"] for line in logged.splitlines()]
    assert events[-1] == "stopped while a batch runs, or the store does not respond"
    assert "gave up on requests in flight" in events


def test_a_taken_port_is_a_sentence(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = call("run", "--config", config, "--port", str(port))
    assert taken.returncode == 1
    assert taken.stdout == ""
    assert taken.stderr.startswith(
        f"firstline-gateway: Cannot listen on 127.0.0.1 port {port}: Address already in use;"
    )
    assert taken.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("run", "[api]\nprot = 1\n", "gateway.toml:2 has an unknown key 'api.prot'; did you mean 'port'?"),
        ("run", '[models]\ndirectory = "elsewhere"\n', "There is no models folder"),
        ("check", '[mqtt]\nenabled = true\nusername = "g"\npassword_file = "p"\n', "cannot be read: No such file"),
        ("check", '[mqtt]\nenabled = true\ngroup = "a/b"\n', "shared subscription's group"),
        ("check", '[mqtt]\nenabled = true\ntls_ca_file = "gateway.toml"\n', "The TLS files of the MQTT connection"),
        ("check", '[mqtt]\nenabled = true\ntls_ca_file = "absent.pem"\n', "absent.pem) cannot be used"),
        ("run", '[execution]\nproviders = ["CUDAExecutionProvider"]\n', "names CUDAExecutionProvider, but this onnx"),
        ("check", '[execution]\nproviders = ["CUDAExecutionProvider"]\n', "has: "),
        ("check", "[api]\nkeep_alive_s = inf\n", "gateway.toml:2, 'api.keep_alive_s'"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(config: Path, command: str, text: str, said: str) -> None:
    config.write_text(text)
    wrong = (call if command == "run" else called)(command, "--config", config)
    assert wrong.returncode == 2
    assert said in wrong.stderr
    assert wrong.stderr.startswith("firstline-gateway: ")
    assert wrong.stderr.count("\n") == 1


def test_check_says_what_would_be_served(config: Path) -> None:
    good = called("check", "--config", config)
    assert (good.returncode, good.stdout) == (0, f"digits version 1 from {config.parent}/models/digits\n")
    text = config.read_text()
    config.write_text(f"{text}[models]\nmemory_budget_mb = 1\n")
    large = called("check", "--config", config)
    assert (large.returncode, large.stdout.count("\n")) == (1, 1)
    assert "more than models.memory_budget_mb allows" in large.stdout
    config.write_text(text)
    (config.parent / "models" / "digits" / "full.onnx").write_bytes(b"damaged")
    bad = called("check", "--config", config, "-o", "json")
    assert bad.returncode == 1
    found = json.loads(bad.stdout)
    assert found["models"] == []
    assert "full.onnx has 7 bytes" in found["refused"][0]["error"]
    (config.parent / "models" / "digits" / "manifest.json").unlink()
    assert called("check", "--config", config).stdout.startswith("no bundle in ")


def test_a_bound_on_a_model_that_there_is_not_is_told(config: Path) -> None:
    config.write_text(f"{config.read_text()}[models]\nconcurrency_of = {{ digits = 1, digit = 1 }}\n")
    checked = called("check", "--config", config)
    assert (checked.returncode, checked.stdout.count("concurrency_of")) == (0, 1)
    assert "models.concurrency_of names 'digit', and there is no such model; is it misspelt?" in checked.stdout
    with running(config) as (_, process):
        process.terminate()
        logged = [json.loads(line) for line in process.communicate(timeout=20)[1].splitlines()]
    assert [line["model"] for line in logged if "concurrency_of" in line["event"]] == ["'digit'"]


def test_status_of_nothing_is_a_sentence() -> None:
    status = called("status", "http://127.0.0.1:9")
    assert status.returncode == 1
    assert "http://127.0.0.1:9 does not answer as a gateway" in status.stdout


def test_the_version_is_the_distributions(tmp_path: Path) -> None:
    from importlib.metadata import version

    assert call("--version").stdout == f"firstline-gateway {version('firstline')}\n"
