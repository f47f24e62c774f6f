"""The gateway as its users run it, with everything on, and the raw limit beside it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.serving.asking import Ask, Question, checked, v2
from bench.serving.bodies import TRACEPARENT, Row
from bench.serving.models import Kind, S, write_bundle
from bench.serving.processes import Cores, Server, free_port, started

_BENCH = Path(__file__).parents[1]
_AGENT = _BENCH / "device" / "agent_alone.py"
# A limit that is looked at for each request and never reached.
_REQUESTS_PER_S = "1000000"


def gateway_folder(folder: Path, models: dict[str, Kind]) -> dict[str, str]:
    """A gateway's configuration, its models and an API key with a limit.

    Returns:
        The headers of a request: the key and a trace's.
    """
    for name, kind in models.items():
        write_bundle(kind, folder / "models" / name)
    (folder / "gateway.toml").write_text('[auth]\nmode = "tokens"\n')
    command = [sys.executable, "-m", "firstline_gateway", "key", "create", "bench"]
    created = subprocess.run(
        [*command, "--requests-per-s", _REQUESTS_PER_S, "--config", str(folder / "gateway.toml")],
        capture_output=True,
        text=True,
        check=True,
    )
    return {"Authorization": f"Bearer {created.stdout.strip()}", "traceparent": TRACEPARENT}


@contextlib.contextmanager
def gateway(folder: Path, headers: dict[str, str], ask: Ask, right: Row, on: Cores) -> Iterator[Server]:
    """`firstline-gateway run` with the defaults: keys, limits, metrics, traces, and its log in a file."""
    port = free_port()
    command = [sys.executable, "-m", "firstline_gateway", "run", "--config", folder / "gateway.toml", "--port", port]
    with started(
        [str(part) for part in command],
        port=port,
        on=on,
        log=folder / "gateway.log",
        answers=lambda asked: checked(asked, ask, headers, right),
        headers=headers,
    ) as server:
        yield server


@contextlib.contextmanager
def raw_asgi(
    folder: Path, model: Path, ask: Ask, right: Row, on: Cores, *, threads: int = 0, copies: int = 1
) -> Iterator[Server]:
    """The least that can be done on the same server (`load/raw_asgi.py`), unbatched; with `copies` of the model."""
    port = free_port()
    command = [sys.executable, "-m", "bench.load.raw_asgi", str(model), "--port", str(port)]
    command += ["--threads", str(threads), "--copies", str(copies)]
    with started(
        command,
        port=port,
        on=on,
        log=folder / "raw_asgi.log",
        answers=lambda asked: checked(asked, ask, {}, right),
        environ=dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(_BENCH), *sys.path])},
    ) as server:
        yield server


@contextlib.contextmanager
def agent(folder: Path, bundle: Path, ask: Ask, right: Row, on: Cores) -> Iterator[Server]:
    """`edge-agent run` as on a device, with its defaults and one bundle; its gateway is down."""
    config = folder / "edge-agent.toml"
    config.write_text(
        f'[agent]\ndevice_id = "bench"\nstate_dir = "state"\n[models]\ndirectories = ["{bundle}"]\n'
        '[[links]]\nkind = "http"\nurl = "http://127.0.0.1:9"\n'
    )
    port = free_port()
    with started(
        [sys.executable, str(_AGENT), "run", "--config", str(config), "--port", str(port)],
        port=port,
        on=on,
        log=folder / "edge-agent.log",
        answers=lambda asked: checked(asked, ask, {}, right),
    ) as server:
        yield server


def asked(question: Question) -> Ask:
    """What the gateway and the raw limit are asked: V2 of the model that is named as its kind."""
    return v2(question.form, question.kind, [question.kind.name])


def copies(count: int) -> dict[str, Kind]:
    """So many models that are all S."""
    return {f"s{n}": S for n in range(count)}
