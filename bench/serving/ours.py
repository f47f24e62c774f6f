"""The gateway as its users run it, with everything on, and raw ASGI for comparison."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.serving.bodies import TRACEPARENT, Row
from bench.serving.client import Ask, checked
from bench.serving.models import Kind, write_bundle
from bench.serving.processes import Cores, Server, free_port, started

_CHECKOUT = Path(__file__).parents[2]
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
def raw_asgi(folder: Path, model: Path, ask: Ask, right: Row, on: Cores, *, threads: int = 0) -> Iterator[Server]:
    """Runs the least that can be done on the same server (`load/raw_asgi.py`), without batches."""
    port = free_port()
    command = [sys.executable, "-m", "bench.load.raw_asgi", str(model), "--port", str(port)]
    command += ["--threads", str(threads)]
    with started(
        command,
        port=port,
        on=on,
        log=folder / "raw_asgi.log",
        answers=lambda asked: checked(asked, ask, {}, right),
        environ=dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(_CHECKOUT), *sys.path])},
    ) as server:
        yield server
